"""The manual's code, taken from its pages as a reader copies it and run against the product.

Programs that install slowly (LangChain, llm, a Jupyter kernel, R) are run with `make test-long`.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.rig import clients
from tests.rig.llama import MODEL, Llama
from tests.rig.product import Product

pytestmark = [pytest.mark.journey, pytest.mark.usefixtures("llama")]

ANSWER_S = 120
NOTEBOOK = """
import nbformat, sys
from nbclient import NotebookClient
book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(open(sys.argv[1]).read())])
NotebookClient(book, timeout=100, kernel_name="python3").execute()
print("".join(part["text"] for part in book.cells[0].outputs if part.output_type == "stream"))
"""


@pytest.fixture(scope="module")
def secret(product: Product, llama: Llama) -> str:
    return product.key("reader-of-the-manual")


def shown(product: Product, code: str, page: str = "clients") -> str:
    """Return a piece of code as it stands on its page."""
    text = httpx.get(f"{product.url}/docs/{page}/", timeout=30).text
    found = re.search(rf'<code id="{code}">(.*?)</code>', text, re.DOTALL)
    assert found, f"{page} shows no {code}"
    return html.unescape(found[1])


def run(command: list[str], product: Product, secret: str, folder: Path, **more: str) -> str:
    """Run a program with the two variables the manual names; return what it printed."""
    names = ("PATH", "SSL_CERT_FILE", "LANG")
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=ANSWER_S,
        env={**{n: os.environ[n] for n in names if n in os.environ}, "HOME": str(folder),
             "OPENAI_API_KEY": secret, "OPENAI_BASE_URL": f"{product.url}/v1", **more},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    return done.stdout


def test_curl_and_python_work_as_shown(product: Product, secret: str, tmp_path: Path) -> None:
    """The quickstart's and the guides' curl and Python print an answer of the model."""
    python = str(clients.environment("3").python)

    told = json.loads(
        run(["bash", "-c", shown(product, "s-guide-curl")], product, secret, tmp_path)
    )
    assert told["choices"][0]["message"]["content"].strip()
    streamed = run(
        ["bash", "-c", shown(product, "q-curl", "quickstart")], product, secret, tmp_path
    )
    assert streamed.rstrip().endswith("data: [DONE]")
    for code, page in (("q-py", "quickstart"), ("s-guide-jupyter", "clients")):
        assert run([python, "-c", shown(product, code, page)], product, secret, tmp_path).strip()


def test_open_webui_and_editors_get_what_they_ask_for(product: Product, secret: str) -> None:
    """Their configuration as shown leads to answers for the requests these programs send."""
    webui = dict(line.split("=", 1) for line in shown(product, "s-guide-webui").splitlines())
    editor = yaml.safe_load(shown(product, "s-guide-editor"))["models"][0]
    bearer = {"authorization": f"Bearer {secret}"}
    chat: dict[str, Any] = {"messages": [{"role": "user", "content": "Say hello"}]}

    address = webui["OPENAI_API_BASE_URL"]
    models = httpx.get(f"{address}/models", headers=bearer, timeout=30).json()["data"]
    assert MODEL in {model["id"] for model in models}
    sent = {"x-openwebui-user-name": "Ada", "x-openwebui-user-id": "7", **bearer}
    asked = {**chat, "model": MODEL, "stream": True, "stream_options": {"include_usage": True}}
    events = httpx.post(f"{address}/chat/completions", headers=sent, json=asked, timeout=ANSWER_S)
    assert events.text.rstrip().endswith("data: [DONE]")
    title = {**chat, "model": MODEL, "stream": False, "max_completion_tokens": 8,
             "metadata": {"task": "title_generation"}}  # fmt: skip
    small = httpx.post(f"{address}/chat/completions", headers=sent, json=title, timeout=ANSWER_S)
    assert small.json()["usage"]["completion_tokens"] <= 8

    tool = {"type": "function", "function": {"name": "read_file", "parameters": {
        "type": "object", "properties": {"path": {"type": "string"}}}}}  # fmt: skip
    agent = {
        "model": editor["model"], "stream": True, "tools": [tool], "tool_choice": "auto",
        "parallel_tool_calls": False, "max_tokens": 8,
        "messages": [{"role": "system", "content": [{"type": "text", "text": "You edit code."}]},
                     {"role": "user", "content": [{"type": "text", "text": "Say hello"}]}],
    }  # fmt: skip
    answer = httpx.post(
        f"{editor['apiBase']}/chat/completions", headers=bearer, json=agent, timeout=ANSWER_S
    )
    assert answer.status_code == 200, answer.text
    assert answer.text.rstrip().endswith("data: [DONE]")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_langchain_llm_and_a_notebook_work_as_shown(
    product: Product, secret: str, tmp_path: Path
) -> None:
    """LangChain, the llm command and a notebook with a kernel of its own print an answer."""
    python = clients.installed("guides")

    chain = shown(product, "s-guide-langchain")
    assert run([str(python), "-c", chain], product, secret, tmp_path).strip()
    (tmp_path / "cell.py").write_text(shown(product, "s-guide-jupyter"))
    book = run([str(python), "-c", NOTEBOOK, "cell.py"], product, secret, tmp_path)
    assert book.strip()

    (tmp_path / "extra-openai-models.yaml").write_text(shown(product, "s-guide-llm-file"))
    command = ["bash", "-e", "-c", shown(product, "s-guide-llm")]
    path = f"{python.parent}:{os.environ['PATH']}"
    assert run(command, product, secret, tmp_path, PATH=path, LLM_USER_PATH=str(tmp_path)).strip()


@pytest.mark.long
@pytest.mark.skipif(not shutil.which("Rscript"), reason="R with httr2 is not installed")
def test_r_works_as_shown(product: Product, secret: str, tmp_path: Path) -> None:
    """R with httr2 prints an answer."""
    (tmp_path / "ask.R").write_text(shown(product, "s-guide-r"))

    assert run(["Rscript", "ask.R"], product, secret, tmp_path).strip()
