"""manage.py measurecapacity against a real llama.cpp behind a running gateway."""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.core.management import CommandError, call_command

from quotas.models import CapacityRun, CapacitySample, Card, Replica
from quotas.services import capacity, engines, keys, people
from tests.gateway.fleet.conftest import LlamaServer
from tests.gateway.wire.stage import SECRET_KEY, GatewayProcess
from tests.rig.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)
QUICK = ("--lengths", "64", "--concurrency", "1,2", "--repeats", "2", "--answer-tokens", "32")


@pytest.fixture
def replica(llama: LlamaServer, redis_url: str, transactional_db: None) -> Replica:
    """Return the real llama.cpp server, registered on a card it shares."""
    found = engines.register(
        url=llama.url, pool="tiny", kind="llamacpp", slots=4, name="one", card="card A"
    )
    Card.objects.update(sharing_mode="shared")
    return found


@pytest.fixture
def gateway(
    replica: Replica, redis_url: str, tmp_path: Path, settings: Any
) -> Iterator[GatewayProcess]:
    """Return a gateway in front of it."""
    process = GatewayProcess(tmp_path, redis_url).start()
    settings.SECRET_KEY, settings.GATEWAY_URL = SECRET_KEY, process.url
    process.wait_up()
    yield process
    process.stop()


def measure(*arguments: str) -> dict[str, Any]:
    """Run the command and return what it printed."""
    out = io.StringIO()
    call_command("measurecapacity", "one", *arguments, "--json", stdout=out)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def ask(gateway: GatewayProcess, secret: str) -> httpx.Response:
    """Send one chat message."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    headers = {"Authorization": f"Bearer {secret}"}
    return httpx.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers, timeout=20)


def test_a_run_holds_the_engine_keeps_everything_and_gives_it_back(
    gateway: GatewayProcess,
) -> None:
    """
    During a run arrivals are told when the card is back; after it they are served, and the run
    is in the books with its raw samples and fingerprint.
    """
    alice = people.ensure_user(username="alice")
    secret = keys.issue(owner=alice, name="k", service_class="interactive").secret
    refused: list[httpx.Response] = []

    def knock() -> None:
        while not refused:
            answer = ask(gateway, secret)
            if answer.status_code == 503:
                refused.append(answer)

    assert ask(gateway, secret).status_code == 200
    visitor = threading.Thread(target=knock, daemon=True)
    visitor.start()
    found = measure(*QUICK, "--publish")
    visitor.join(5)

    assert refused[0].json()["error"]["code"] == "measuring"
    assert int(refused[0].headers["retry-after"]) >= 1
    wait_until(lambda: ask(gateway, secret).status_code == 200, 5, "the card is back")
    run = CapacityRun.objects.get()
    assert (run.state, run.is_published, run.steps_done) == ("complete", True, run.steps_total)
    assert found["sentence"].startswith("Serves about ")
    assert CapacitySample.objects.filter(run=run, kind="cold").count() == 4
    assert run.fingerprint["card.sharing"] == "shared"
    assert run.fingerprint["engine.slots"] == "4"
    assert [p["concurrency"] for p in found["report"]["points"]] == [1, 2]


def test_a_stop_gives_the_card_back_within_five_seconds(gateway: GatewayProcess) -> None:
    """
    Stopped from the page, a run ends as partial with what it had, and the hold is gone.
    """

    def stop() -> None:
        from django.db import connection

        wait_until(lambda: CapacityRun.objects.filter(steps_done__gte=2).exists(), 20, "two steps")
        capacity.stop(run=CapacityRun.objects.get())
        stopped.append(time.monotonic())
        connection.close()

    stopped: list[float] = []
    button = threading.Thread(target=stop)
    button.start()
    found = measure("--lengths", "64", "--concurrency", "1", "--repeats", "50")
    took_s = time.monotonic() - stopped[0]
    button.join()

    assert found["state"] == "partial"
    assert took_s < 5
    assert found["report"]["points"][0]["repeats"] >= 1
    assert CapacitySample.objects.count() >= 2


def test_work_past_the_gateway_makes_the_run_void(
    gateway: GatewayProcess, llama: LlamaServer
) -> None:
    """
    Somebody who reaches the engine directly during the run voids it, and the books say why.
    """

    def intrude() -> None:
        from django.db import connection

        wait_until(lambda: CapacitySample.objects.exists(), 20, "the first step")
        connection.close()
        llama.complete("a stranger's question", 1500)

    stranger = threading.Thread(target=intrude)
    stranger.start()
    with pytest.raises(CommandError, match="Foreign load"):
        measure(*QUICK, "--repeats", "20")
    stranger.join()

    run = CapacityRun.objects.get()
    assert (run.state, run.sentence) == ("void", "")
    assert run.reason.startswith("Foreign load")


def test_an_unknown_engine_is_one_sentence(db: None) -> None:
    """
    A name nobody registered ends the command with the names that exist.
    """
    with pytest.raises(CommandError, match="Registered: none"):
        call_command("measurecapacity", "nobody")


def test_the_button_plans_a_run_and_a_process_measures_it(
    gateway: GatewayProcess, replica: Replica, admin_client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """
    The admin's button plans a quick run; the task's own process measures what was planned.
    """
    started: list[str] = []
    monkeypatch.setattr("quotas.tasks.measure.delay", started.append)
    monkeypatch.setitem(capacity.QUICK, "lengths", [48])
    monkeypatch.setitem(capacity.QUICK, "concurrencies", [1])
    monkeypatch.setitem(capacity.QUICK, "repeats", 1)

    answer = admin_client.post(
        "/admin/quotas/replica/", {"action": "measure_quickly", "_selected_action": [replica.pk]}
    )
    assert answer.status_code == 302
    run = CapacityRun.objects.get()
    assert started == [run.public_id]
    measure("--run", run.public_id)

    run.refresh_from_db()
    assert (run.state, run.plan["lengths"], run.plan["repeats"]) == ("complete", [48], 1)
    page = admin_client.post(
        "/admin/quotas/capacityrun/", {"action": "publish", "_selected_action": [run.pk]}
    )
    assert page.status_code == 302
    change = f"/admin/quotas/capacityrun/{run.pk}/change/"
    assert admin_client.get(change).status_code == 200
    admin_client.post(change, {"withdrawn_reason": "A neighbour was active."})
    run.refresh_from_db()
    assert run.withdrawn_reason == "A neighbour was active."
    assert run.withdrawn_at is not None
