"""The books' connection to Redis."""

from __future__ import annotations

from functools import lru_cache

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

TIMEOUT_S = 5.0


@lru_cache(maxsize=4)
def _client(url: str) -> redis.Redis:
    return redis.Redis.from_url(
        url,
        socket_timeout=TIMEOUT_S,
        socket_connect_timeout=2.0,
        # Retrying is the caller's decision: a publisher gives up, the usage writer starts over.
        retry=Retry(NoBackoff(), 0),
    )


def connect() -> redis.Redis:
    """Return this process's client; made on first use, safe across threads."""
    return _client(settings.REDIS_URL)
