"""An administrator measures the card, in Chromium and in the shell, and people see the number."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.journeys.signing_in import as_admin
from tests.rig.browser import chromium
from tests.rig.chat import chat
from tests.rig.llama import MODEL, Llama
from tests.rig.product import Product
from tests.rig.waiting import wait_until

pytestmark = [pytest.mark.journey, pytest.mark.long, pytest.mark.timeout(600)]
LONG_S = 30
RUN_S = 240  # a quick run takes half a minute alone
SENTENCE = re.compile(
    r"Serves about [\d,.]+ tokens per second in total; at .* expect about [\d,.]+"
)
TRIES = 4  # random weights sometimes write special tokens alone, and such a run is void


@pytest.fixture(scope="module")
def admin(product: Product, llama: Llama) -> Iterator[Page]:
    """Return a page of the first administrator."""
    expect.set_options(timeout=LONG_S * 1000)
    with chromium() as browser:
        page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        as_admin(page, product)
        yield page


def engine_name(product: Product) -> str:
    """Return the name of the real llama.cpp server in the books."""
    return str(product.sql("SELECT r.name FROM quotas_replica r JOIN quotas_pool p "
                           "ON p.id = r.pool_id WHERE p.name = %s", MODEL)[0][0])  # fmt: skip


def press(admin: Page, product: Product, where: str, action: str) -> None:
    """Choose the first row of an admin list and carry out an action on it."""
    admin.goto(f"{product.url}/admin/quotas/{where}")
    admin.locator("input.action-select").first.check()
    admin.select_option("select[name=action]", action)
    admin.click("button[name=index]")


def newest(product: Product) -> tuple[str, str, str]:
    """Return state, reason and sentence of the newest run."""
    rows = product.sql(
        "SELECT state, reason, sentence FROM quotas_capacityrun ORDER BY asked_at DESC LIMIT 1"
    )
    return tuple(rows[0]) if rows else ("", "", "")


def answers(product: Product, secret: str) -> int:
    """Return the status of a chat of one token."""
    body = chat(MODEL, "measuring", stream=False, max_tokens=1)
    headers = {"Authorization": f"Bearer {secret}"}
    url = f"{product.url}/v1/chat/completions"
    return httpx.post(url, json=body, headers=headers, timeout=LONG_S).status_code


def test_a_run_from_the_button_is_published_and_withdrawn(product: Product, admin: Page) -> None:
    """
    The button measures, publishing shows sentence and chart to everybody, withdrawing keeps them
    visible with the reason.
    """
    name = engine_name(product)
    for _ in range(TRIES):
        press(admin, product, f"replica/?q={name}", "measure_quickly")
        expect(admin.get_by_text("is being measured")).to_be_visible()
        wait_until(lambda: newest(product)[0] not in ("planned", "running"), RUN_S, "the run ends")
        if newest(product)[0] == "complete":
            break
    state, reason, sentence = newest(product)
    assert state == "complete", reason
    assert SENTENCE.match(sentence)
    press(admin, product, f"capacityrun/?q={name}", "publish")
    expect(admin.get_by_text("is published")).to_be_visible()

    people = admin.context.browser.new_context().new_page()  # type: ignore[union-attr]
    people.goto(f"{product.url}/status/")
    expect(people.get_by_text(sentence)).to_be_visible()
    chart = people.get_by_role("img", name=re.compile("Tokens per second for each person"))
    expect(chart).to_be_visible()
    assert httpx.get(f"{product.url}/status.json").json()["capacity"][0]["sentence"] == sentence

    rows = product.sql("SELECT id FROM quotas_capacityrun WHERE sentence = %s", sentence)
    admin.goto(f"{product.url}/admin/quotas/capacityrun/{rows[0][0]}/change/")
    admin.fill("[name=withdrawn_reason]", "A neighbour was active.")
    admin.click("button[name=_save]")
    people.goto(f"{product.url}/capacity/")
    expect(people.get_by_text("A neighbour was active.")).to_be_visible()
    people.goto(f"{product.url}/status/")
    expect(people.locator("s", has_text=sentence)).to_be_visible()
    assert httpx.get(f"{product.url}/status.json").json()["capacity"] == []


def test_a_run_from_the_shell_is_published(product: Product, llama: Llama) -> None:
    """The command measures the same plan, publishes it, and prints the same sentence."""
    options = ("--lengths", "128,1024", "--concurrency", "1,2,4", "--repeats", "3",
               "--answer-tokens", "64", "--publish", "--json")  # fmt: skip
    for attempts_left in range(TRIES - 1, -1, -1):
        try:
            printed = product.manage("measurecapacity", engine_name(product), *options,
                                     timeout_s=RUN_S)  # fmt: skip
            break
        except AssertionError as error:
            if not attempts_left or "without any content" not in str(error):
                raise
    found = json.loads(printed.splitlines()[-1])
    assert [(p["planned_tokens"], p["concurrency"]) for p in found["report"]["points"]] == [
        (n, c) for n in (128, 1024) for c in (1, 2, 4)
    ]
    assert found["sentence"] in httpx.get(f"{product.url}/status/").text


def test_the_stop_button_gives_the_card_back_within_five_seconds(
    product: Product, admin: Page
) -> None:
    """While it is measured the model answers 503; five seconds after Stop it serves again."""
    name, secret = engine_name(product), product.key("stopping")
    press(admin, product, f"replica/?q={name}", "measure")
    wait_until(lambda: answers(product, secret) == 503, RUN_S, "the card is held")
    wait_until(lambda: newest(product)[0] == "running", RUN_S, "the run goes on")
    press(admin, product, f"capacityrun/?q={name}", "stop")
    pressed_s = time.monotonic()
    wait_until(lambda: answers(product, secret) == 200, 5, "the card is back")
    print(f"back after {time.monotonic() - pressed_s:.1f} s")
    wait_until(lambda: newest(product)[0] == "partial", LONG_S, "the run is partial")
