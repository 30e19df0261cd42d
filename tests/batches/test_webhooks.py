"""A program of the owner is told of the end: signed, repeated until taken, and nobody else."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from portal.batches import tasks, webhooks
from portal.batches.models import BatchJob
from quotas.models import User
from tests.batches.helpers import ApiClient, lines
from tests.rig.serving import serve

pytestmark = pytest.mark.django_db


class Receiver(ThreadingHTTPServer):
    """A program that takes messages: it answers the statuses it was given, then 200."""

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.heard: list[tuple[dict[str, str], bytes]] = []
        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        """Return its address."""
        return f"http://127.0.0.1:{self.server_port}/hook"


class Handler(BaseHTTPRequestHandler):
    """One message."""

    server: Receiver

    def do_POST(self) -> None:
        """Take it, or do not."""
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.heard.append(({n.lower(): v for n, v in self.headers.items()}, body))
        status = self.server.answers.pop(0) if self.server.answers else 200
        self.send_response(status)
        if status == 302:
            self.send_header("Location", self.server.url)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Be quiet."""


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    """Yield a receiver whose host an administrator has listed."""
    server = Receiver()
    serve(server)
    settings.WEBHOOK_HOSTS = ["127.0.0.1", ".hooks.example"]
    yield server
    server.shutdown()
    server.server_close()


def ended(api: ApiClient, url: str) -> BatchJob:
    """Return a completed batch that asked for a webhook."""
    batch_id = api.submit(lines(2), webhook_url=url)
    BatchJob.objects.filter(public_id=batch_id).update(
        state="completed", completed=2, completed_at=timezone.now()
    )
    return BatchJob.objects.get(public_id=batch_id)


def test_the_end_is_told_once_and_signed(api: ApiClient, receiver: Receiver) -> None:
    """The receiver can prove from the key's secret that the message is ours and whole."""
    job = ended(api, receiver.url)
    secret = api.get("/v1/batches/webhook_secret").json()["secret"]

    assert (webhooks.send_due(), webhooks.send_due()) == (1, 0)

    ((headers, body),) = receiver.heard
    told = json.loads(body)
    assert (told["type"], told["data"]["id"]) == ("batch.completed", job.public_id)
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    key = base64.b64decode(secret.removeprefix("whsec_"))
    proof = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{proof}"
    assert api.get(f"/v1/batches/{job.public_id}").json()["webhook"]["state"] == "taken"


def test_a_message_is_repeated_later_and_later_until_it_is_given_up(
    api: ApiClient, receiver: Receiver
) -> None:
    """Each try has the same id; a redirect is no taking; after the last pause it is given up."""
    receiver.answers = [302, *[500] * 20]
    job = ended(api, receiver.url)
    pauses = []
    while webhooks.send_due():
        job.refresh_from_db()
        if job.webhook_due_at and not job.webhook_ended_at:
            pauses.append(round((job.webhook_due_at - timezone.now()).total_seconds(), -1))
        BatchJob.objects.update(webhook_due_at=timezone.now() - dt.timedelta(seconds=1))

    assert pauses == list(webhooks.PAUSES_S)
    assert len(receiver.heard) == len(webhooks.PAUSES_S) + 1
    assert len({headers["webhook-id"] for headers, _ in receiver.heard}) == 1
    state = api.get(f"/v1/batches/{job.public_id}").json()["webhook"]
    assert (state["state"], state["problem"]) == ("given_up", "answered with status 500")


def test_the_sweeper_has_a_batch_in_any_end_told(
    api: ApiClient, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled batch is told of too; nothing is sent before the end."""
    asked: list[bool] = []
    monkeypatch.setattr(
        tasks.send_webhooks, "apply_async", lambda **_: asked.append(True) or webhooks.send_due()
    )
    batch_id = api.submit(lines(1), webhook_url=receiver.url)
    tasks.sweep()
    assert asked == []
    BatchJob.objects.filter(public_id=batch_id).update(
        state="cancelled", cancelled_at=timezone.now()
    )
    tasks.sweep()

    assert json.loads(receiver.heard[0][1])["type"] == "batch.cancelled"


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest", "http://localhost/", "ftp://127.0.0.1/", "//127.0.0.1/",
        "http://127.0.0.1@evil.example/", "http://user:pw@127.0.0.1/", "http://evil.example/#127.0.0.1",
        "http://127.0.0.1.evil.example/", "http://evilhooks.example/", "http://[::1]/",
        "http://2130706433/", "http://127.0.0.1\\@evil.example/", "http://127.0.0.1:99999/", 7,
        "http://127.0.0.1/\r\nx: y", "x" * 600,
    ],
)  # fmt: skip
def test_only_hosts_on_the_list_are_called(api: ApiClient, receiver: Receiver, url: Any) -> None:
    """However an address is spelled, a host nobody listed is refused when the batch is made."""
    file = api.upload(lines(1)).json()["id"]
    refused = api.create(file, webhook_url=url)

    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "webhook_not_allowed")
    assert webhooks.is_allowed("https://a.hooks.example:8443/x?y=1")


def test_a_host_taken_off_the_list_is_called_no_more(
    api: ApiClient, receiver: Receiver, settings: Any
) -> None:
    """The list counts when the message is sent; without a list there are no webhooks at all."""
    job = ended(api, receiver.url)
    settings.WEBHOOK_HOSTS = []
    webhooks.send_due()
    job.refresh_from_db()

    assert (receiver.heard, job.webhook_tries) == ([], 1)
    file = api.upload(lines(1)).json()["id"]
    assert api.create(file, webhook_url=receiver.url).status_code == 400
    assert api.create(file, webhook_url=None).status_code == 200


def test_the_page_asks_for_an_address_only_where_there_is_a_list(
    alice: User, api: ApiClient, receiver: Receiver, settings: Any, client: Client
) -> None:
    """A browser user may name one of the hosts; a wrong one is refused beside its field."""
    file = api.upload(lines(2)).json()["id"]
    client.force_login(alice)
    form = {"key": api.key.public_id, "window": "24h"}

    wrong = client.post(f"/batches/upload/{file}/", form | {"webhook_url": "http://evil.example/"})
    assert b"one of the hosts" in wrong.content
    client.post(f"/batches/upload/{file}/", form | {"webhook_url": receiver.url})
    assert BatchJob.objects.get().webhook_url == receiver.url
    settings.WEBHOOK_HOSTS = []
    assert b"webhook_url" not in client.get(f"/batches/upload/{file}/").content
