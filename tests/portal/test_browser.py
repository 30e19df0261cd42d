"""Every page in Chromium: what it says, what it fetches, who can use it.

`python -m tests.portal.screenshots FOLDER` runs these tests and keeps a picture of each page.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.utils import timezone
from playwright.sync_api import Browser, ConsoleMessage, Page

from portal.announcements.models import Announcement
from portal.batches.models import BatchJob
from portal.files.models import StoredFile
from quotas.models import ApiKey, Group, Pool, QuotaRequest
from tests.portal.scripted_gateway import ScriptedGateway, busy
from tests.portal.tour import ADMIN, MEMBER, MORE, PASSWORD, PUBLIC, Stop, furnish
from tests.portal.usage import event, hour
from tests.portal.xss import ATTACKS
from tests.rig.browser import chromium

FOLDER = os.environ.get("SCREENSHOTS", "")
WIDE, PHONE = 1440, 360

pytestmark = [pytest.mark.journey, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        # playwright's loop runs in this thread, and Django would refuse its database to it.
        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
        yield running
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.fixture
def site(
    transactional_db: None,
    redis_url: str,
    gateway: ScriptedGateway,
    live_server: Any,
    settings: Any,
) -> tuple[str, ApiKey]:
    settings.PUBLIC_URL = live_server.url
    anna, key = furnish()
    gateway.live = busy(str(anna.pk))
    return live_server.url, key


class Watcher:
    """Collects what a page must not do: complain, report to the policy, ask another host."""

    def __init__(self, page: Page, home: str) -> None:
        self.faults: list[str] = []
        self._home = home
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.faults.append(f"error: {error}"))
        page.on("request", lambda request: self._request(request.url))

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error" and "404 (Not Found)" not in message.text:
            self.faults.append(f"console: {message.text[:300]}")

    def _request(self, url: str) -> None:
        if not url.startswith((self._home, "data:", "blob:")):
            self.faults.append(f"foreign request: {url}")


def sign_in(page: Page, home: str) -> None:
    page.goto(f"{home}/accounts/login/")
    page.fill("[name=login]", "anna")
    page.fill("[name=password]", PASSWORD)
    page.click("form.stack button[type=submit]")
    page.wait_for_url(f"{home}/")


def violations(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [
        f"{one['id']}: {node['html'][:160]} {node.get('failureSummary', '')[:160]}"
        for one in found
        for node in one["nodes"][:3]
    ]


def visit(page: Page, home: str, stop: Stop, key: ApiKey, name: str, *, axe: bool) -> list[str]:
    answer = page.goto(home + stop.address.format(key=key.public_id))
    assert answer is not None
    faults = [] if answer.status == stop.status else [f"status {answer.status}"]
    width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    if width[0] > width[1]:
        faults.append(f"wider than the window: {width}")
    if FOLDER:
        page.screenshot(path=f"{FOLDER}/{stop.name}-{name}.png", full_page=True)
    return faults + (violations(page) if axe else [])


@pytest.mark.parametrize(
    ("theme", "width", "axe"),
    [
        ("light", WIDE, True),
        ("dark", PHONE, False),  # axe takes most of the time; the long run asks it everywhere
        pytest.param("dark", PHONE, True, marks=pytest.mark.long),
        pytest.param("dark", WIDE, True, marks=pytest.mark.long),
        pytest.param("light", PHONE, True, marks=pytest.mark.long),
    ],
)
def test_every_page_is_sound(
    browser: Browser, site: tuple[str, ApiKey], theme: Any, width: int, axe: bool
) -> None:
    """
    No page has an axe violation, a console error, a policy report, a request to another host or a
    sideways scroll, in either theme, on a desk or a phone.
    """
    home, key = site
    if FOLDER:
        Path(FOLDER).mkdir(parents=True, exist_ok=True)
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion="reduce"
    )
    page = context.new_page()
    watcher = Watcher(page, home)
    faults: dict[str, list[str]] = {}
    for stop in PUBLIC:
        faults[stop.name] = visit(page, home, stop, key, f"{theme}-{width}", axe=axe)
    sign_in(page, home)
    is_short = not FOLDER and (theme, width) == ("light", WIDE)
    more = () if is_short else (*MORE, *(ADMIN if width == WIDE else ()))
    for stop in (*MEMBER, *more):
        faults[stop.name] = visit(page, home, stop, key, f"{theme}-{width}", axe=axe)
    context.close()

    assert {name: found for name, found in faults.items() if found} == {}
    assert watcher.faults == []


def test_stored_texts_never_run(browser: Browser, site: tuple[str, ApiKey]) -> None:
    """
    Thirty attacks in every stored text (names, notes, models, outcomes, reasons, announcements)
    are shown literally on every page: nothing runs, nothing is asked of the policy.
    """
    home, key = site
    plant(key)
    context = browser.new_context(
        viewport={"width": WIDE, "height": 900},
        user_agent=ATTACKS[0],  # seen on the sessions page
    )
    page = context.new_page()
    watcher = Watcher(page, home)
    page.on("dialog", lambda dialog: (watcher.faults.append("dialog"), dialog.dismiss()))
    sign_in(page, home)
    ran: list[str] = []
    for stop in (*PUBLIC, *MEMBER, *MORE):
        page.goto(home + stop.address.format(key=key.public_id))
        page.wait_for_timeout(50)
        if page.evaluate("window.__ran") or page.evaluate("document.querySelector('x, marquee')"):
            ran.append(stop.name)
    context.close()

    assert ran == []
    assert watcher.faults == []


def plant(key: ApiKey) -> None:
    """Write an attack into every text people or engines can write."""
    owner = key.owner
    for number, attack in enumerate(ATTACKS):
        ApiKey.objects.create(
            owner=owner, name=attack[:99], service_class="batch", digest=f"d{number}", masked="m"
        )
    events = [
        event(owner.pk, 200 + n, key_id=key.public_id, model=attack, error_code=attack[:64],
              outcome=attack[:32], finish_reason=attack[:32], end_user=attack)
        for n, attack in enumerate(ATTACKS)
    ]  # fmt: skip
    type(events[0]).objects.bulk_create(events)
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    hours = [hour(owner.pk, now, model=attack, key_id=attack[:24]) for attack in ATTACKS]
    type(hours[0]).objects.bulk_create(hours)
    Announcement.objects.create(
        text=" ".join(ATTACKS)[:500], shown_until=now + dt.timedelta(days=1)
    )
    Pool.objects.create(name=ATTACKS[0], note=" ".join(ATTACKS), aliases=list(ATTACKS))
    group = Group.objects.get()
    group.name = ATTACKS[4][:100]
    group.save()
    owner.first_name = ATTACKS[2][:100]
    owner.save()
    QuotaRequest.objects.update(reason=" ".join(ATTACKS))
    StoredFile.objects.update(filename=ATTACKS[0], problems=[
        {"line": 1, "code": ATTACKS[1], "message": " ".join(ATTACKS)}
    ])  # fmt: skip
    BatchJob.objects.update(
        name=" ".join(ATTACKS)[:255], model=ATTACKS[3], wait_message=" ".join(ATTACKS)[:500],
        metadata={attack[:60]: attack for attack in ATTACKS[:16]},
    )  # fmt: skip


def test_a_newcomer_needs_no_mouse(browser: Browser, site: tuple[str, ApiKey]) -> None:
    """
    From sign-in to the shown key by keyboard alone, with the key selected and copied by one press.
    """
    home, _ = site
    ApiKey.objects.all().delete()
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    page = context.new_page()
    page.goto(f"{home}/accounts/login/")
    page.focus("[name=login]")
    page.keyboard.type("anna")
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    page.wait_for_url(f"{home}/")
    page.get_by_role("button", name="Create an interactive key").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#secret")

    secret = page.input_value("#secret")
    assert secret.startswith("fw_int_")
    assert secret not in page.url
    page.get_by_role("button", name="Copy key").focus()
    page.keyboard.press("Enter")
    assert page.evaluate("navigator.clipboard.readText()") == secret
    assert page.get_by_text("Copied: the key").is_visible()
    page.reload()
    assert page.locator("#secret").count() == 0
    context.close()


def test_pages_work_without_scripts(browser: Browser, site: tuple[str, ApiKey]) -> None:
    """
    With scripts switched off people still sign in, make a key and see it once.
    """
    home, _ = site
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    sign_in(page, home)
    page.goto(f"{home}/keys/")
    page.fill("[name=name]", "without scripts")
    page.check("[value=batch]")
    page.get_by_role("button", name="Create key").click()

    assert page.get_attribute("#secret", "value", timeout=5000)
    assert page.get_by_text("This is the only time it is shown.").is_visible()
    assert not page.get_by_role("button", name="Copy key").is_visible()
    context.close()


def test_a_live_part_keeps_what_the_reader_opened(
    browser: Browser, site: tuple[str, ApiKey], gateway: ScriptedGateway
) -> None:
    """
    The status page follows the gateway by itself, and a table that was folded out stays so.
    """
    home, _ = site
    page = browser.new_page()
    page.goto(f"{home}/status/")
    page.get_by_text("The waiting line as a table").click()
    gateway.live = None
    page.get_by_text("Unknown. The gateway does not answer.").wait_for(timeout=15_000)
    assert "slots held" not in page.locator("#live").inner_text()
    page.locator("#said", has_text="Unknown").wait_for(state="attached", timeout=15_000)
    gateway.live = busy()
    page.get_by_text("8 of 8 slots held").first.wait_for(timeout=15_000)
    page.get_by_text("The waiting line as a table").click()
    page.wait_for_timeout(4000)
    assert page.locator("#line1").get_attribute("open") is not None
    page.close()


def test_the_try_box_cuts_what_is_huge_and_says_so(
    browser: Browser, site: tuple[str, ApiKey]
) -> None:
    """
    A tool call of 5 MiB and an error of 600 kB are shown by their heads, with their full sizes.
    """
    home, _ = site
    call = {"index": 0, "function": {"name": "save", "arguments": "x" * (5 << 20)}}
    huge = {"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]}
    answers = [
        {"status": 200, "body": f"data: {json.dumps(huge)}\n\ndata: [DONE]\n\n"},
        {"status": 400, "body": json.dumps({"error": {"message": "e" * 600_000}})},
    ]
    page = browser.new_context().new_page()
    sign_in(page, home)
    page.route("**/v1/chat/completions", lambda route: route.fulfill(**answers.pop(0)))

    page.click("#try-form button[type=submit]")
    page.get_by_text("First word after").wait_for()
    shown = page.inner_text("#try-answer")
    assert shown.startswith("Tool call save: xxx")
    assert shown.endswith("cut here, 5,242,880 characters in all")
    assert len(shown) < 21_000

    page.click("#try-form button[type=submit]")
    page.get_by_text("cut here, 600,000 characters in all").wait_for()
    assert len(page.inner_text("#try-facts")) < 400
    page.context.close()
