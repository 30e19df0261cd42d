"""Odd numbers and dates are refused with a word about the field; none becomes "no limit"."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.test import Client

from quotas.models import ApiKey, LimitRow, User

pytestmark = pytest.mark.django_db
ODD_NUMBERS = (-1, 2**63 - 1, 1e308, float("nan"), 1.5, "", "1e3", [], {})
ODD_DATES = (0, -1, 2**31, 2**63 - 1, 1e308, float("nan"), "", "soon", "2020-01-01T00:00:00Z")


def send(browser: Client, method: str, path: str, body: dict[str, Any]) -> Any:
    """Send JSON the way a sloppy client would: Python writes NaN as it is."""
    return getattr(browser, method)(path, json.dumps(body), "application/json")


@pytest.mark.parametrize("odd", ODD_NUMBERS, ids=repr)
def test_an_odd_number_is_no_limit_and_no_lifetime(
    odd: object, alice: User, admin: User, as_user: Any
) -> None:
    """A key's days and a limit's value are whole numbers in their range, or a 400 naming them."""
    made = send(as_user(alice), "post", "/api/v1/keys", {
        "name": "k", "service_class": "batch", "days": odd})  # fmt: skip
    row = {"user": "alice", "service_class": "batch", "name": "tokens_per_day", "value": odd}
    limit = send(as_user(admin), "put", "/api/v1/admin/limits", row)

    for answer, field in ((made, "days"), (limit, "value")):
        assert answer.status_code == 400, answer.content
        assert field in answer.content.decode() or "JSON" in answer.content.decode()
    assert not ApiKey.objects.exists()
    assert not LimitRow.objects.exists()


@pytest.mark.parametrize("odd", ODD_DATES, ids=repr)
def test_an_odd_date_ends_nothing(odd: object, alice: User, admin: User, as_user: Any) -> None:
    """Seconds, milliseconds, the past and no date at all are refused; the row is not made."""
    row = {"user": "alice", "service_class": "batch", "name": "tokens_per_day", "value": 5}
    answer = send(as_user(admin), "put", "/api/v1/admin/limits", row | {"ends_at": odd})

    assert answer.status_code == 400, answer.content
    assert not LimitRow.objects.exists()
