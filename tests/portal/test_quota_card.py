"""The quota card shows what the gate counts, and says so when nobody can tell."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from portal.home import quota
from portal.status import source
from quotas.models import User
from quotas.services import keys, limits
from quotas.services.limits import Holder
from tests.portal.scripted_gateway import ScriptedGateway

pytestmark = pytest.mark.django_db
NOW = dt.datetime(2026, 11, 20, 15, 43, tzinfo=dt.UTC)


def gauges(person: User) -> dict[tuple[str, str], quota.Gauge]:
    card = quota.card(person, source.read(), NOW)
    return {(g.label, g.over): g for g in card if g.service_class == "interactive"}


def limit(name: str, value: int, per: str, **holder: Any) -> None:
    limits.set_limit(
        holder=Holder(**holder), service_class="interactive", name=name, value=value, per=per
    )


def test_the_card_shows_the_gate_s_own_number(gateway: ScriptedGateway, alice: User) -> None:
    """Used and reset are what the gateway told, also of limits of each key and of the group."""
    keys.issue(owner=alice, name="one", service_class="interactive")
    limit("tokens_per_day", 1000, "person", user=alice)
    limit("tokens_per_month", 5000, "group", group=alice.group)
    limit("requests_per_minute", 10, "key", user=alice)
    gateway.used = {"tokens_per_day": 640, "tokens_per_month": 1234, "requests_per_minute": 3}

    shown = gauges(alice)

    day = shown["Tokens per day", quota.OVER["person"]]
    assert (day.used, day.limit, day.origin) == (640, 1000, "set for you")
    assert day.resets_at == dt.datetime.fromtimestamp(1_800_000_000, dt.UTC)
    assert day.binds_first
    assert shown["Tokens per month", quota.OVER["group"]].used == 1234
    minute = shown["Requests per minute", quota.OVER["key"]]
    assert (minute.used, minute.resets_at) == (3, None)


def test_without_a_gateway_nothing_is_guessed(no_gateway: None, alice: User) -> None:
    """What nobody can tell is unknown, not zero."""
    limit("tokens_per_day", 1000, "person", user=alice)

    assert gauges(alice)["Tokens per day", quota.OVER["person"]].used is None
