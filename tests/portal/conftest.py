"""A gateway that says what a test tells it, and browsers signed in as our people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings
from django.test import Client

from portal.status import source
from tests.portal.scripted_gateway import ScriptedGateway

if TYPE_CHECKING:
    from quotas.models import User


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedGateway]:
    """Return a gateway the pages ask, each page anew."""
    scripted = ScriptedGateway(settings.SECRET_KEY)
    monkeypatch.setattr(source, "_source", source.Source(scripted.url, settings.SECRET_KEY))
    monkeypatch.setattr(source, "FRESH_S", 0.0)
    yield scripted
    source._source._client.close()
    scripted.stop()


@pytest.fixture
def no_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    """Point the pages at a port where nobody listens."""
    monkeypatch.setattr(source, "_source", source.Source("http://127.0.0.1:9", settings.SECRET_KEY))


@pytest.fixture
def as_user(redis_url: str) -> Any:
    """Return a function that gives a browser signed in as a person."""

    def sign_in(user: User) -> Client:
        client = Client()
        client.force_login(user, "portal.accounts.backends.OneHash")
        return client

    return sign_in
