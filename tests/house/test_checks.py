"""Settings that do not go together are found before anything starts."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import LazySettings

from portal import checks


def ids(found: list[Any]) -> list[str]:
    assert all(message.hint for message in found), "a finding must say what to do"
    return [message.id for message in found]


@pytest.mark.parametrize(
    ("production", "allowed", "expected"),
    [
        (True, False, ["fairway.E001", "fairway.E002"]),
        (True, True, []),
        (False, False, []),
    ],
)
def test_production_on_embedded_stores_needs_a_word(
    settings: LazySettings, production: bool, allowed: bool, expected: list[str]
) -> None:
    """Production refuses embedded stores, each by its setting, unless they are allowed."""
    settings.PRODUCTION, settings.ALLOW_EMBEDDED_STORES = production, allowed
    settings.EMBEDDED_DATABASE = settings.EMBEDDED_REDIS = True

    assert ids(checks.embedded_stores()) == expected


@pytest.mark.parametrize(
    ("processes", "ledger", "expected"),
    [(2, "memory", ["fairway.E003"]), (2, "redis", []), (1, "memory", []), (2, "", [])],
)
def test_several_gateways_share_their_ledger(
    settings: LazySettings,
    monkeypatch: pytest.MonkeyPatch,
    processes: int,
    ledger: str,
    expected: list[str],
) -> None:
    """Two gateways that each count for themselves would double every cap, so it is refused."""
    settings.GATEWAY_PROCESSES = processes
    monkeypatch.setenv("LEDGER", ledger)

    assert ids(checks.shared_ledger()) == expected


def test_test_switches_are_refused_in_production(
    settings: LazySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What tests use to break things cannot be left on by accident."""
    settings.PRODUCTION = True
    monkeypatch.setenv("FAILPOINTS", "claim:exit:1")
    monkeypatch.setenv("TEST_CLOCK", "1")

    assert ids(checks.switches_of_tests()) == ["fairway.E005", "fairway.E006"]


def test_unknown_engine_kind_is_named(settings: LazySettings) -> None:
    """A misspelt kind is refused at the start with the kinds there are."""
    settings.ENGINE_KIND = "lama"

    (found,) = checks.engine_kind()

    assert found.id == "fairway.E004"
    assert "llamacpp" in str(found.hint)
