"""Signing in with the institute's account, in Chromium, against a provider that signs tokens."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from quotas.models import User
from quotas.services import people
from tests.portal.scripted_gateway import ScriptedGateway
from tests.rig import openid
from tests.rig.browser import chromium

pytestmark = [pytest.mark.journey, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # playwright's loop runs in this thread
        yield running
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.fixture
def institute(settings: Any) -> Iterator[openid.Provider]:
    """Set the portal up with a provider, the way OIDC_* settings do it."""
    provider = openid.Provider(
        people={
            "ada": {"email": "ada@example.org", "email_verified": True, "name": "Ada L.",
                    "preferred_username": "ada", "groups": ["staff", "Language Technology"]},
            "eve": {"email": "eve@elsewhere.net", "preferred_username": "eve"},
        }
    )  # fmt: skip
    app = {"provider_id": "institute", "name": "Example Institute",
           "client_id": openid.CLIENT_ID, "secret": openid.CLIENT_SECRET,
           "settings": {"server_url": provider.url}}  # fmt: skip
    settings.SOCIALACCOUNT_PROVIDERS = {
        "openid_connect": {"OAUTH_PKCE_ENABLED": True, "APPS": [app]}
    }
    policy = settings.CONTENT_SECURITY_POLICY
    directives = policy["DIRECTIVES"]
    settings.CONTENT_SECURITY_POLICY = {
        **policy,
        "DIRECTIVES": {**directives, "form-action": [*directives["form-action"], provider.url]},
    }
    settings.SIGN_UP_DOMAINS = ["example.org"]
    settings.OIDC_GROUP_CLAIM = "groups"
    yield provider
    provider.stop()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    yield context.new_page()
    context.close()


def sign_in(page: Page, home: str, who: str) -> None:
    """Press the institute's button and tell the institute who one is."""
    page.goto(f"{home}/accounts/login/?next=/keys/")
    page.get_by_role("button", name="Example Institute account").click()
    page.fill("[name=who]", who)
    page.get_by_role("button", name="Let me in").click()


def test_an_institute_account_waits_for_approval_and_brings_its_group(
    transactional_db: None,
    redis_url: str,
    gateway: ScriptedGateway,
    live_server: Any,
    institute: openid.Provider,
    page: Page,
) -> None:
    """
    The first sign-in makes an account that waits for an administrator, in the group the claim
    names; once approved the button leads in; a changed claim moves the person at the next sign-in.
    """
    group = people.ensure_group(name="Language Technology")
    other = people.ensure_group(name="Robotics")

    sign_in(page, live_server.url, "ada")
    page.wait_for_url("**/accounts/inactive/")
    ada = User.objects.get(username="ada")
    assert (ada.email, ada.is_active, ada.group) == ("ada@example.org", False, group)

    User.objects.filter(pk=ada.pk).update(is_active=True)
    institute.people["ada"]["groups"] = "Robotics"
    sign_in(page, live_server.url, "ada")
    page.wait_for_url(lambda url: url.startswith(live_server.url) and "accounts" not in url)
    page.goto(f"{live_server.url}/profile/")
    expect(page.get_by_text("ada@example.org, group Robotics")).to_be_visible()
    ada.refresh_from_db()
    assert ada.group == other


def test_an_address_outside_the_allow_list_gets_no_account(
    transactional_db: None,
    redis_url: str,
    gateway: ScriptedGateway,
    live_server: Any,
    institute: openid.Provider,
    page: Page,
) -> None:
    """Whoever has an address of another domain is told that accounts are closed to them."""
    sign_in(page, live_server.url, "eve")

    page.wait_for_url(f"{live_server.url}/accounts/**")
    expect(page.locator("main")).to_contain_text("closed")
    assert not User.objects.filter(username="eve").exists()
