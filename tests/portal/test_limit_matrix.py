"""Each limit at each level, set by page and by API, read back by person and gateway."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from quotas.limits import LimitSpec, offered
from quotas.models import ApiKey, LimitRow, User
from quotas.picture import Scope, take
from quotas.services import keys

pytestmark = pytest.mark.django_db
LEVELS = ("everyone", "group", "user", "key")


@pytest.fixture
def key(alice: User) -> ApiKey:
    """Return a key of Alice."""
    return keys.issue(owner=alice, name="mine", service_class="interactive").key


def by_api(browser: Client, level: str, key: ApiKey, row: dict[str, Any]) -> int:
    """Set a limit with the REST API; returns the status."""
    named = {"group": key.owner.group.name, "user": key.owner.username, "key": key.public_id}
    holder = {level: named[level]} if level in named else {}
    answer = browser.put("/api/v1/admin/limits", holder | row, "application/json")
    return answer.status_code


def by_page(browser: Client, level: str, key: ApiKey, row: dict[str, Any]) -> int:
    """Set a limit with the administrators' form; returns 200 when it was taken."""
    named = {"group": key.owner.group_id, "user": key.owner_id, "key": key.pk}
    holder = {name: named[name] if name == level else "" for name in named}
    fields = {
        "level": level, **holder, "service_class": row["service_class"], "name": row["name"],
        "per": row["per"], "value": row.get("value", ""), "names": ",".join(row.get("names", ())),
        "ends_at_0": "", "ends_at_1": "", "note": "", "seen_edition": "0",
    }  # fmt: skip
    answer = browser.post(reverse("admin:quotas_limitrow_add"), fields)
    return {302: 200}.get(answer.status_code, 400)


def seen(key: ApiKey, spec: LimitSpec, service_class: str, per: str) -> object:
    """Return what a gateway reads."""
    picture = take(timezone.now(), 1, Scope(key_pks=frozenset({key.pk})))
    found = picture.keys[key.digest].limits(service_class)
    return found.allowed_models if spec.is_list else getattr(found, per).get(spec.name)


@pytest.mark.parametrize("way", [by_api, by_page], ids=["api", "page"])
@pytest.mark.parametrize("spec", tuple(offered()), ids=lambda spec: spec.name)
def test_each_limit_at_each_level(
    spec: LimitSpec, way: Any, key: ApiKey, admin: User, as_user: Any
) -> None:
    """What was set is what the gateway reads and what the person is told; misspelt is refused."""
    browser, reader = as_user(admin), as_user(key.owner)
    service_class = spec.classes[-1]
    for number, level in enumerate(LEVELS if "key" in spec.pers else LEVELS[:3], start=7):
        per = spec.usual_per(level)
        row: dict[str, Any] = {"service_class": service_class, "name": spec.name, "per": per}
        row |= {"names": [f"m{number}"]} if spec.is_list else {"value": number}

        assert way(browser, level, key, row | {"name": spec.name + "s"}) == 400
        assert way(browser, level, key, row) == 200

        assert seen(key, spec, service_class, per) == ((f"m{number}",) if spec.is_list else number)
        if level != "key":  # the person's list is that of the person, not of one key
            told = reader.get("/api/v1/limits").json()
            (mine,) = (
                line
                for line in told
                if (line["name"], line["service_class"], line["per"])
                == (spec.name, service_class, per)
            )
            assert (mine["level"], mine["names"] if spec.is_list else mine["value"]) == (
                level, [f"m{number}"] if spec.is_list else number,
            )  # fmt: skip
        LimitRow.objects.all().delete()
