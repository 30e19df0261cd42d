"""Decides which limit binds: pure functions from rows of limits to one number for each limit.

For each (class of service, limit, per) the narrowest level that is set wins: key, then user, then
group, then everyone, then the default. At one level a row with an end counts instead of the
lasting row until it ends. Limits counted per key, per person and per group bind side by side.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from quotas.limits import SPECS, LimitSpec
from quotas.snapshots.directory import Limits

WIDEST_FIRST = ("everyone", "group", "user", "key")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of limits, without its table."""

    id: int
    level: str
    group_id: int | None
    user_id: int | None
    key_pk: int | None
    service_class: str
    name: str
    per: str
    value: int | None
    names: tuple[str, ...] | None
    ends_at: dt.datetime | None
    note: str = ""
    edition: int = 0

    def is_in_force(self, now: dt.datetime) -> bool:
        """Tell whether the row has not ended."""
        return self.ends_at is None or self.ends_at > now


@dataclass(frozen=True, slots=True)
class Target:
    """Whose limits are asked for; None where there is no such level (a person without a key)."""

    group_id: int | None = None
    user_id: int | None = None
    key_pk: int | None = None


@dataclass(frozen=True, slots=True)
class Effective:
    """What binds for one limit, and where it comes from."""

    spec: LimitSpec
    service_class: str
    per: str
    value: int | None  # None: no limit (or, for in flight per person, computed by the ledger)
    names: tuple[str, ...] | None
    level: str  # everyone, group, user, key, or default
    ends_at: dt.datetime | None = None
    row_id: int | None = None
    by_level: Mapping[str, Row] | None = None  # every row in force, winner or not


Index = Mapping[tuple[str, int | None], Sequence[Row]]


def index(rows: Iterable[Row], now: dt.datetime) -> Index:
    """Sort the rows in force by the group, user or key they are set for."""
    by_target: dict[tuple[str, int | None], list[Row]] = defaultdict(list)
    for row in rows:
        if row.is_in_force(now):
            target = {"group": row.group_id, "user": row.user_id, "key": row.key_pk}
            by_target[row.level, target.get(row.level)].append(row)
    return by_target


def without(rows: Index, level: str) -> Index:
    """Return the index as if nothing were set at the level."""
    return {target: found for target, found in rows.items() if target[0] != level}


def _candidates(rows: Index, target: Target) -> dict[tuple[str, str, str], dict[str, Row]]:
    """Group the target's rows by (class, limit, per), then by level."""
    wanted = {
        "everyone": (None, True),
        "group": (target.group_id, target.group_id is not None),
        "user": (target.user_id, target.user_id is not None),
        "key": (target.key_pk, target.key_pk is not None),
    }
    found: dict[tuple[str, str, str], dict[str, Row]] = defaultdict(dict)
    for level in WIDEST_FIRST:
        number, is_asked_for = wanted[level]
        if not is_asked_for:
            continue
        for row in rows.get((level, number), ()):
            same = found[row.service_class, row.name, row.per]
            if row.ends_at is not None or level not in same:
                same[level] = row
    return found


def explain(
    rows: Index, target: Target, service_class: str, specs: Sequence[LimitSpec] = SPECS
) -> list[Effective]:
    """Return every limit that can bind the target in this class, with its source."""
    found = _candidates(rows, target)
    return [
        _effective(spec, service_class, per, found.get((service_class, spec.name, per), {}))
        for spec in specs
        if spec.is_enforced and service_class in spec.classes
        for per in spec.pers
    ]


def _effective(
    spec: LimitSpec, service_class: str, per: str, by_level: dict[str, Row]
) -> Effective:
    for level in reversed(WIDEST_FIRST):
        if row := by_level.get(level):
            return Effective(
                spec=spec,
                service_class=service_class,
                per=per,
                value=row.value,
                names=row.names,
                level=level,
                ends_at=row.ends_at,
                row_id=row.id,
                by_level=by_level,
            )
    value = spec.default(service_class, per)
    return Effective(spec, service_class, per, value, None, "default", by_level=by_level)


def for_gateway(effective: Iterable[Effective]) -> Limits:
    """Put what binds into the form the gateway reads; what does not bind is left out."""
    numbers: dict[str, dict[str, int]] = {"key": {}, "person": {}, "group": {}}
    defaults: list[str] = []
    levels: dict[str, str] = {}
    allowed_models: tuple[str, ...] | None = None
    for item in effective:
        if item.spec.is_list:
            allowed_models = item.names
            continue
        if item.level == "default":
            defaults.append(f"{item.per}.{item.spec.name}")
        if item.value is not None:
            numbers[item.per][item.spec.name] = item.value
            if item.level != "default":
                levels[f"{item.per}.{item.spec.name}"] = item.level
    return Limits(
        key=numbers["key"],
        person=numbers["person"],
        group=numbers["group"],
        defaults=tuple(defaults),
        allowed_models=allowed_models,
        levels=levels,
    )
