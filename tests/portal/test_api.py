"""The portal's API."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from quotas.models import ApiKey, LimitRow, UsageEvent
from quotas.services import keys
from quotas.snapshots import keyformat

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_url", "gateway")]

NEW = {"name": "script", "service_class": "batch"}


def by_key(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


def test_a_key_is_made_used_changed_and_revoked(alice: Any, as_user: Any) -> None:
    """
    The life of a key through the API: made with its secret once, renamed, rotated, revoked.
    """
    browser = as_user(alice)
    made = browser.post("/api/v1/keys", NEW, "application/json")
    body = made.json()
    address = f"/api/v1/keys/{body['id']}"

    assert (made.status_code, made["Cache-Control"]) == (201, "no-store")
    assert keyformat.digest(body["secret"]) == ApiKey.objects.get().digest
    assert "secret" not in browser.get(address).json()
    assert browser.patch(address, {"name": "x"}, "application/json").json()["name"] == "x"
    rotated = browser.post(f"{address}/rotate", {"overlap_hours": 1}, "application/json").json()
    assert rotated["secret"] != body["secret"]
    assert browser.delete(address).status_code == 204
    assert browser.get(address).json()["state"] == "revoked"


def test_a_key_may_read_and_not_write(alice: Any, client: Client) -> None:
    """
    A program reads its owner's usage with a key; it cannot make, change or revoke keys.
    """
    issued = keys.issue(owner=alice, name="script", service_class="batch")
    mine = f"/api/v1/keys/{issued.key.public_id}"

    for path in ("keys", "usage", "requests", "limits", "status"):
        assert client.get(f"/api/v1/{path}", headers=by_key(issued.secret)).status_code == 200
    for method, path in (("post", "/api/v1/keys"), ("patch", mine), ("delete", mine)):
        answer = getattr(client, method)(
            path, NEW, "application/json", headers=by_key(issued.secret)
        )
        assert answer.status_code == 403
    assert ApiKey.objects.filter(revoked_at=None).count() == 1


def test_a_key_that_may_manage_does_what_its_owner_may(
    alice: Any, bob: Any, admin: Any, client: Client
) -> None:
    """
    It makes, changes and revokes its owner's keys, and sets limits where the owner is an
    administrator; it touches nobody else's things and cannot make another that may manage.
    """
    mine = keys.issue(owner=alice, name="rotator", service_class="batch", may_manage=True)
    theirs = keys.issue(owner=bob, name="other", service_class="batch").key
    limit = {"user": "alice", "service_class": "batch", "name": "queued", "per": "key", "value": 3}

    def ask(method: str, path: str, body: Any, secret: str = mine.secret) -> Any:
        return getattr(client, method)(
            f"/api/v1/{path}", body, "application/json", headers=by_key(secret)
        )

    made = ask("post", "keys", NEW)
    assert (made.status_code, made.json()["may_manage"]) == (201, False)
    assert ask("patch", f"keys/{made.json()['id']}", {"name": "renamed"}).status_code == 200
    assert ask("delete", f"keys/{made.json()['id']}", None).status_code == 204
    assert ask("post", "keys", NEW | {"name": "y", "may_manage": True}).status_code == 403
    assert ask("delete", f"keys/{theirs.public_id}", None).status_code == 404
    assert ask("put", "admin/limits", limit).status_code == 403
    of_admin = keys.issue(owner=admin, name="desk", service_class="batch", may_manage=True).secret
    assert ask("put", "admin/limits", limit, of_admin).status_code == 200
    assert not ApiKey.objects.filter(may_manage=True).exclude(name__in=["rotator", "desk"]).exists()


@pytest.mark.parametrize("header", ["", "Bearer fw_int_wrong", "Bearer", "Basic YTpi"])
def test_nobody_gets_in_without_a_key(client: Client, header: str) -> None:
    """
    Without a session or a live key the API answers 401 in its documented shape.
    """
    answer = client.get("/api/v1/keys", headers={"authorization": header} if header else {})

    assert answer.status_code == 401
    assert answer.json()["type"] == "client_error"


def test_a_revoked_key_no_longer_reads(alice: Any, client: Client) -> None:
    """
    Revoking a key ends it for the portal as for the gateway.
    """
    issued = keys.issue(owner=alice, name="script", service_class="batch")
    keys.revoke(key=issued.key)

    assert client.get("/api/v1/usage", headers=by_key(issued.secret)).status_code == 401


def test_a_session_needs_its_token_to_write(alice: Any, as_user: Any) -> None:
    """
    A page of another site cannot write with the reader's session.
    """
    browser = as_user(alice)
    browser.handler.enforce_csrf_checks = True

    assert browser.post("/api/v1/keys", NEW, "application/json").status_code == 403
    assert not ApiKey.objects.exists()


@pytest.mark.parametrize("method", ["get", "patch", "delete"])
def test_somebody_elses_key_is_404(alice: Any, bob: Any, as_user: Any, method: str) -> None:
    """
    For a foreign key the answer is the same as for none.
    """
    key = keys.issue(owner=alice, name="script", service_class="batch").key
    answer = getattr(as_user(bob), method)(f"/api/v1/keys/{key.public_id}", {}, "application/json")

    assert answer.status_code == 404
    assert ApiKey.objects.filter(revoked_at=None).exists()


def test_requests_come_page_by_page_and_only_mine(alice: Any, bob: Any, as_user: Any) -> None:
    """
    A cursor walks all own requests once, newest first, and never another person's.
    """
    from tests.portal.usage import event

    UsageEvent.objects.bulk_create(
        [event(alice.pk, number) for number in range(7)] + [event(bob.pk, 100)]
    )
    browser, seen, after = as_user(alice), [], ""
    while True:
        page = browser.get("/api/v1/requests", {"limit": 3, "after": after}).json()
        seen += [row["request_id"] for row in page["data"]]
        after = page["after"]
        if not page["has_more"]:
            break

    assert seen == [f"req_{number}" for number in range(7)]


@pytest.mark.parametrize("query", ["limit=0", "limit=x", "limit=99999999999999999999", "limit=²"])
def test_wrong_numbers_are_refused(alice: Any, as_user: Any, query: str) -> None:
    """
    A limit that is no small whole number is 400, never 500.
    """
    assert as_user(alice).get(f"/api/v1/requests?{query}").status_code == 400


@pytest.mark.parametrize("path", ["admin/people", "admin/limits"])
def test_admin_routes_are_for_admins(alice: Any, admin: Any, as_user: Any, path: str) -> None:
    """
    Ordinary people get 403 on the routes of administrators.
    """
    assert as_user(alice).get(f"/api/v1/{path}").status_code == 403
    assert as_user(admin).get(f"/api/v1/{path}").status_code in {200, 405}


def test_an_admin_sets_a_limit(admin: Any, alice: Any, as_user: Any) -> None:
    """
    A limit set by API is in the books; a misspelt one or a missing person is refused.
    """
    browser = as_user(admin)
    wanted = {"user": "alice", "service_class": "batch", "name": "queued", "value": 3}

    assert browser.put("/api/v1/admin/limits", wanted, "application/json").status_code == 200
    assert LimitRow.objects.get(user=alice).value == 3
    for change in ({"user": "nobody"}, {"name": "queuedd"}, {"value": -1}):
        answer = browser.put("/api/v1/admin/limits", wanted | change, "application/json")
        assert answer.status_code == 400
    assert LimitRow.objects.count() == 1


def test_the_schema_describes_every_route(client: Client) -> None:
    """
    The OpenAPI schema is served and names each route of the API.
    """
    schema = client.get("/api/v1/schema", headers={"accept": "application/vnd.oai.openapi+json"})

    assert {"/api/v1/keys", "/api/v1/usage", "/api/v1/requests", "/api/v1/limits"} <= set(
        schema.json()["paths"]
    )


def test_who_belongs_to_no_group_fits_the_schema(admin: Any, as_user: Any) -> None:
    """
    A person without a group is null in the list, and the schema says that it may be.
    """
    assert as_user(admin).get("/api/v1/admin/people").json()[0]["group"] is None
    schema = as_user(admin).get("/api/v1/schema?format=json").json()
    assert schema["components"]["schemas"]["Person"]["properties"]["group"]["nullable"] is True
