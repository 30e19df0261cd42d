"""Signing in as the first administrator, whose printed password is good for one sign-in."""

from __future__ import annotations

import re

from playwright.sync_api import Page

from tests.rig.product import Product

CHOSEN = "a password nobody printed"
_has_chosen: set[str] = set()  # installations whose administrator has chosen already


def as_admin(page: Page, product: Product) -> None:
    """Sign in; at the first sign-in the portal lets nobody on who keeps the printed password."""
    printed = re.search(r"Sign in as (\S+) with the password (\S+)", product.output)
    assert printed, f"no sign-in was printed:\n{product.output}"
    is_first = product.url not in _has_chosen
    page.goto(f"{product.url}/accounts/login/?next=/keys/")
    page.fill("input[name=login]", printed[1])
    page.fill("input[name=password]", printed[2] if is_first else CHOSEN)
    page.click("button:has-text('Sign in')")
    if is_first:
        page.wait_for_url("**/accounts/password/change/")
        page.goto(f"{product.url}/keys/")
        assert page.url.endswith("/accounts/password/change/"), "the printed password opens keys"
        page.fill("[name=oldpassword]", printed[2])
        page.fill("[name=password1]", CHOSEN)
        page.fill("[name=password2]", CHOSEN)
        page.click("main button[type=submit]")
        page.wait_for_url(f"{product.url}/")
        _has_chosen.add(product.url)
        page.goto(f"{product.url}/keys/")
    page.wait_for_url("**/keys/")
