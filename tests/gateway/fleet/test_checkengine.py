"""manage.py checkengine tells an administrator what was found and what to set."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import CommandError, call_command

from tests.gateway.fleet.conftest import LlamaServer
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
    assert "2048 tokens per slot" in text
    assert "--metrics" not in text


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


def test_nobody_there_is_one_sentence() -> None:
    """
    An address where nothing answers ends the command with a plain sentence and a failure.
    """
    with pytest.raises(CommandError, match="cannot be used now"):
        run(f"http://127.0.0.1:{free_port()}", "--timeout", "1")


def test_a_typed_address_must_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """
    With --typed the list of ENGINE_HOSTS applies, and link-local addresses are refused always.
    """
    monkeypatch.setenv("ENGINE_HOSTS", "10.1.0.0/16")
    with pytest.raises(CommandError, match="ENGINE_HOSTS"):
        run("http://127.0.0.1:1", "--typed")
    with pytest.raises(CommandError, match="link-local"):
        run("http://169.254.169.254/")
