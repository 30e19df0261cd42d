"""Each metric that the dashboard and the alert rules use is exported by a running gateway."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
import yaml
from prometheus_client.parser import text_string_to_metric_families

from quotas.snapshots import exports
from quotas.snapshots.exports import EXPORTS, GAUGES, Gauge
from tests.gateway.wire.stage import Books, GatewayProcess, bearer, chat
from tests.rig.seeding import ROOT
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness

BOARD = ROOT / "docker/grafana/dashboards/fairway.json"
RULES = ROOT / "docker/prometheus/rules.yml"
NAME = re.compile(r"\bfairway_[a-z_]+")
# Appears with the first of its kind: a job, a lost record, a judged engine.
LABELS = {"fairway_batch_jobs": {"state": "queued"}, "fairway_batch_lines": {"state": "queued"}}


@pytest.fixture(scope="module")
def page(redis_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return the metrics page of a gateway that has served a request."""
    folder = tmp_path_factory.mktemp("metrics")
    store = redis.Redis.from_url(redis_server)
    store.flushall()
    witness = Witness(folder).start()
    books = Books(store)
    books.engine(witness.url)
    gateway = GatewayProcess(folder, redis_server).start()
    gateway.wait_up()
    told = [Gauge(name, LABELS.get(name, {}), 1.0) for name in GAUGES]
    store.set(EXPORTS, exports.to_json(0.0, told))
    secret = books.key()
    httpx.post(
        f"{gateway.url}/v1/chat/completions", json=chat(), headers=bearer(secret), timeout=20
    )

    def read() -> str:
        return httpx.get(f"{gateway.url}/metrics", timeout=10).text

    wait_until(lambda: "fairway_verdict{" in read() and "fairway_live_keys" in read(), 15, "a look")
    yield read()
    gateway.stop()
    witness.stop()


def used(text: str) -> set[str]:
    """Return every metric of ours in a text."""
    return set(NAME.findall(text))


def exported(page: str) -> set[str]:
    """Return every name a query may use: of samples, and of families that have none yet."""
    names = set(re.findall(r"^(fairway_[a-z_]+)", page, re.MULTILINE))
    return names | set(re.findall(r"^# TYPE (fairway_[a-z_]+)", page, re.MULTILINE))


def queries() -> list[str]:
    """Return each query of the dashboard."""
    board = json.loads(BOARD.read_text())
    found = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return [*found, *(v["query"]["query"] for v in board["templating"]["list"])]


def test_every_query_of_the_dashboard_names_exported_metrics(page: str) -> None:
    """
    No panel stays empty for want of a metric.
    """
    assert used("\n".join(queries())) - exported(page) == set()


def test_every_alert_names_exported_metrics(page: str) -> None:
    """
    No alert is silent for want of a metric.
    """
    rules: Any = yaml.safe_load(RULES.read_text())
    text = "\n".join(rule["expr"] for group in rules["groups"] for rule in group["rules"])

    assert used(text) - exported(page) == set()


def test_every_metric_of_the_fleet_is_on_the_dashboard_or_in_an_alert(page: str) -> None:
    """
    What we export is looked at: each family has a panel or a rule.
    """
    seen = used(BOARD.read_text() + RULES.read_text())
    families = {name.removesuffix("_total") for name in exported(page)}
    families = {re.sub(r"_(bucket|count|sum|created)$", "", name) for name in families}
    unseen = {name for name in families if not any(s.startswith(name) for s in seen)}

    assert unseen == set()


def test_running_and_waiting_are_found_as_on_an_engine(page: str) -> None:
    """
    `grep -E 'num_requests_(running|waiting)'` finds ours and the engine's own.
    """
    found = re.findall(r"^fairway_(?:engine_)?num_requests_(running|waiting)\{", page, re.MULTILINE)

    assert found.count("running") >= 2
    assert found.count("waiting") >= 2


def test_no_key_or_person_is_a_label(page: str) -> None:
    """
    Labels come from closed lists and the names of engines and models.
    """
    labels = {
        label
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        for label in sample.labels
    }

    assert labels <= {
        "engine", "pool", "service_class", "state", "word", "blocker", "outcome", "kind", "code",
        "le",
    }  # fmt: skip


@pytest.mark.skipif(shutil.which("promtool") is None, reason="Debian's prometheus is not installed")
def test_promtool_takes_page_and_rules(page: str, tmp_path: Path) -> None:
    """
    Prometheus's own checker has nothing against names, types and rules.
    """
    checked = subprocess.run(["promtool", "check", "rules", RULES], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    checked = subprocess.run(
        ["promtool", "check", "metrics"], input=page, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
