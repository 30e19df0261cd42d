"""The newcomer's journey: make a key in the browser, chat with a real model, see it counted."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from playwright.sync_api import Page

from tests.journeys.signing_in import as_admin
from tests.rig import clients
from tests.rig.browser import chromium
from tests.rig.chat import chat
from tests.rig.llama import MODEL, Llama
from tests.rig.product import Product
from tests.rig.waiting import wait_until

pytestmark = pytest.mark.journey

STREAM_A_CHAT = """
parts = client.chat.completions.create(
    model=given["model"], stream=True, max_tokens=12, temperature=0,
    messages=[{"role": "user", "content": f"Say hello, client {openai.__version__}."}],
)
text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
answer(text=text, version=openai.__version__)
"""


@pytest.fixture
def page() -> Iterator[Page]:
    """Open a page in the system's Chromium."""
    with chromium() as browser:
        yield browser.new_page()


def make_key(page: Page, name: str) -> str:
    """Make an interactive key on the keys page; returns its secret, shown once."""
    page.fill("input[name=name]", name)
    page.check("input[name=service_class][value=interactive]")
    page.click("button:has-text('Create key')")
    secret = page.input_value("#secret")
    assert re.fullmatch(r"fw_int_[0-9A-Za-z]{36}", secret)
    page.goto(page.url.replace("/new/", "/"))
    assert secret not in page.content()
    return secret


def revoke(page: Page, product: Product, name: str) -> float:
    """Revoke the key on its page; returns the moment after."""
    page.goto(f"{product.url}/keys/")
    page.click(f"a:has-text('Revoke'):has-text('{name}')")
    page.click("button:has-text('Revoke')")
    page.wait_for_url("**/keys/")
    return time.monotonic()


def usage(product: Product, masked: str) -> tuple[int, int, int]:
    """Return requests, prompt and completion tokens of a key, as the usage table has them."""
    rows = product.sql(
        "SELECT count(*), sum(e.prompt_tokens), sum(e.completion_tokens) FROM usage_event e"
        " JOIN quotas_apikey k ON k.public_id = e.key_id"
        " WHERE k.masked = %s AND e.outcome = 'served' AND NOT e.estimated",
        masked,
    )
    requests, prompt, completion = rows[0]
    return requests, int(prompt or 0), int(completion or 0)


def is_refused(product: Product, secret: str) -> bool:
    """Answer whether a chat with this key is turned away as not authenticated."""
    answer = httpx.post(
        f"{product.url}/v1/chat/completions",
        json=chat(MODEL, "after", stream=False, max_tokens=1),
        headers={"Authorization": f"Bearer {secret}"},
    )
    assert answer.status_code in (200, 401), answer.text
    return answer.status_code == 401


@pytest.mark.timeout(300)  # on a new machine it installs the clients
def test_from_sign_in_to_revocation(product: Product, llama: Llama, page: Page) -> None:
    """
    A key made in the browser streams a chat through every version of the official client; the
    usage rows equal the increase of llama.cpp's own counters; revoked, it is refused within 5 s.
    """
    as_admin(page, product)
    secret = make_key(page, "first light")
    before = llama.counters()

    with ThreadPoolExecutor() as pool:
        answers = list(
            pool.map(
                lambda version: clients.environment(version).run(
                    STREAM_A_CHAT, base_url=f"{product.url}/v1", api_key=secret, model=MODEL
                ),
                clients.VERSIONS,
            )
        )
    assert [answer["version"][0] for answer in answers] == list(clients.VERSIONS)
    assert all(answer["text"] for answer in answers)

    masked = f"{secret[:10]}…{secret[-4:]}"
    wait_until(lambda: usage(product, masked)[0] == 3, 10, "three usage rows are written")
    after = llama.counters()
    gained = {name: after[name] - before[name] for name in after}
    _, prompt, completion = usage(product, masked)
    assert prompt == gained["prompt_tokens_total"] + gained["prompt_tokens_cached_total"]
    assert completion == gained["tokens_predicted_total"]

    revoked_s = revoke(page, product, "first light")
    wait_until(lambda: is_refused(product, secret), 5, "the revoked key is refused")
    assert time.monotonic() - revoked_s < 5
    assert all(is_refused(product, secret) for _ in range(3))
