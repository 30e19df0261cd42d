"""Code of the guides, with this installation's address and model; tests run it as it is shown."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Guides:
    """One piece of code for each program; all read the key from OPENAI_API_KEY."""

    curl: str
    r: str
    jupyter: str
    langchain: str
    llm_file: str
    llm: str
    webui: str
    editor: str


def exports(base_url: str) -> str:
    """Return the two variables, for a shell."""
    return f'export OPENAI_BASE_URL="{base_url}/v1"\nexport OPENAI_API_KEY="fw_int_…"'


def of(base_url: str, model: str) -> Guides:
    """Return the guides' code for an address and a model."""
    address, name = f"{base_url}/v1", json.dumps(model, ensure_ascii=False)
    return Guides(
        curl=_curl(address, name),
        r=_r(address, name),
        jupyter=_jupyter(address, name),
        langchain=f"""from langchain_openai import ChatOpenAI

chat = ChatOpenAI(model={name}, base_url="{address}", max_retries=5)
print(chat.invoke("Say hello").content)""",
        llm_file=f"""- model_id: fairway
  model_name: {name}
  api_base: {address}
  api_key_name: fairway""",
        llm="""llm keys set fairway --value "$OPENAI_API_KEY"
llm -m fairway "Say hello\"""",
        webui=f"""OPENAI_API_BASE_URL={address}
OPENAI_API_KEY=fw_int_…
ENABLE_FORWARD_USER_INFO_HEADERS=true""",
        editor=f"""name: Fairway
version: 1.0.0
schema: v1
models:
  - name: {model}
    provider: openai
    model: {name}
    apiBase: {address}
    apiKey: fw_int_…
    roles: [chat, edit, apply]""",
    )


def _curl(address: str, name: str) -> str:
    return f"""curl {address}/chat/completions \\
  -H "Authorization: Bearer $OPENAI_API_KEY" \\
  -H "Content-Type: application/json" \\
  -d '{{"model": {name}, "messages": [{{"role": "user", "content": "Say hello"}}]}}'"""


def _r(address: str, name: str) -> str:
    return f"""library(httr2)
answer <- request("{address}/chat/completions") |>
  req_auth_bearer_token(Sys.getenv("OPENAI_API_KEY")) |>
  req_body_json(list(model = {name},
    messages = list(list(role = "user", content = "Say hello")))) |>
  req_retry(max_tries = 5) |>
  req_perform() |>
  resp_body_json()
cat(answer$choices[[1]]$message$content)"""


def _jupyter(address: str, name: str) -> str:
    return f"""import os
from openai import OpenAI

client = OpenAI(base_url="{address}", api_key=os.environ["OPENAI_API_KEY"])
answer = client.chat.completions.create(
    model={name},
    messages=[{{"role": "user", "content": "Say hello"}}],
)
print(answer.choices[0].message.content)"""
