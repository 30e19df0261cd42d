"""The key an engine asks for: entered once, sealed, never shown."""

from __future__ import annotations

import io
import sys

import pytest
import redis
from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.management import call_command
from django.test import Client
from django.urls import reverse
from pghistory.models import Events

from quotas.models import Replica, User
from quotas.services import engines
from quotas.snapshots.directory import DIRECTORY, fleet_from_json
from quotas.snapshots.sealed import opened

pytestmark = pytest.mark.django_db
KEY = "sk-engine-0123456789abcdefghij"
URL = "http://127.0.0.1:9999"


@pytest.fixture
def replica() -> Replica:
    """Register an engine with a key."""
    return engines.register(url=URL, pool="m", kind="vllm", slots=4, api_key=KEY)


@pytest.fixture
def page(client: Client, admin: User) -> Client:
    """Return a signed-in administrator's browser."""
    client.force_login(admin)
    return client


def address(replica: Replica) -> str:
    """Return the page of an engine."""
    return reverse("admin:quotas_replica_change", args=[replica.pk])


def form(replica: Replica, **changes: object) -> dict[str, object]:
    """Return the page's form as a browser sends it."""
    names = ["name", "url", "kind", "slots", "prefill_budget", "state", "model"]
    shown = {name: getattr(replica, name) for name in names} | {"pool": replica.pool_id}
    return shown | {"api_key": ""} | changes


@pytest.mark.django_db(transaction=True)
def test_a_key_is_stored_and_published_sealed(valkey: redis.Redis, replica: Replica) -> None:
    """The row and what the gateways read hold it sealed; only SECRET_KEY opens it."""
    published = fleet_from_json(valkey.hget(DIRECTORY, "fleet") or b"").replicas[0]

    assert KEY not in replica.sealed_key
    assert published.sealed_key == replica.sealed_key
    assert opened(settings.SECRET_KEY, published.sealed_key) == KEY


def test_the_page_takes_a_key_and_never_shows_it(page: Client, replica: Replica) -> None:
    """A key can be replaced and forgotten; no page has it, and an empty field changes nothing."""
    assert page.post(address(replica), form(replica, api_key="sk-new")).status_code == 302
    assert engines.api_key_of(Replica.objects.get()) == "sk-new"
    assert page.post(address(replica), form(replica, name="other")).status_code == 302
    assert engines.api_key_of(Replica.objects.get()) == "sk-new"

    shown = page.get(address(replica)).content.decode()
    assert "sk-new" not in shown
    assert Replica.objects.get().sealed_key not in shown

    assert page.post(address(replica), form(replica, forget_api_key="on")).status_code == 302
    assert Replica.objects.get().sealed_key == ""


@pytest.mark.parametrize("key", ["two words", "line\nbreak", "clé", "x" * 513])
def test_what_cannot_stand_in_a_header_is_refused(page: Client, key: str, replica: Replica) -> None:
    """Blanks, line breaks and foreign letters are refused by the page and by the service."""
    assert page.post(address(replica), form(replica, api_key=key)).status_code == 200
    with pytest.raises(ValidationError):
        engines.update(replica=replica, api_key=key)
    assert engines.api_key_of(Replica.objects.get()) == KEY


def test_an_engine_that_moves_to_another_host_forgets_its_key(
    page: Client, replica: Replica
) -> None:
    """Who may change an address but does not know the key cannot have it sent elsewhere."""
    engines.update(replica=replica, url=f"{URL}/prefix")
    assert engines.api_key_of(Replica.objects.get()) == KEY

    moved = form(replica, url="http://127.0.0.1:9998")
    assert page.post(address(replica), moved).status_code == 302
    assert Replica.objects.get().sealed_key == ""


def test_the_trail_tells_when_a_key_was_entered_and_not_which(replica: Replica) -> None:
    """Entering, replacing and forgetting a key are in the audit trail, sealed keys are not."""
    engines.update(replica=replica, api_key="sk-new")
    engines.update(replica=replica, api_key="")

    trail = list(Events.objects.tracks(replica).values_list("pgh_diff", "pgh_data"))
    assert len(trail) == 3
    assert "sealed" not in str(trail)
    assert all("key_set_at" in diff for diff, _ in trail[1:])


def test_a_command_reads_a_key_without_showing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`addengine --api-key` takes it from standard input and prints that there is one."""
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{KEY}\n"))
    out = io.StringIO()

    told = ["--model", "m", "--kind", "vllm", "--slots", "4", "--json"]
    call_command("addengine", URL, *told, "--api-key", stdout=out)

    assert engines.api_key_of(Replica.objects.get()) == KEY
    assert '"has_key": true' in out.getvalue()
    assert KEY not in out.getvalue()
