"""Rules of the batches pages."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client

from portal.batches.models import BatchJob
from portal.files.models import StoredFile
from quotas.models import User
from tests.batches.helpers import ApiClient, jsonl, line, lines

pytestmark = pytest.mark.django_db


@pytest.fixture
def browser(alice: User, api: ApiClient, settings: Any) -> Client:
    """Return Alice's browser; nobody listens where the gateway would."""
    settings.GATEWAY_URL = "http://127.0.0.1:9"
    client = Client()
    client.force_login(alice)
    return client


def upload(browser: Client, api: ApiClient, content: bytes) -> Any:
    """Send the form of the batches page."""
    form = {
        "file": SimpleUploadedFile("corpus.jsonl", content), "key": api.key.public_id,
        "window": "24h",
    }  # fmt: skip
    return browser.post("/batches/upload/", form, follow=True)


def test_an_upload_is_reported_on_before_anything_starts(browser: Client, api: ApiClient) -> None:
    """Bad lines are shown with their numbers; the good ones can be started without them."""
    page = upload(browser, api, jsonl([line("a"), {"custom_id": "b"}, line("c")]))
    text = page.content.decode()

    assert "method must be POST" in text
    assert "Start 2 lines" in text
    assert not BatchJob.objects.exists()

    address = page.redirect_chain[-1][0]
    started = browser.post(address, {"key": api.key.public_id, "window": "7d"}, follow=True)

    job = BatchJob.objects.get()
    assert (job.total, job.completion_window, job.name) == (2, "7d", "corpus")
    assert started.redirect_chain[-1][0] == f"/batches/{job.public_id}/"


def test_a_double_click_starts_one_batch(browser: Client, api: ApiClient) -> None:
    """Posting the start form twice is one batch."""
    address = upload(browser, api, lines(1)).redirect_chain[-1][0]
    for _ in range(2):
        browser.post(address, {"key": api.key.public_id, "window": "24h"})

    assert BatchJob.objects.count() == 1


def test_a_discarded_upload_is_gone(browser: Client, api: ApiClient) -> None:
    """Discard deletes the file."""
    address = upload(browser, api, lines(1)).redirect_chain[-1][0]

    browser.post(address, {"discard": "1"})

    assert not StoredFile.objects.exists()


def test_the_pages_of_a_batch_show_what_users_wrote_as_text(
    browser: Client, api: ApiClient, admin: User
) -> None:
    """Names from files and answers never become markup."""
    evil = "<script>alert(1)</script>"
    batch_id = api.submit(jsonl([line(evil)]))
    BatchJob.objects.update(name=evil, wait_code="x", wait_message=evil)
    job = BatchJob.objects.get(public_id=batch_id)
    job.items.update(state="failed", problem=evil, finished_at=job.created_at)

    for path in ("", f"{batch_id}/", f"{batch_id}/progress/", f"{batch_id}/cancel/"):
        answer = browser.get(f"/batches/{path}")
        assert answer.status_code == 200
        assert evil not in answer.content.decode()


def test_cancel_from_the_page(browser: Client, api: ApiClient) -> None:
    """The confirming form cancels; the batch's page says so."""
    batch_id = api.submit(lines(2))

    page = browser.post(f"/batches/{batch_id}/cancel/", follow=True)

    assert "cancelling" in page.content.decode()


@pytest.mark.parametrize(
    "path",
    ["", "progress/", "cancel/", "again/", "key/", "output.jsonl", "errors.jsonl", "input.jsonl"],
)
def test_another_persons_batch_has_no_page(api: ApiClient, charlie: User, path: str) -> None:
    """Every page of a batch is 404 to others, and a sign-in to nobody."""
    batch_id = api.submit(lines(1))
    stranger = Client()
    stranger.force_login(charlie)
    method = "post" if path in {"again/", "key/"} else "get"

    assert getattr(stranger, method)(f"/batches/{batch_id}/{path}").status_code == 404
    assert getattr(Client(), method)(f"/batches/{batch_id}/{path}").status_code == 302


def test_without_a_key_the_page_says_what_comes_first(browser: Client, charlie: User) -> None:
    """Who has no key that works is led to the keys, not to a form that cannot be sent."""
    browser.force_login(charlie)
    page = browser.get("/batches/").content.decode()

    assert "You have no key that works." in page
    assert "Check and estimate" not in page
