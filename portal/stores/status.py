"""Asks both stores, wherever they are, whether they answer."""

from __future__ import annotations

import psycopg
import redis

from portal import logs
from portal.stores.errors import StoreError

TIMEOUT_S = 5


def postgres(url: str) -> str:
    """Return the server's version, or fail with the reason."""
    try:
        with psycopg.connect(url, connect_timeout=TIMEOUT_S) as link:
            row = link.execute("SELECT current_setting('server_version')").fetchone()
    except psycopg.Error as error:
        raise StoreError(_first_line(error)) from None
    return f"PostgreSQL {row[0] if row else 'unknown'}"


def valkey(url: str) -> str:
    """Return the server's version, or fail with the reason."""
    try:
        with redis.Redis.from_url(url, socket_timeout=TIMEOUT_S) as link:
            info = link.info("server")
    except (redis.RedisError, ValueError) as error:
        raise StoreError(_first_line(error)) from None
    assert isinstance(info, dict)  # noqa: S101  (the client is not the asynchronous one)
    known = info.get("valkey_version")
    return f"Valkey {known}" if known else f"Redis {info.get('redis_version')}"


def require(database_url: str, redis_url: str) -> None:
    """Fail with one sentence unless both answer."""
    for name, ask, url in (
        ("DATABASE_URL", postgres, database_url),
        ("REDIS_URL", valkey, redis_url),
    ):
        try:
            ask(url)
        except StoreError as error:
            raise StoreError(
                f"The store of {name} does not answer ({error}): start it, or correct {name}."
            ) from None


def _first_line(error: Exception) -> str:
    return logs.without_secrets(str(error)).strip().split("\n")[0]
