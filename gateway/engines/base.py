"""What Fairway wants to know of an engine, and what an adapter has to do to tell it.

Rule 1: adapters do no I/O. They name the pages they want and read pages they are given, so every
adapter is tested on recorded answers.
Rule 2: what a page does not say is None. A missing number is unknown, never 0.
Rule 3: counters of all engines mean the same here: prompt tokens include those from the cache.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

# A page longer than this is cut; real ones are under 100 kB.
PAGE_LIMIT = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Page:
    """One answer of an engine to a GET; status 0 means that no answer came."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case
    cut: bool = False  # the body went on after PAGE_LIMIT
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        """Tell whether the engine answered with the page itself."""
        return self.status == 200 and not self.timed_out

    def json(self) -> Any:
        """Return the page as JSON, or None when it is not JSON or not whole."""
        if not self.ok or self.cut:
            return None
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError):
            return None

    def json_object(self) -> dict[str, Any]:
        """Return the page as a JSON object, or an empty one."""
        value = self.json()
        return value if isinstance(value, dict) else {}


Pages = Mapping[str, Page]  # path -> answer
NO_PAGE = Page(status=0)


class Health(StrEnum):
    """What an engine's health page says, if it says anything."""

    OK = "ok"
    LOADING = "loading"
    FAILED = "failed"
    SILENT = "silent"  # no answer in time


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What an engine reveals about itself; changes only when it is restarted."""

    kind: str
    version: str | None = None
    model: str | None = None  # the engine's own name for it
    models: tuple[str, ...] = ()
    slots: int | None = None
    context: int | None = None  # tokens per slot
    quantisation: str | None = None
    parameters: int | None = None
    capabilities: tuple[str, ...] = ()  # metrics, slots, props, prefix_cache, sleep …
    settings: Mapping[str, str] = field(default_factory=dict)  # all it reveals, for fingerprints


@dataclass(frozen=True, slots=True)
class EngineReading:
    """An engine's own numbers at one moment; None is unknown."""

    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None  # 0..1
    prompt_tokens_total: int | None = None  # cached ones included
    cached_tokens_total: int | None = None  # a part of prompt_tokens_total
    completion_tokens_total: int | None = None
    completion_tokens_live: int | None = None  # of requests that still run, not in the total yet
    prefix_queries_total: int | None = None  # tokens looked up in the prefix cache
    prefix_hits_total: int | None = None  # tokens found there
    preemptions_total: int | None = None
    rejections_total: int | None = None
    progress: int | None = None  # grows whenever the engine gets anything done
    incarnation: str | None = None  # differs after a restart
    sleeping: bool | None = None
    slots: int | None = None


UNKNOWN = EngineReading()


class Engine(Protocol):
    """What the gateway asks of the adapter for one kind of engine."""

    kind: str
    health_paths: tuple[str, ...]  # the first that exists is asked
    reading_paths: tuple[str, ...]
    facts_paths: tuple[str, ...]

    def health(self, page: Page) -> Health:
        """Judge the health page."""
        ...

    def reading(self, pages: Pages) -> EngineReading:
        """Read the engine's numbers from the pages of `reading_paths`."""
        ...

    def facts(self, pages: Pages) -> EngineFacts:
        """Read what the engine reveals from the pages of `facts_paths`."""
        ...

    def advice(self, facts: EngineFacts, pages: Pages) -> tuple[str, ...]:
        """Say in plain words what to set, with the engine's own flags."""
        ...


def plain_health(page: Page) -> Health:
    """Judge a health page of the usual form: 200, or 503 while loading."""
    if page.timed_out or page.status == 0:
        return Health.SILENT
    if page.status == 200:
        return Health.OK
    if page.status == 503 and b"oading" in page.body:
        return Health.LOADING
    return Health.FAILED


def whole(value: float | None) -> int | None:
    """Return a number as a whole one; what is no number, negative or endless is unknown."""
    if value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not math.isfinite(value) or value < 0:
        return None
    return int(value)


def fraction(value: float | None) -> float | None:
    """Return a number between 0 and 1, or unknown."""
    if value is None or not math.isfinite(value) or not 0 <= value <= 1:
        return None
    return value


def text(value: object) -> str | None:
    """Return a text that says something, or unknown."""
    return value if isinstance(value, str) and value else None


def added(*parts: int | None) -> int | None:
    """Return the sum, unknown when any part is."""
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def model_names(pages: Pages) -> tuple[str, ...]:
    """Return the model names of /v1/models, in the engine's order."""
    listed = pages.get("/v1/models", NO_PAGE).json_object().get("data")
    if not isinstance(listed, list):
        return ()
    names = (text(entry.get("id")) for entry in listed if isinstance(entry, dict))
    return tuple(name for name in names if name)


def first_model(pages: Pages) -> dict[str, Any]:
    """Return the first entry of /v1/models, or an empty one."""
    listed = pages.get("/v1/models", NO_PAGE).json_object().get("data")
    if isinstance(listed, list) and listed and isinstance(listed[0], dict):
        return listed[0]
    return {}
