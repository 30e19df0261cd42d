"""What a measurement depends on, as a flat list that can be compared.

Numbers with different fingerprints are never averaged nor drawn in one line: a published test lost
a factor of 2.6 to one setting that a copied specification had dropped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.engines.base import EngineFacts


@dataclass(frozen=True, slots=True)
class CoResident:
    """Another engine on the same card while the run went on."""

    name: str
    load: str  # idle, active, unknown


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting that two fingerprints do not share; None: not there."""

    name: str
    before: str | None
    after: str | None


def fingerprint(
    facts: EngineFacts,
    *,
    slots: int,
    card: str = "",
    sharing_mode: str = "",
    co_residents: Iterable[CoResident] = (),
) -> dict[str, str]:
    """Return everything known that may change a measurement; what is unknown is left out."""
    found: dict[str, str | None] = {
        "engine": facts.kind,
        "engine.version": facts.version,
        "model": facts.model,
        "slots": str(slots),
        "engine.slots": None if facts.slots is None else str(facts.slots),
        "context": None if facts.context is None else str(facts.context),
        "quantisation": facts.quantisation,
        "parameters": None if facts.parameters is None else str(facts.parameters),
        "card": card or None,
        "card.sharing": sharing_mode or None,
    }
    found |= {f"setting.{name}": value for name, value in facts.settings.items()}
    found |= {f"beside.{other.name}": other.load for other in co_residents}
    return {name: value for name, value in sorted(found.items()) if value is not None}


def digest(fingerprint: Mapping[str, str]) -> str:
    """Return a short name of a fingerprint, the same on every machine."""
    text = json.dumps(dict(sorted(fingerprint.items())), separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def diff(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[Difference, ...]:
    """Return what differs, by name."""
    return tuple(
        Difference(name, before.get(name), after.get(name))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    )
