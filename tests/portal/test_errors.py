"""Error pages when something behind them is away."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.cache import caches
from django.db import OperationalError
from django.test import Client, RequestFactory
from redis.exceptions import ConnectionError as RedisAway

from portal import errors

DEAD_REDIS = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": "redis://127.0.0.1:9/0",
    },
    "process": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
}


@pytest.mark.parametrize("cause", [OperationalError("no route"), RedisAway("refused")])
@pytest.mark.parametrize(
    ("address", "kind"), [("/keys/", "text/html"), ("/v1/files", "application/json")]
)
@pytest.mark.usefixtures("no_gateway")
def test_a_store_that_is_away_is_503_before_any_view(
    cause: Exception, address: str, kind: str
) -> None:
    """
    A lost store is 503 also where it is noticed while the session is read, and the page is built
    without asking the database.
    """
    try:
        raise cause
    except (OperationalError, RedisAway):
        answer = errors.broken(RequestFactory().get(address))

    assert answer.status_code == 503
    assert answer["Content-Type"].startswith(kind)


@pytest.mark.usefixtures("no_gateway")
def test_our_own_faults_stay_500() -> None:
    """
    A programming error is 500 with the request id and no word of what broke.
    """
    request = RequestFactory().get("/keys/", headers={})
    request.META["FAIRWAY_REQUEST_ID"] = "req_1"
    try:
        raise RuntimeError("secret detail")
    except RuntimeError:
        answer = errors.broken(request)

    assert answer.status_code == 500
    assert "req_1" in answer.content.decode()
    assert "secret detail" not in answer.content.decode()


@pytest.mark.django_db
@pytest.mark.usefixtures("no_gateway")
def test_pages_open_while_redis_is_away(alice: Any, as_user: Any, settings: Any) -> None:
    """
    Reading pages needs no Redis; signing in, whose tries are counted there, is 503 and not open.
    """
    browser = as_user(alice)
    settings.CACHES = DEAD_REDIS

    for address in ("/", "/keys/", "/usage/", "/status/", "/docs/"):
        assert browser.get(address).status_code == 200, address
    answer = Client().post("/accounts/login/", {"login": "alice", "password": "correct horse"})
    assert (answer.status_code, answer["Retry-After"]) == (503, "5")
    caches.close_all()
