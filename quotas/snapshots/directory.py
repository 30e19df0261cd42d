"""What the books publish for the gateways: keys with their limits, pools, replicas, cards.

In Redis (written by `quotas.directory`, read by `gateway.directory`):

* hash `fairway:directory` with the fields `generation` (random, new after each loss of Redis),
  `version` (whole number, grows with every change in the books) and `fleet` (JSON of `Fleet`);
* hash `fairway:directory:keys`: SHA-256 of a key -> JSON of `KeySnapshot`;
* channel `fairway:directory:changed`: the new version, a hint only.

All fields of one publication are written in one transaction, so a reader that sees a generation
sees everything. No generation means unknown (503), never "no such key" (401).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

DIRECTORY = "fairway:directory"
KEYS = "fairway:directory:keys"
CHANGED = "fairway:directory:changed"


@dataclass(frozen=True, slots=True)
class Limits:
    """Effective limits of one class, by what they count. A name that is missing does not bind.

    Names are those of `quotas.limits` (in_flight, queued, max_prompt_tokens, max_output_tokens,
    requests_per_minute …); values are whole numbers.
    """

    key: dict[str, int] = field(default_factory=dict)  # counted for this key alone
    person: dict[str, int] = field(default_factory=dict)  # counted over all keys of the user
    group: dict[str, int] = field(default_factory=dict)  # counted over the whole group
    defaults: tuple[str, ...] = ()  # "key.in_flight" …: nobody set it, the default applies
    allowed_models: tuple[str, ...] | None = None  # None: all
    # "person.tokens_per_day" … -> where a limit was set: everyone, group, user or key
    levels: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class KeySnapshot:
    """One key as the gateway needs it; immutable, replaced as a whole."""

    key_id: str
    name: str
    user_id: str
    user_name: str
    group_id: str  # "" without a group
    service_class: str
    state: str  # live, disabled, revoked, owner_disabled
    expires_at: float | None  # Unix seconds
    interactive: Limits
    batch: Limits
    share: int = 1
    version: int = 0
    end_user_header: str = ""  # application keys: the header that names the end user
    masked: str = ""

    def limits(self, service_class: str) -> Limits:
        """Return the limits that bind a request of this class."""
        return self.batch if service_class == "batch" else self.interactive


@dataclass(frozen=True, slots=True)
class ReplicaSnapshot:
    """One engine server holding one model."""

    replica_id: str
    name: str
    pool: str
    url: str
    kind: str  # llamacpp, vllm, sglang, openai
    slots: int
    prefill_budget: int
    takes_priority: bool  # its scheduler honours a priority field
    state: str  # active, draining, disabled
    card: str = ""
    model: str = ""  # the engine's own name of the model; "" = same as the pool
    sealed_key: str = ""  # the key it asks of its callers (quotas.snapshots.sealed); "" = none


@dataclass(frozen=True, slots=True)
class ReservationSnapshot:
    """Slots kept for a group: the occurrence that runs, or else the next one."""

    group_id: str
    group_name: str
    slots: int
    starts_at: float  # Unix seconds
    ends_at: float
    is_running: bool


@dataclass(frozen=True, slots=True)
class PoolSnapshot:
    """The replicas of one model and how they are shared; None = the scheduler's default."""

    name: str
    aliases: tuple[str, ...] = ()
    batch_slots: int | None = None
    batch_slots_idle: int | None = None
    batch_idle_after_s: int = 60
    queue_bound_interactive: int = 128
    queue_bound_batch: int = 256
    max_output_tokens: int | None = None
    context: int | None = None
    reservations: tuple[ReservationSnapshot, ...] = ()

    def reserving(self, group_id: str) -> str:
        """Return the group if slots of this pool are, or will be, kept for it; else ""."""
        for one in self.reservations:
            if one.group_id == group_id:
                return group_id
        return ""


@dataclass(frozen=True, slots=True)
class CardSnapshot:
    """One accelerator; memory None = unknown, never 0."""

    card_id: str
    name: str
    memory_mib: int | None
    sharing_mode: str  # exclusive, shared, partitioned, pool


@dataclass(frozen=True, slots=True)
class Fleet:
    """Every pool, replica and card of one version of the books."""

    version: int
    pools: tuple[PoolSnapshot, ...] = ()
    replicas: tuple[ReplicaSnapshot, ...] = ()
    cards: tuple[CardSnapshot, ...] = ()
    announcements: tuple[str, ...] = ()


def to_json(snapshot: KeySnapshot | Fleet) -> bytes:
    """Serialise for Redis."""
    return _encode(snapshot).encode()


_OWN = tuple(name for name in KeySnapshot.__slots__ if name not in ("interactive", "batch"))


class KeyWriter:
    """Serialises keys for Redis; limits that many of them share are written once."""

    def __init__(self) -> None:
        self._written: dict[int, tuple[Limits, str]] = {}

    def json(self, key: KeySnapshot) -> bytes:
        """Return the key as `key_from_json` reads it."""
        own = {name: getattr(key, name) for name in _OWN}
        parts = (_encode(own)[:-1], self._limits(key.interactive), self._limits(key.batch))
        return '{},"interactive":{},"batch":{}}}'.format(*parts).encode()

    def _limits(self, limits: Limits) -> str:
        # By identity, which costs nothing to look up; the object is kept, so its id stays its own.
        found = self._written.get(id(limits))
        if found is None:
            found = self._written[id(limits)] = (limits, _encode(limits))
        return found[1]


def _fields(part: Any) -> dict[str, Any]:
    return {name: getattr(part, name) for name in part.__slots__}


_encode = json.JSONEncoder(default=_fields, separators=(",", ":")).encode


def _limits(raw: dict[str, Any]) -> Limits:
    models = raw.get("allowed_models")
    return Limits(
        key=raw["key"],
        person=raw["person"],
        group=raw["group"],
        defaults=tuple(raw["defaults"]),
        allowed_models=None if models is None else tuple(models),
        levels=raw.get("levels", {}),
    )


def key_from_json(text: bytes | str) -> KeySnapshot:
    """Read what `to_json` wrote of a key."""
    raw = json.loads(text)
    raw["interactive"] = _limits(raw["interactive"])
    raw["batch"] = _limits(raw["batch"])
    return KeySnapshot(**raw)


def _pool(raw: dict[str, Any]) -> PoolSnapshot:
    raw["aliases"] = tuple(raw["aliases"])
    raw["reservations"] = tuple(ReservationSnapshot(**r) for r in raw.get("reservations", ()))
    return PoolSnapshot(**raw)


def fleet_from_json(text: bytes | str) -> Fleet:
    """Read what `to_json` wrote of the fleet."""
    raw = json.loads(text)
    return Fleet(
        version=raw["version"],
        pools=tuple(_pool(pool) for pool in raw["pools"]),
        replicas=tuple(ReplicaSnapshot(**r) for r in raw["replicas"]),
        cards=tuple(CardSnapshot(**c) for c in raw["cards"]),
        announcements=tuple(raw["announcements"]),
    )
