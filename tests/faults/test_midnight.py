"""A product in use over a midnight: one window a local day, and the same number everywhere."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.faults.test_quotas import ask_apart, card
from tests.rig.engine_script import Script
from tests.rig.product import Product
from tests.rig.seeding import ROOT
from tests.rig.waiting import wait_until
from tests.rig.witness import Witness

pytestmark = [pytest.mark.fault, pytest.mark.long, pytest.mark.timeout(300)]
LIMIT = 400
PAGES = """
import json
from django.test import Client
from django.test.utils import setup_test_environment
from quotas.models import User
setup_test_environment()  # so that a page tells what it was made from
browser = Client()
browser.force_login(User.objects.get(username="night"))
query = "range=custom&from={first}&to={last}"
page = browser.get("/usage/?" + query)
sheet = browser.get("/usage/usage.csv?" + query)
text = b"".join(sheet.streaming_content).decode()
print(json.dumps({{"page": page.context["picture"].total.tokens, "csv": text}}))
"""


@dataclass
class Clock:
    """The wall clock of a product."""

    file: Path
    zone: ZoneInfo

    def set(self, text: str) -> None:
        """Make it that local time now."""
        at = dt.datetime.fromisoformat(text).replace(tzinfo=self.zone)
        self.file.write_text(str(at.timestamp() - time.time()))
        time.sleep(0.3)  # it is looked up ten times a second

    def now(self) -> dt.datetime:
        return dt.datetime.fromtimestamp(time.time() + float(self.file.read_text()), self.zone)


@pytest.mark.parametrize(
    ("zone", "day", "next_day", "host"),
    [
        ("Europe/Berlin", "2027-03-28", "2027-03-29", "UTC"),
        ("Europe/Berlin", "2027-10-31", "2027-11-01", "UTC"),
        ("Asia/Tokyo", "2027-05-20", "2027-05-21", "America/New_York"),
    ],
)
async def test_a_day_s_quota_ends_at_the_local_midnight(
    tmp_path: Path, fresh: Callable[..., Product], zone: str, day: str, next_day: str, host: str
) -> None:
    """
    First used at 15:43, used up at 23:59, whole again at the midnight that was shown, on both
    days the clocks change and with the host in another zone; page, CSV and gate say one number.
    """
    clock = Clock(tmp_path / "shift", ZoneInfo(zone))
    clock.set(f"{day}T15:43:00")
    engine = Witness(tmp_path, Script(slots=8)).start()
    moved = {"PYTHONPATH": str(ROOT / "tests/rig/moved"), "MOVED_CLOCK": str(clock.file)}
    product = fresh(engine.url, TIME_ZONE=zone, TZ=host, **moved)
    try:
        await over_midnight(product, clock, day, next_day)
    finally:
        engine.stop()
        product.stop()


async def over_midnight(product: Product, clock: Clock, day: str, next_day: str) -> None:
    """Use the day up, be refused, and go on after midnight."""
    key = await asyncio.to_thread(product.key, "night")
    await asyncio.to_thread(
        product.manage, "setlimit", "--user=night", "--class=interactive",
        f"--tokens-per-day={LIMIT}",
    )  # fmt: skip
    await asyncio.to_thread(
        wait_until, lambda: card(product, key, "tokens_per_day"), 15, "the limit is in force"
    )
    midnight = dt.datetime.fromisoformat(f"{next_day}T00:00:00").replace(tzinfo=clock.zone)
    assert (await ask_apart(product, key, "night/0", max_tokens=16)).whole
    clock.set(f"{day}T23:59:45")
    number = 1
    while (call := await ask_apart(product, key, f"night/{number}", max_tokens=16)).whole:
        number += 1
    told: dict[str, Any] = json.loads(call.body)["error"]
    assert call.code == "insufficient_quota"
    assert told["quota"]["resets_at"] == midnight.timestamp()
    assert 0 < int(call.headers["retry-after"]) <= 15
    assert clock.now() < midnight, "the day was used up too late for this test"
    before = card(product, key, "tokens_per_day")["used"]

    last_refused = dt.datetime.min.replace(tzinfo=dt.UTC)
    while not (call := await ask_apart(product, key, f"night/after{number}", max_tokens=16)).whole:
        assert call.code == "insufficient_quota"
        last_refused = clock.now()
        assert last_refused < midnight + dt.timedelta(seconds=2)
        await asyncio.sleep(0.2)
    assert clock.now() >= midnight
    after = card(product, key, "tokens_per_day")["used"]
    assert 0 < after < before <= LIMIT

    def books() -> dict[str, int]:
        told = product.manage("usage", "--by", "day", "--user", "night", "--json",
                              "--from", day, "--to", next_day)  # fmt: skip
        return {row["day"]: row["tokens"] for row in json.loads(told)["usage"]}

    await asyncio.to_thread(
        wait_until, lambda: books() == {day: before, next_day: after}, 20, "gate and books agree"
    )
    for local_day, tokens in ((day, before), (next_day, after)):
        script = PAGES.format(first=local_day, last=local_day)
        found = json.loads(product.manage("shell", "--no-imports", "-c", script).splitlines()[-1])
        header, *rows = [line.split(",") for line in found["csv"].splitlines()]
        in_csv = sum(int(row[header.index("tokens")]) for row in rows)
        assert (found["page"], in_csv) == (tokens, tokens)
