"""The rig keeps its own promises."""

from __future__ import annotations

import socket

import pytest
import redis

from tests.rig import network


def test_other_machines_are_out_of_reach() -> None:
    """A connection that would leave this machine is refused before a packet is sent."""
    with socket.socket() as plain, pytest.raises(network.Refused):
        plain.connect(("192.0.2.1", 80))
    assert network.refused() == ["192.0.2.1:80"]
    network.forget()


def test_redis_is_empty_at_the_start(redis_url: str) -> None:
    """Each test that asks for Redis finds it empty."""
    with redis.Redis.from_url(redis_url) as link:
        assert link.dbsize() == 0
        link.set("left", "over")


def test_redis_is_empty_again(redis_url: str) -> None:
    """What the test before left is gone."""
    with redis.Redis.from_url(redis_url) as link:
        assert link.dbsize() == 0


@pytest.mark.django_db
def test_the_database_is_postgresql() -> None:
    """There is no second database engine to keep in step."""
    from django.db import connection

    assert connection.vendor == "postgresql"
