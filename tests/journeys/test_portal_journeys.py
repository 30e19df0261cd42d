"""What people do in the portal, in Chromium on the running product, with its effect at the gate."""

from __future__ import annotations

import datetime as dt
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.journeys.signing_in import as_admin
from tests.rig.browser import chromium
from tests.rig.chat import chat
from tests.rig.llama import MODEL, Llama
from tests.rig.product import Product
from tests.rig.waiting import wait_until

pytestmark = pytest.mark.journey

LONG_S = 30  # for what has no promise; only a busy machine comes near it
PASSWORD = "a sentence nobody else would type"
PEOPLE = {
    "rotating": "interactive", "asking": "interactive", "sending": "batch",
    "first-of-two": "interactive", "second-of-two": "interactive",
    "leaving": "interactive", "staying": "interactive",
}  # fmt: skip
FURNISH = """
import json
from quotas.models import User
from quotas.services import keys, limits, people
secrets = {{}}
for name, kind in {people}.items():
    person = people.ensure_user(username=name)
    person.set_password({password!r})
    person.save()
    secrets[name] = keys.issue(owner=person, name=f"{{name}} key", service_class=kind).secret
secrets["leaving too"] = keys.issue(
    owner=User.objects.get(username="leaving"), name="a second", service_class="batch"
).secret
newcomer = people.ensure_user(username="newcomer")
newcomer.set_password({password!r})
newcomer.save()
limits.set_limit(
    holder=limits.Holder(user=User.objects.get(username="asking")), service_class="interactive",
    name="requests_per_minute", value=1, per="person",
)
print(json.dumps(secrets))
"""
COUNT_EVENTS = """
for (const kind of ["click", "paste"])
  addEventListener(kind, (event) => event.isTrusted && window.countEvent(kind), true);
"""


@dataclass(frozen=True)
class Site:
    """The running product with people, their secrets, and a browser."""

    product: Product
    browser: Browser
    secrets: dict[str, str]

    def signed_in(self, name: str, password: str = PASSWORD) -> Page:
        """Return a page of this person, in a browser profile of its own."""
        page = self.browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
        page.goto(f"{self.product.url}/accounts/login/")
        page.fill("[name=login]", name)
        page.fill("[name=password]", password)
        page.click("button:has-text('Sign in')")
        page.wait_for_url(f"{self.product.url}/")
        return page

    def ask(self, secret: str) -> httpx.Response:
        """Send a chat of one token."""
        return httpx.post(
            f"{self.product.url}/v1/chat/completions",
            json=chat(MODEL, "journey", stream=False, max_tokens=1),
            headers={"Authorization": f"Bearer {secret}"},
            timeout=LONG_S,
        )

    def answers(self, secret: str, status: int = 200) -> Callable[[], bool]:
        """Return a question: does a chat with this secret have this status now?"""
        return lambda: self.ask(secret).status_code == status


@pytest.fixture(scope="module")
def site(product: Product, llama: Llama) -> Iterator[Site]:
    """Give the shared product people with keys, and open a browser."""
    script = FURNISH.format(people=PEOPLE, password=PASSWORD)
    printed = product.manage("shell", "--no-imports", "-c", script)
    expect.set_options(timeout=LONG_S * 1000)
    with chromium() as browser:
        yield Site(product, browser, json.loads(printed.splitlines()[-1]))


@pytest.fixture(scope="module")
def admin(site: Site) -> Page:
    """Return a page of the first administrator."""
    page = site.browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    as_admin(page, site.product)
    return page


def rotate(page: Page, overlap: str) -> str:
    """Rotate the person's key, the old secret working for `overlap` more; returns the new one."""
    page.goto(re.sub(r"(://[^/]+/).*", r"\1keys/", page.url))
    page.click("a:has-text('Rotate')")
    page.select_option("[name=overlap]", label=overlap)
    page.click("button:has-text('Rotate')")
    return page.input_value("#secret")


def test_rotation_overlaps_as_long_as_chosen(site: Site) -> None:
    """With an overlap both secrets answer; with none the old one is refused within 5 s."""
    page, first = site.signed_in("rotating"), site.secrets["rotating"]

    second = rotate(page, "1 hour")
    wait_until(site.answers(second), LONG_S, "the new secret answers")
    assert site.ask(first).status_code == 200

    third = rotate(page, "none: the old secret stops now")
    wait_until(site.answers(second, 401), 5, "the old secret is refused")
    wait_until(site.answers(third), LONG_S, "the newest secret answers")
    page.context.close()


def test_a_granted_request_is_in_force(site: Site, admin: Page) -> None:
    """A raise asked for by a researcher and given by an admin shows on the card and at the gate."""
    page, secret = site.signed_in("asking"), site.secrets["asking"]
    wait_until(site.answers(secret, 429), LONG_S, "one request a minute is too few")
    page.click("a:has-text('Ask for more')")
    page.select_option("[name=service_class]", "interactive")
    page.select_option("[name=name]", "requests_per_minute")
    page.fill("[name=value]", "40")
    page.fill("[name=reason]", "A class of forty works with it.")
    page.click("button:has-text('Ask')")
    expect(page.get_by_text("Asked. You get a mail")).to_be_visible()

    admin.goto(f"{site.product.url}/quota/")
    admin.click("tr:has-text('asking') a:has-text('Decide')")
    admin.click("button[value=approve]")
    expect(admin.get_by_text("Answered asking; in force within 5 s")).to_be_visible()

    wait_until(site.answers(secret), LONG_S, "the raise is in force")
    page.goto(f"{site.product.url}/")
    gauge = page.locator("ul.quota li", has_text="Requests per minute")
    expect(gauge).to_contain_text("of 40")
    expect(gauge).to_contain_text("set for you")
    expect(gauge.locator("strong")).not_to_have_text("0")
    page.context.close()


def test_a_batch_from_upload_to_download(site: Site, tmp_path: Path) -> None:
    """Lines uploaded in the browser end there as a file that has the answer to each."""
    names = {"a", "b", "c"}
    body = chat(MODEL, "line", stream=False, max_tokens=2)
    lines = [
        {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}
        for name in sorted(names)
    ]
    source = tmp_path / "lines.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = site.signed_in("sending")
    page.goto(f"{site.product.url}/batches/")
    page.set_input_files("[name=file]", source)
    page.click("button:has-text('Check and estimate')")
    expect(page.get_by_text("All 3 lines can run.")).to_be_visible()
    page.click("button:has-text('Start 3 lines')")
    expect(page.get_by_text("is in the queue: 3 lines.")).to_be_visible()

    def is_completed() -> bool:
        page.reload()
        return page.locator("dl.facts dd", has_text="completed").count() > 0

    wait_until(is_completed, 2 * LONG_S, "the batch is completed", every_s=0.5)
    with page.expect_download() as download:
        page.click("a:has-text('Results,')")
    answers = [json.loads(line) for line in download.value.path().read_text().splitlines()]
    assert {one["custom_id"] for one in answers} == names
    assert len(answers) == 3
    assert all(one["response"]["status_code"] == 200 for one in answers)
    page.context.close()


def test_a_bulk_edit_is_previewed_then_binds(site: Site, admin: Page) -> None:
    """A limit set for two people in the grid changes nothing in the preview, and then both."""
    two = ("first-of-two", "second-of-two")
    admin.goto(f"{site.product.url}/quota/grid/?limit=requests_per_minute&q=-of-two")
    for name in two:
        admin.check(f"[aria-label='Select {name}']")
    admin.select_option("[name=op]", "set")
    admin.fill("[name=amount]", "1")
    admin.click("button[value=many]")
    for name in two:
        row = admin.locator("tbody tr", has_text=name)
        expect(row.locator("[data-label=After]")).to_have_text("1")
        assert [site.ask(site.secrets[name]).status_code for _ in range(2)] == [200, 200]

    admin.click("button:has-text('Apply to 2')")
    expect(admin.get_by_text("2 changed; in force")).to_be_visible()
    for name in two:
        wait_until(site.answers(site.secrets[name], 429), LONG_S, f"{name} is limited")


def test_all_keys_of_a_person_are_revoked(site: Site, admin: Page) -> None:
    """An admin revokes every key of one person: all are refused within 5 s, other people's not."""
    secrets = [site.secrets["leaving"], site.secrets["leaving too"]]
    wait_until(site.answers(secrets[0]), LONG_S, "the key answers")
    admin.goto(f"{site.product.url}/admin/quotas/apikey/?q=leaving")
    admin.check("#action-toggle")
    admin.select_option("select[name=action]", "revoke")
    admin.click("button[name=index]")
    expect(admin.get_by_text("Every gateway refuses them")).to_be_visible()

    for secret in secrets:
        wait_until(site.answers(secret, 401), 5, "the revoked key is refused")
    assert site.ask(site.secrets["staying"]).status_code == 200


def test_announced_maintenance_is_told_everywhere(site: Site, admin: Page) -> None:
    """What an admin announces stands on a person's pages and, signed out, on the status page."""
    text = "The card moves to another rack."
    tomorrow = (dt.datetime.now(dt.UTC) + dt.timedelta(days=1)).strftime("%Y-%m-%d")
    admin.goto(f"{site.product.url}/admin/announcements/announcement/add/")
    admin.select_option("select[name=kind]", "planned")
    admin.fill("[name=text]", text)
    for moment, hour in (("shown_until", "20:00"), ("starts_at", "18:00"), ("ends_at", "19:00")):
        admin.fill(f"[name={moment}_0]", tomorrow)
        admin.fill(f"[name={moment}_1]", f"{hour}:00")
    admin.click("button[name=_save]")
    expect(admin.get_by_text("added successfully")).to_be_visible()

    page = site.signed_in("staying")
    for path in ("/", "/keys/", "/batches/", "/docs/"):
        page.goto(site.product.url + path)
        expect(page.locator("main .notice", has_text=text)).to_be_visible()
    page.context.clear_cookies()
    page.goto(f"{site.product.url}/status/")
    expect(page.get_by_text(text).first).to_be_visible()

    admin.click(f"a:has-text('{text}')")
    admin.goto(admin.url.replace("/change/", "/delete/"))
    admin.click("[type=submit]:has-text('sure')")
    expect(admin.get_by_text("deleted successfully")).to_be_visible()
    page.reload()
    expect(page.get_by_text(text)).to_have_count(0)
    page.context.close()


def paste_into_a_terminal(page: Page) -> str:
    """Paste what was copied into an empty page, the terminal of this test; returns the text."""
    page.goto("data:text/html,<textarea></textarea>")
    page.focus("textarea")
    page.keyboard.press("Control+V")
    return page.input_value("textarea")


def test_a_newcomer_needs_six_clicks_and_one_paste(site: Site) -> None:
    """From sign-in to the first streamed answer a newcomer clicks at most 6 times, pastes once."""
    context = site.browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    events: list[str] = []
    context.expose_binding("countEvent", lambda _, kind: events.append(kind))
    context.add_init_script(COUNT_EVENTS)
    page = context.new_page()
    page.goto(f"{site.product.url}/accounts/login/")
    page.click("[name=login]")
    page.keyboard.type("newcomer")
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.click("button:has-text('Sign in')")
    page.click("button:has-text('Create an interactive key')")
    page.click("[data-copy=s-curl]")
    expect(page.get_by_text("Copied: curl")).to_be_visible()

    command = paste_into_a_terminal(context.new_page())
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=LONG_S)

    assert done.stdout.count("data: {") > 1, done.stdout + done.stderr
    expect(page.get_by_text("It works.")).to_be_visible(timeout=LONG_S * 1000)
    assert (events.count("click"), events.count("paste")) == (4, 1)  # of the 6 clicks allowed
    context.close()
