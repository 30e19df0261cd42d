"""Code that works when pasted: it holds this installation's address, a key and a model."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

SAY = "Say hello"


@dataclass(frozen=True, slots=True)
class Snippet:
    """One piece of code with its name and the id its copy button uses."""

    slug: str
    name: str
    code: str


def for_key(*, base_url: str, secret: str, model: str) -> tuple[Snippet, ...]:
    """Return the snippets for curl, Python, JavaScript and the environment."""
    return (
        Snippet("curl", "curl", curl(base_url, secret, model)),
        Snippet("python", "Python, openai package", python(base_url, secret, model)),
        Snippet("js", "JavaScript, openai package", javascript(base_url, secret, model)),
        Snippet("env", "Environment, read by most programs", environment(base_url, secret)),
    )


def curl(base_url: str, secret: str, model: str) -> str:
    """Return a streamed chat with curl; the body is quoted for the shell as a whole."""
    body = json.dumps(
        {"model": model, "stream": True, "messages": [{"role": "user", "content": SAY}]},
        ensure_ascii=False,
    )
    return (
        f"curl -N {shlex.quote(base_url + '/v1/chat/completions')} \\\n"
        f'  -H "Authorization: Bearer {secret}" \\\n'
        '  -H "Content-Type: application/json" \\\n'
        f"  -d {shlex.quote(body)}"
    )


def python(base_url: str, secret: str, model: str) -> str:
    """Return a chat with the official Python client."""
    return (
        "from openai import OpenAI\n\n"
        "client = OpenAI(\n"
        f"    base_url={json.dumps(base_url + '/v1')},\n"
        f"    api_key={json.dumps(secret)},\n"
        ")\n"
        "answer = client.chat.completions.create(\n"
        f"    model={json.dumps(model, ensure_ascii=False)},\n"
        f'    messages=[{{"role": "user", "content": {json.dumps(SAY)}}}],\n'
        ")\n"
        "print(answer.choices[0].message.content)"
    )


def javascript(base_url: str, secret: str, model: str) -> str:
    """Return a chat with the official JavaScript client."""
    return (
        'import OpenAI from "openai";\n\n'
        "const client = new OpenAI({\n"
        f"  baseURL: {json.dumps(base_url + '/v1')},\n"
        f"  apiKey: {json.dumps(secret)},\n"
        "});\n"
        "const answer = await client.chat.completions.create({\n"
        f"  model: {json.dumps(model, ensure_ascii=False)},\n"
        f'  messages: [{{ role: "user", content: {json.dumps(SAY)} }}],\n'
        "});\n"
        "console.log(answer.choices[0].message.content);"
    )


def environment(base_url: str, secret: str) -> str:
    """Return the two variables most programs read."""
    return f"OPENAI_BASE_URL={base_url}/v1\nOPENAI_API_KEY={secret}"
