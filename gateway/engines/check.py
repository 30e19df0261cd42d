"""Says in plain words what kind of engine answers at an address and what to set."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from gateway.engines.base import Engine, EngineFacts, EngineReading, Health, Pages

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


@dataclass(frozen=True, slots=True)
class Check:
    """What was found at an address."""

    url: str
    health: Health
    facts: EngineFacts
    reading: EngineReading
    advice: tuple[str, ...]

    @property
    def usable(self) -> bool:
        """Tell whether an engine answers there."""
        return self.health in (Health.OK, Health.LOADING)

    def as_json(self) -> dict[str, Any]:
        """Return everything for machines; unknown is null."""
        return {
            "url": self.url,
            "health": str(self.health),
            "facts": asdict(self.facts),
            "reading": asdict(self.reading),
            "advice": list(self.advice),
        }

    def lines(self) -> list[str]:
        """Return everything for people, one sentence or figure a line."""
        if not self.usable and not self.facts.models:
            return [
                f"No engine answers at {self.url}.",
                "Is it started, and is this the address the gateway's machine reaches it by?",
            ]
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
        return flags + (" --takes-priority" if "priority" in facts.capabilities else "")

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


def check(url: str, engine: Engine, pages: Pages) -> Check:
    """Judge the pages an engine answered."""
    facts = engine.facts(pages)
    answers = [pages[path] for path in engine.health_paths if path in pages]
    found = next((answer for answer in answers if answer.status != 404), None)
    health = Health.SILENT if found is None else engine.health(found)
    return Check(url, health, facts, engine.reading(pages), engine.advice(facts, pages))
