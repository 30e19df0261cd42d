"""Signing in: no guessing of passwords or of who has an account."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.hashers import PBKDF2PasswordHasher
from django.core import mail
from django.core.cache import cache
from django.test import Client

from portal.templatetags.voice import labels_in_sentence_case, sentence_case

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_url", "gateway")]

LOGIN = "/accounts/login/"


def attempt(client: Client, name: str, password: str = "wrong", **headers: str) -> Any:
    return client.post(LOGIN, {"login": name, "password": password}, headers=headers)


def shown(answer: Any, name: str) -> str:
    text = re.sub(r'csrfmiddlewaretoken" value="[^"]+"', "", answer.content.decode())
    return re.sub(r"<time.*?</time>|req_\w+|strip.*?</svg>", "", text.replace(name, "NAME"))


@pytest.mark.parametrize("name", ["alice", "alice@example.org"])
def test_people_sign_in_by_name_or_address(alice: Any, client: Client, name: str) -> None:
    """
    User name and e-mail both work, and lead to the page that was asked for.
    """
    form = {"login": name, "password": "correct horse", "next": "/keys/"}

    assert client.post(LOGIN, form)["Location"] == "/keys/"


def test_a_wrong_password_and_a_stranger_look_the_same(alice: Any, client: Client) -> None:
    """
    Status and page do not tell whether an account exists.
    """
    known, unknown = attempt(client, "alice"), attempt(client, "nobody")

    assert known.status_code == unknown.status_code == 200
    assert shown(known, "alice") == shown(unknown, "nobody")


class CountedHasher(PBKDF2PasswordHasher):
    """Counts how often a password is hashed; few rounds, the count is what matters."""

    iterations = 10
    hashed = 0

    def encode(self, password: str, salt: str, iterations: int | None = None) -> str:
        CountedHasher.hashed += 1
        return super().encode(password, salt, iterations)


def test_a_stranger_costs_as_much_work_as_a_member(
    alice: Any, client: Client, settings: Any
) -> None:
    """
    One hash is computed whoever is asked for, so the time does not tell who has an account.
    """
    settings.PASSWORD_HASHERS = [f"{__name__}.CountedHasher"]
    alice.set_password("correct horse")
    alice.save()
    work = {}
    for name in ("alice", "nobody", "alice@example.org", "nobody@example.org"):
        CountedHasher.hashed = 0
        attempt(client, name)
        work[name] = CountedHasher.hashed

    assert work == dict.fromkeys(work, 1)


def test_a_reset_tells_nothing_and_mails_only_members(alice: Any, client: Client) -> None:
    """
    Asking for a new password answers the same for everybody; only a member gets a link.
    """
    answers = [
        client.post("/accounts/password/reset/", {"email": address})
        for address in ("alice@example.org", "nobody@example.org")
    ]

    assert len({(answer.status_code, answer["Location"]) for answer in answers}) == 1
    assert [message.to for message in mail.outbox if "/password/reset/key" in message.body] == [
        ["alice@example.org"]
    ]


def test_guessing_is_stopped_whatever_the_client_claims_to_be(alice: Any, client: Client) -> None:
    """
    After some wrong passwords even the right one is refused; a forwarded address that the client
    wrote itself, left of the one our own proxy added, changes nothing.
    """
    cache.clear()
    for number in range(6):
        attempt(client, "alice", **{"x-forwarded-for": f"10.9.8.{number}, 192.0.2.7"})
    claimed = {"x-forwarded-for": "10.1.1.1, 192.0.2.7", "forwarded": "for=1.2.3.4"}
    answer = attempt(client, "alice", "correct horse", **claimed)

    assert answer.status_code in {200, 429}
    assert "_auth_user_id" not in client.session


def test_too_many_tries_get_a_page_that_says_when(client: Client, settings: Any) -> None:
    """
    The page of 429 says how long to wait, and so does its header.
    """
    settings.ACCOUNT_RATE_LIMITS = {"login": "2/m/ip"}
    cache.clear()
    answers = [attempt(client, "nobody") for _ in range(4)]

    assert answers[-1].status_code == 429
    assert answers[-1]["Retry-After"] == "60"
    assert "Too many tries" in answers[-1].content.decode()


def test_signing_up_is_closed_and_says_whom_to_ask(client: Client, settings: Any) -> None:
    """
    Without an open door the page says so and makes no account.
    """
    settings.CONTACT_EMAIL = "gpu@example.org"

    assert "gpu@example.org" in client.get(LOGIN).content.decode()
    assert "Sign Up Closed" in client.get("/accounts/signup/").content.decode()


def test_new_people_wait_for_an_administrator(client: Client, settings: Any) -> None:
    """
    With an open door an account of an allowed domain is made, but lets nobody in yet.
    """
    from quotas.models import User

    settings.SIGN_UP_OPEN, settings.SIGN_UP_DOMAINS = True, ["example.org"]
    form = {"username": "dora", "password1": "correct horse 1", "password2": "correct horse 1"}

    client.post("/accounts/signup/", form | {"email": "dora@elsewhere.net"})
    assert not User.objects.filter(username="dora").exists()
    client.post("/accounts/signup/", form | {"email": "dora@example.org"})
    assert not User.objects.get(username="dora").is_active
    assert client.get("/keys/").status_code == 302


def test_the_institutes_button_carries_its_name(client: Client, settings: Any) -> None:
    """
    With OpenID Connect configured the first button is the institute's own sign-in.
    """
    settings.SOCIALACCOUNT_PROVIDERS = {
        "openid_connect": {
            "APPS": [
                {"provider_id": "institute", "name": "Institute of Astronomy", "client_id": "x",
                 "secret": "y", "settings": {"server_url": "https://sso.example.org"}}
            ]
        }
    }  # fmt: skip
    page = client.get(LOGIN).content.decode()

    assert "Institute of Astronomy account" in page
    assert 'method="post" action="/accounts/oidc/institute/login/' in page


def test_a_sign_in_never_leads_to_another_site(alice: Any, client: Client) -> None:
    """
    An address of another host as the next page is ignored.
    """
    form = {"login": "alice", "password": "correct horse", "next": "https://evil.example/"}

    assert client.post(LOGIN, form)["Location"] == "/"


def test_a_person_switched_off_is_out_at_once(alice: Any, as_user: Any) -> None:
    """
    Switching an account off ends its sessions with the next request.
    """
    from quotas.services import people

    browser = as_user(alice)
    assert browser.get("/keys/").status_code == 200
    people.set_active(user=alice, is_active=False)
    assert browser.get("/keys/").status_code == 302


def test_the_librarys_pages_speak_in_our_voice(client: Client, settings: Any) -> None:
    """Headings, labels and buttons are sentences; what people typed and names stay."""
    page = client.get("/accounts/password/reset/").content.decode()
    assert re.search(r"<h1>\s*Password reset\s*</h1>", page)
    assert "Reset my password" in page

    settings.OIDC_NAME = "Example University"
    assert sentence_case("Sign In Via Example University") == "Sign in via Example University"
    typed = '<label for="a">Key Name</label><input placeholder="Key Name" value="My Laptop">'
    assert labels_in_sentence_case(typed) == (
        '<label for="a">Key name</label><input placeholder="Key name" value="My Laptop">'
    )
