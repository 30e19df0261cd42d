"""Logs hold no secrets."""

from __future__ import annotations

import pytest

from portal import logs
from quotas.snapshots import credentials, keyformat

KEY = keyformat.generate("interactive")
SERVICE = credentials.sign("secret", credentials.Credential("live", "", 9e9))


@pytest.mark.parametrize(
    "text",
    [
        f"refused {KEY} twice",
        f"GET /x Authorization: Bearer {SERVICE}",
        "connect postgres://fairway:hunter2secret@db/fairway",
        "redis://:hunter2secret@cache:6379/0",
        'headers {"authorization": "bearer abc.def.ghi"}',
    ],
    ids=["key", "credential", "postgres", "redis", "header"],
)
def test_secrets_are_blotted_out(text: str) -> None:
    """
    Keys, credentials, bearer tokens and passwords in addresses never reach a log line.
    """
    shown = str(logs.hide_secrets(None, "info", {"event": text, "exception": text}))

    for secret in (KEY, SERVICE, "hunter2secret", "abc.def.ghi"):
        assert secret not in shown


def test_fields_named_for_secrets_are_hidden_whole() -> None:
    """
    A field called password or secret is hidden whatever it holds; other fields are left alone.
    """
    entry = logs.hide_secrets(None, "info", {"password": "x", "Secret": 3, "event": "y", "n": 1})

    assert entry == {"password": "[hidden]", "Secret": "[hidden]", "event": "y", "n": 1}
