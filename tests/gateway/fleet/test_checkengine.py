"""manage.py checkengine tells an administrator what was found and what to set."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from gateway.engines.base import Page
from gateway.engines.check import check
from gateway.engines.detect import recognise
from tests.gateway.fleet.conftest import LlamaServer
from tests.gateway.fleet.pages import page, recorded
from tests.rig.network import free_port
from tests.rig.witness import Witness


def run(*arguments: str) -> str:
    """Run the command and return what it printed."""
    out = io.StringIO()
    call_command("checkengine", *arguments, stdout=out)
    return out.getvalue()


def test_a_real_llamacpp_is_described(llama: LlamaServer) -> None:
    """
    Kind, model, slots and context of a real llama.cpp are said in plain words.
    """
    text = run(llama.url)

    assert "is llama.cpp's server" in text
    assert "It is up." in text
    assert "2048 tokens for each request" in text
    assert "--metrics" not in text
    assert f"manage.py addengine {llama.url}" in text.splitlines()[-1]


def test_json_is_for_machines(llama: LlamaServer) -> None:
    """
    With --json everything found comes as one object, unknown as null.
    """
    found = json.loads(run(llama.url, "--json"))

    assert found["facts"]["kind"] == "llamacpp"
    assert (found["facts"]["slots"], found["facts"]["model"]) == (4, "tiny")
    assert found["reading"]["kv_usage"] is None


def test_vllm_is_told_its_own_flags(witness: Witness) -> None:
    """
    For vLLM the advice names the flags that make the two schedulers work together.
    """
    text = run(witness.url + "/v1")

    assert "is vLLM" in text
    for flag in (
        "--max-num-seqs",
        "--scheduling-policy priority",
        "--enable-prompt-tokens-details",
    ):
        assert flag in text


RECORDED = {path: recorded("vllm", path.rpartition("/")[2]) for path in (
    "/health", "/metrics", "/v1/models", "/version", "/is_sleeping")}  # fmt: skip
SGLANG = {
    "/health": page(b""),
    "/metrics": page(b"sglang:num_running_reqs 3.0\n"),
    "/v1/models": page(b'{"data": [{"id": "m", "owned_by": "sglang"}]}'),
    "/get_server_info": page(
        b'{"max_running_requests": 48, "enable_priority_scheduling": true, '
        b'"disable_priority_preemption": true, "enable_cache_report": true}'
    ),
}
LISTS_MODELS = {"/v1/models": page(b'{"data": [{"id": "m"}]}')}


@pytest.mark.parametrize(
    ("pages", "kind", "command", "unsaid"),
    [
        (RECORDED, "vLLM, version 0.32.0", "--slots NUMBER", "--enable-metrics"),
        (SGLANG, "SGLang", "--takes-priority", "What to set"),
        (LISTS_MODELS, "does not know", "--kind openai --slots NUMBER", "--metrics"),
    ],
)
def test_each_kind_is_told_what_is_left_to_do(
    pages: dict[str, Page], kind: str, command: str, unsaid: str
) -> None:
    """
    What an engine answered is named, only what is still missing is advised, and the last line
    registers it as it is.
    """
    lines = check("http://gpu1:8000", recognise(pages), pages).lines()

    assert kind in lines[0]
    assert lines[-1] == f"  manage.py addengine http://gpu1:8000 {command}"
    assert unsaid not in "\n".join(lines)


def test_nobody_there_is_one_sentence() -> None:
    """
    An address where nothing answers ends the command with a plain sentence and a failure.
    """
    url, out = f"http://127.0.0.1:{free_port()}", io.StringIO()
    with pytest.raises(CommandError, match="cannot be used now"):
        call_command("checkengine", url, "--timeout", "1", stdout=out)
    assert out.getvalue().startswith(f"Nothing listens at {url}.")


WEB = page(b"<!doctype html><title>Welcome</title>")
NOTHING = page(b"", 404)


@pytest.mark.parametrize(
    ("pages", "words"),
    [
        (dict.fromkeys(["/health", "/v1/models", "/metrics"], WEB), "it sent a web page"),
        (dict.fromkeys(["/health", "/v1/models"], NOTHING), "it answered 404 for /v1/models"),
        ({"/health": page(b""), "/v1/models": page(b"{}")}, "lists no models"),
        ({"/health": Page(0, timed_out=True)}, "--timeout"),
        ({"/health": page(b""), "/v1/models": page(b"", 401)}, "asks for a key"),
    ],
)
def test_what_is_no_engine_is_said_to_be_none(pages: dict[str, Page], words: str) -> None:
    """
    A web server, a wrong port, silence and a closed door are told apart, and none is registered.
    """
    found = check("http://gpu1:8000", recognise(pages), pages)

    assert words in "\n".join(found.lines())
    assert not found.usable
    assert "addengine http" not in "\n".join(found.lines())


@pytest.mark.parametrize("kind", ["vllm", "llamacpp"])
def test_an_engine_with_a_key_is_tried_with_it(
    witness: Witness, kind: str, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    """
    Without its key nothing is found, with a wrong one neither; the right one comes from standard
    input or, for the engine of the environment, from ENGINE_API_KEY, and is never printed.
    """
    witness.tell(kind=kind, api_key="sk-right")
    settings.ENGINE_URL, settings.ENGINE_API_KEY = witness.url, "sk-wrong"
    out = io.StringIO()
    with pytest.raises(CommandError, match="cannot be used now"):
        call_command("checkengine", witness.url, "--timeout", "30", stdout=out)
    assert "refuses the key" in out.getvalue()

    settings.ENGINE_API_KEY = "sk-right"
    monkeypatch.setattr(sys, "stdin", io.StringIO("sk-right\n"))
    patient = (witness.url, "--timeout", "30")
    for text in (run(*patient), run(*patient, "--api-key")):
        assert "It is up." in text
        assert text.splitlines()[-1].endswith("--api-key")
        assert "sk-right" not in text


def test_a_typed_address_must_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    With --typed the list of ENGINE_HOSTS applies, and link-local addresses are refused always.
    """
    monkeypatch.setenv("ENGINE_HOSTS", "10.1.0.0/16")
    with pytest.raises(CommandError, match="ENGINE_HOSTS"):
        run("http://127.0.0.1:1", "--typed")
    with pytest.raises(CommandError, match="link-local"):
        run("http://169.254.169.254/")
