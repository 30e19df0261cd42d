"""What the tests of the books share: an empty server and an easy way to issue keys."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import redis

    from quotas.models import User
    from quotas.services.keys import IssuedKey


@pytest.fixture
def valkey(redis_url: str, settings: Any) -> redis.Redis:
    """Return the books' own connection to an empty server."""
    from quotas import stores

    settings.REDIS_URL = redis_url
    return stores.connect()


@pytest.fixture
def issue() -> Callable[..., IssuedKey]:
    """Issue keys with few words."""
    from quotas.services import keys

    def make(
        owner: User, name: str = "laptop", service_class: str = "interactive", **more: Any
    ) -> IssuedKey:
        return keys.issue(owner=owner, name=name, service_class=service_class, **more)

    return make
