"""The status page in every state of the card, in both themes, on a desk and a phone, in Chromium.

`python -m tests.portal.screenshots FOLDER status` keeps a picture of each.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page

from quotas.snapshots.live import EngineLive, Live, VerdictLive
from tests.portal.scripted_gateway import ScriptedGateway, busy, engine, live, queued, unknown
from tests.portal.tour import furnish
from tests.rig.browser import chromium

FOLDER = os.environ.get("SCREENSHOTS", "")
POOL, SMALL = "Qwen2.5-14B", "SmolLM2-1.7B"
LOOKS: list[tuple[Any, int]] = [
    (theme, width) for theme in ("light", "dark") for width in (1440, 360)
]

pytestmark = [pytest.mark.journey, pytest.mark.long, pytest.mark.timeout(600)]


def quill() -> EngineLive:
    """Return the small engine, heard this second."""
    return engine("quill", pool=SMALL, kind="llamacpp", slots=4, kv_usage=None)


def verdict(word: str, hours: float, cause: str | None, ratio: float) -> tuple[VerdictLive, ...]:
    """Return a verdict for chat that has held for so long; batch is fine."""
    now = time.time()
    return (
        VerdictLive(POOL, "interactive", word, now - 3600 * hours, cause, ratio),
        VerdictLive(POOL, "batch", "ok", now - 86_400, None, 0.0),
        VerdictLive(SMALL, "interactive", "ok", now - 86_400, None, 0.0),
        VerdictLive(SMALL, "batch", "ok", now - 86_400, None, 0.0),
    )


def idle() -> Live:
    """Return a card nobody uses."""
    waits: dict[str, float | None] = {"interactive": 0.0, "batch": 0.0}
    return live(
        engines=(engine(tokens_out_per_s=0.0, tokens_in_per_s=0.0), quill()),
        expected_wait_s={POOL: dict(waits), SMALL: dict(waits)},
        batch_limit={POOL: 7, SMALL: 3}, borrowed={POOL: False, SMALL: False},
        verdicts=verdict("ok", 5, None, 0.0), worker_at=time.time(),
    )  # fmt: skip


def saturated() -> Live:
    """Return a card for which twice as many wait as run, for hours."""
    moment = busy()
    crowd = tuple(
        queued(f"p{n}", "interactive", 2 + n, 90 - 4 * n, expected_wait_s=6.0 * n)
        for n in range(18)
    )
    later = [dataclasses.replace(q, position=q.position + 18) for q in moment.queued[1:]]
    return dataclasses.replace(
        moment, queued=(moment.queued[0], *crowd, *later),
        expected_wait_s={POOL: {"interactive": 96.0, "batch": 1900.0},
                         SMALL: {"interactive": 0.0, "batch": 0.0}},
        verdicts=verdict("saturated", 3, "slots", 2.6),
    )  # fmt: skip


def down() -> Live:
    """Return a moment in which the engine refuses every connection and people wait for it."""
    moment = busy()
    gone = engine(state="down", seen_at=time.time() - 400, note="connection refused")
    waiting = tuple(
        dataclasses.replace(q, blocker="no_replica", expected_wait_s=None) for q in moment.queued
    )
    return dataclasses.replace(
        moment, engines=(gone, quill()), running=(), queued=waiting,
        expected_wait_s={POOL: {"interactive": None, "batch": None},
                         SMALL: {"interactive": 0.0, "batch": 0.0}},
        verdicts=verdict("down", 0.1, "no_replica", 0.0),
    )  # fmt: skip


def redis_away() -> Live:
    """Return a moment in which nobody can say who runs and who waits."""
    return dataclasses.replace(
        busy(), queued=(), running=(), expected_wait_s={}, open=False, queue_known=False,
        queue_at=time.time() - 75, ledger="away", batch_limit={}, borrowed={}, verdicts=(),
    )  # fmt: skip


STATES: dict[str, tuple[Callable[[], Live | None], str]] = {
    "idle": (idle, "OK."),
    "busy": (lambda: dataclasses.replace(busy(), verdicts=verdict("busy", 0.4, "slots", 0.6)),
             "Busy."),
    "saturated": (saturated, "Saturated."),
    "down": (down, "Down."),
    "engine-silent": (unknown, "Unknown."),
    "gateway-silent": (lambda: None, "The gateway does not answer."),
    "redis-away": (redis_away, "Unknown since"),
    "worker-silent": (lambda: dataclasses.replace(idle(), worker_at=time.time() - 200),
                      "The worker has not reported since"),
}  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"  # playwright's loop runs in this thread
        yield running
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


def look(page: Page, name: str) -> list[str]:
    """Return what is wrong with the page, and keep a picture of it."""
    faults = []
    width = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    if width[0] > width[1]:
        faults.append(f"{name}: wider than the window: {width}")
    if FOLDER:
        Path(FOLDER).mkdir(parents=True, exist_ok=True)
        page.screenshot(path=f"{FOLDER}/status-{name}.png", full_page=True)
    found = Axe().run(page).response["violations"]
    return faults + [f"{name}: {one['id']}: {one['nodes'][0]['html'][:160]}" for one in found]


@pytest.mark.parametrize("state", STATES)
def test_the_status_page_is_sound_in_every_state(
    state: str,
    browser: Browser,
    transactional_db: None,
    redis_url: str,
    gateway: ScriptedGateway,
    live_server: Any,
    settings: Any,
) -> None:
    """
    The page says the state in its first line, fits a phone and a desk, and has no axe violation.
    """
    settings.PUBLIC_URL = live_server.url
    furnish()
    make, words = STATES[state]
    faults = []
    for theme, width in LOOKS:
        gateway.live = make()
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, reduced_motion="reduce"
        )
        page = context.new_page()
        page.goto(f"{live_server.url}/status/")
        assert words in page.inner_text("#live")
        faults += look(page, f"{state}-{theme}-{width}")
        context.close()
    assert faults == []
