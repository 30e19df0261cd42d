"""Says in plain words what kind of engine answers at an address and what to set."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from gateway.engines.base import NO_PAGE, Engine, EngineFacts, EngineReading, Health, Pages

KINDS = {
    "llamacpp": "llama.cpp's server",
    "vllm": "vLLM",
    "sglang": "SGLang",
    "openai": "a server that speaks OpenAI's API, of a kind Fairway does not know",
}
HEALTH_WORDS = {
    Health.OK: "It is up.",
    Health.LOADING: "It is loading its model.",
    Health.FAILED: "It answers, but its health page says that it is not well.",
    Health.SILENT: "It does not answer.",
}


class Trouble(StrEnum):
    """Why nothing can be registered there."""

    NONE = "none"
    NOBODY = "nobody"  # nothing listens
    SILENT = "silent"  # it takes the connection and says nothing
    NO_KEY = "no_key"  # it asks for a key
    WRONG_KEY = "wrong_key"  # it refuses the one it was shown
    NO_ENGINE = "no_engine"  # something answers, but not as an engine does
    UNWELL = "unwell"


TROUBLE_WORDS: dict[Trouble, tuple[str, ...]] = {
    Trouble.NOBODY: (
        "Nothing listens at {url}.",
        "Is the engine started, and is this the address the gateway's machine reaches it by? An "
        "engine that listens on 127.0.0.1 is heard on its own machine only: start it with --host.",
    ),
    Trouble.SILENT: (
        "Nothing answered at {url} in time.",
        "Is a firewall in between, is it still starting, or is it busy with a long prompt? "
        "--timeout SECONDS waits longer.",
    ),
    Trouble.NO_KEY: (
        "{url} asks for a key.",
        "Say --api-key here and with addengine; the key is then read without being shown. It is "
        "what the engine was started with (--api-key), no key of Fairway's.",
    ),
    Trouble.WRONG_KEY: (
        "{url} refuses the key it was shown.",
        "It has to be what the engine was started with (--api-key), no key of Fairway's.",
    ),
    Trouble.NO_ENGINE: (
        "Something answers at {url}, but it is no engine: {models}",
        "Is this the port of the engine itself, and not of a page, a proxy or Fairway?",
    ),
}


@dataclass(frozen=True, slots=True)
class Check:
    """What was found at an address."""

    url: str
    health: Health
    facts: EngineFacts
    reading: EngineReading
    advice: tuple[str, ...]
    trouble: Trouble = Trouble.NONE
    key_shown: bool = False
    models: str = ""  # what /v1/models said where it was not a list of models

    @property
    def usable(self) -> bool:
        """Tell whether an engine answers there that can be registered."""
        return self.trouble is Trouble.NONE

    def as_json(self) -> dict[str, Any]:
        """Return everything for machines; unknown is null."""
        return {
            "url": self.url,
            "health": str(self.health),
            "trouble": str(self.trouble),
            "facts": asdict(self.facts),
            "reading": asdict(self.reading),
            "advice": list(self.advice),
        }

    def lines(self) -> list[str]:
        """Return everything for people, one sentence or figure a line."""
        if words := TROUBLE_WORDS.get(self.trouble):
            return [line.format(url=self.url, models=self.models) for line in words]
        facts = self.facts
        version = f", version {facts.version}" if facts.version else ""
        return [
            f"{self.url} is {KINDS[facts.kind]}{version}. {HEALTH_WORDS[self.health]}",
            *(f"  {name:<12} {value}" for name, value in self._figures()),
            "What to set:" if self.advice else "Nothing needs to be set.",
            *(f"  - {line}" for line in self.advice),
            "To register it:",
            f"  manage.py addengine {self.url}{self._flags()}",
        ]

    def _flags(self) -> str:
        """Return what `addengine` has to be told because the engine does not tell it."""
        facts, flags = self.facts, ""
        if facts.kind == "openai":
            flags += " --kind openai"
        if not facts.models:
            flags += " --model NAME"
        if facts.slots is None:
            flags += " --slots NUMBER"
        flags += " --takes-priority" if "priority" in facts.capabilities else ""
        return flags + (" --api-key" if self.key_shown else "")

    def _figures(self) -> list[tuple[str, str]]:
        facts, reading = self.facts, self.reading
        cached = "read" if reading.prefix_hits_total is not None else "not told"
        return [
            ("models", ", ".join(facts.models) or "none listed"),
            ("slots", _known(facts.slots)),
            ("context", _known(facts.context, " tokens for each request")),
            ("weights", facts.quantisation or "unknown"),
            ("running", _known(reading.running)),
            ("waiting", _known(reading.waiting)),
            ("prefix cache", cached),
            ("sleeping", {None: "not told", True: "yes", False: "no"}[reading.sleeping]),
        ]


def _known(value: int | None, unit: str = "") -> str:
    return "unknown" if value is None else f"{value}{unit}"


def check(url: str, engine: Engine, pages: Pages, *, key_shown: bool = False) -> Check:
    """Judge the pages an engine answered."""
    facts = engine.facts(pages)
    answers = [pages[path] for path in engine.health_paths if path in pages]
    found = next((answer for answer in answers if answer.status != 404), None)
    health = Health.SILENT if found is None else engine.health(found)
    return Check(
        url,
        health,
        facts,
        engine.reading(pages),
        engine.advice(facts, pages),
        _trouble(health, facts, pages, key_shown=key_shown),
        key_shown,
        _models_words(pages),
    )


def _trouble(health: Health, facts: EngineFacts, pages: Pages, *, key_shown: bool) -> Trouble:
    answers = list(pages.values())
    # llama.cpp lists its models to everybody; what it does is told to its callers only.
    guarded = "/props" if facts.kind == "llamacpp" else "/v1/models"
    if pages.get(guarded, NO_PAGE).status == 401:
        return Trouble.WRONG_KEY if key_shown else Trouble.NO_KEY
    if not any(answer.status for answer in answers):
        silent = any(answer.timed_out for answer in answers)
        return Trouble.SILENT if silent else Trouble.NOBODY
    if facts.kind == "openai" and not facts.models:
        return Trouble.NO_ENGINE
    return Trouble.NONE if health in (Health.OK, Health.LOADING) else Trouble.UNWELL


def _models_words(pages: Pages) -> str:
    """Say what /v1/models was instead of a list of models."""
    page = pages.get("/v1/models", NO_PAGE)
    if page.body.lstrip()[:1] == b"<":
        return "it sent a web page for /v1/models."
    if page.status != 200:
        return f"it answered {page.status or 'nothing'} for /v1/models."
    return "its answer for /v1/models lists no models."
