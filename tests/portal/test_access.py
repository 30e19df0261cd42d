"""Who gets in where: every route, every kind of person."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from quotas.models import User
from quotas.services import keys
from tests.portal.scripted_gateway import ScriptedGateway, busy

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_url", "gateway")]

OPEN = re.compile(
    r"^/(status/|status\.json|live/(status|card-line)/|docs/|capacity/|favicon\.ico|join/"
    r"|accounts/(login|logout|signup|password/reset|confirm-email|inactive|login/code|2fa/webauthn/"
    r"login|2fa/authenticate|3rdparty/(login|signup)|oidc|verify-email|passkey)"
    r"|api/v1/(schema|docs/|status)|admin/(login|logout|jsi18n)|see-as/end)"
)
ARGUMENTS = {"int": "1", "slug": "nothing", "str": "nothing", "uuid": "0" * 32, "path": "nothing"}


def addresses(resolver: URLResolver | None = None, prefix: str = "/") -> Iterator[str]:
    """Yield one address of every route, with invented arguments."""
    for pattern in (resolver or get_resolver()).url_patterns:
        part = str(pattern.pattern)
        part = re.sub(r"<(?:(\w+):)?\w+>", lambda m: ARGUMENTS.get(m[1] or "str", "nothing"), part)
        part = re.sub(r"\(\?P<\w+>[^()]*(?:\([^()]*\)[^()]*)*\)", "csv", part)
        part = re.sub(r"[\^$\\?]|\\\\Z", "", part)
        if isinstance(pattern, URLPattern):
            yield prefix + part
        else:
            yield from addresses(pattern, prefix + part)


def test_strangers_get_nothing_but_the_open_pages(client: Client) -> None:
    """
    Without an account every route but the listed ones leads to sign-in, or answers 401, 403, 404
    or 405, for reading and for writing.
    """
    got_in = []
    for address in addresses():
        if OPEN.match(address):
            continue
        for method in ("get", "post", "delete"):
            answer = getattr(client, method)(address)
            to_login = answer.status_code == 302 and "/login/" in answer["Location"]
            if not to_login and answer.status_code not in {301, 400, 401, 403, 404, 405}:
                got_in.append((method, address, answer.status_code))

    assert got_in == []


def test_a_closed_status_is_for_members_only(client: Client, as_user: Any, settings: Any) -> None:
    """
    With STATUS_PUBLIC=0 strangers see neither pages nor JSON nor the card line; members see all.
    """
    settings.STATUS_PUBLIC = False
    member = as_user(User.objects.create_user("mia"))

    for page in ("/status/", "/capacity/"):
        assert client.get(page)["Location"].startswith("/accounts/login/?next=")
        assert member.get(page).status_code == 200
    for part in ("/status.json", "/live/status/", "/live/card-line/", "/api/v1/status"):
        assert client.get(part).status_code == 401
        assert member.get(part).status_code == 200
    assert "card-line" not in client.get("/accounts/login/").content.decode()


def test_the_walk_covers_the_portal() -> None:
    """
    The walk over the routes really sees the pages, the API and the OpenAI routes.
    """
    found = set(addresses())

    assert len(found) > 120
    assert {"/keys/", "/usage/", "/api/v1/keys", "/quota/grid/", "/v1/files", "/admin/"} <= found


def test_ordinary_people_stay_out_of_the_admins_rooms(alice: Any, as_user: Any) -> None:
    """
    Somebody without staff rights gets no page of the admin and none of the grid.
    """
    browser = as_user(alice)
    for address in addresses():
        if address.startswith(("/admin/", "/quota/grid/", "/policy/")) and not OPEN.match(address):
            assert browser.get(address).status_code in {301, 302, 403, 404, 405}, address


def test_see_as_reads_and_writes_nothing(
    alice: Any, admin: Any, as_user: Any, gateway: ScriptedGateway
) -> None:
    """
    A superuser looks as a person, sees their pages with a warning, and can change nothing.
    """
    key = keys.issue(owner=alice, name="notebook", service_class="interactive").key
    gateway.live = busy(str(alice.pk))
    browser = as_user(admin)
    browser.post(f"/see-as/{alice.pk}/")
    page = browser.get("/keys/").content.decode()

    assert "notebook" in page
    assert "are looking as alice" in page
    assert browser.post(f"/keys/{key.public_id}/revoke/").status_code == 403
    assert browser.get("/profile/my-data.json").status_code == 403
    assert browser.get("/admin/").status_code == 403
    key.refresh_from_db()
    assert key.revoked_at is None

    browser.post("/see-as/end/")
    assert "notebook" not in browser.get("/keys/").content.decode()


def test_nobody_else_may_see_as(alice: Any, bob: Any, admin: Any, as_user: Any) -> None:
    """
    Ordinary people cannot look as others, and administrators cannot look as administrators.
    """
    as_user(alice).post(f"/see-as/{bob.pk}/")
    assert as_user(alice).get("/").context["user"] == alice
    assert as_user(admin).post(f"/see-as/{admin.pk}/").status_code == 404


def test_messages_are_not_left_for_the_next_person(alice: Any, as_user: Any) -> None:
    """
    What was said after an action is shown once, in that browser.
    """
    browser = as_user(alice)
    key = keys.issue(owner=alice, name="notebook", service_class="interactive").key
    answer = browser.post(f"/keys/{key.public_id}/revoke/", follow=True)

    assert "Revoked notebook" in answer.content.decode()
    assert "Revoked notebook" not in browser.get("/keys/").content.decode()
