"""A printed password is good for one thing: choosing another."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from portal import preparation
from portal.accounts import first_password
from portal.accounts.models import OneTimePassword
from quotas.models import User
from tests.portal.scripted_gateway import ScriptedGateway

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_url", "gateway")]

CHANGE = "/accounts/password/change/"
OWN = "a password of my own choice"


def signed_in(name: str, password: str) -> Client:
    """Return a browser that went through the sign-in page."""
    client = Client()
    assert client.post("/accounts/login/", {"login": name, "password": password}).status_code == 302
    return client


def change(client: Client, old: str, new: str) -> Any:
    """Fill in the page that changes the password."""
    return client.post(CHANGE, {"oldpassword": old, "password1": new, "password2": new})


def test_the_first_administrator_chooses_a_password_before_anything_else() -> None:
    """Every page leads to the change until it is done; programs' addresses refuse the session."""
    admin = preparation.ensure_admin()
    assert admin.password
    client = signed_in(admin.username, admin.password)

    for address in ("/", "/keys/", "/admin/", "/usage/", "/profile/", "/status/"):
        answer = client.get(address)
        assert (answer.status_code, answer["Location"]) == (302, CHANGE), address
    assert client.post("/keys/new/", {"name": "x", "service_class": "batch"})["Location"] == CHANGE
    assert client.get("/api/v1/keys").status_code == 403
    assert "Choose a password of your own" in client.get(CHANGE).content.decode()

    again = change(client, admin.password, admin.password)
    assert "the password you have now" in again.content.decode()
    assert change(client, admin.password, OWN)["Location"] == "/"
    assert client.get("/keys/").status_code == 200
    assert signed_in(admin.username, OWN).get("/keys/").status_code == 200
    assert preparation.ensure_admin().password is None


def test_a_second_browser_is_held_too(alice: Any) -> None:
    """Leaving without choosing frees nobody: the next sign-in ends at the same page."""
    first_password.give(alice, "printed somewhere")

    for _ in range(2):
        browser = signed_in("alice", "printed somewhere")
        assert browser.get("/")["Location"] == CHANGE
    assert browser.post("/accounts/logout/").status_code == 302


def test_people_with_their_own_password_notice_nothing(
    alice: Any, as_user: Any, gateway: ScriptedGateway
) -> None:
    """Nobody else is asked, and no page pays a query for the question."""
    assert as_user(alice).get("/keys/").status_code == 200
    assert not OneTimePassword.objects.exists()


def test_a_password_an_administrator_typed_is_a_first_password_too(
    as_user: Any, admin: Any
) -> None:
    """A person added or helped in the administration chooses anew; an institute's needs none."""
    desk = as_user(admin)
    page = desk.get("/admin/quotas/user/add/").content.decode()
    for field in ("username", "email", "group", "password1"):
        assert f'name="{field}"' in page, field

    typed = {"password1": "typed at the desk", "password2": "typed at the desk"}
    desk.post("/admin/quotas/user/add/", {"username": "dora", "usable_password": "true", **typed})
    desk.post("/admin/quotas/user/add/", {"username": "emil", "usable_password": "false"})
    assert signed_in("dora", typed["password1"]).get("/")["Location"] == CHANGE
    assert list(OneTimePassword.objects.values_list("user__username", flat=True)) == ["dora"]

    dora, emil = User.objects.get(username="dora"), User.objects.get(username="emil")
    first_password.chosen(dora)
    for person in (dora, emil, admin):
        address = f"/admin/quotas/user/{person.pk}/password/"
        assert desk.post(address, {"usable_password": "true", **typed}).status_code == 302
    held = OneTimePassword.objects.values_list("user__username", flat=True)
    assert set(held) == {"dora", "emil"}
