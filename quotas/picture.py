"""Takes a picture of the books for the gateways: a fixed number of queries, however many keys."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, replace

from django.db.models import Min, Q, QuerySet

from quotas import reserved, resolve
from quotas.limits import CLASSES
from quotas.models import ApiKey, Card, LimitRow, OldSecret, Pool, Replica, User
from quotas.reserved import Shown
from quotas.snapshots.directory import (
    CardSnapshot,
    Fleet,
    KeySnapshot,
    Limits,
    PoolSnapshot,
    ReplicaSnapshot,
    ReservationSnapshot,
)

# A key that stopped working is still told apart from one that never was, for this long.
REMEMBERED = dt.timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose keys a change can have touched; everything else in Redis stays as it is."""

    user_ids: frozenset[int] = frozenset()
    key_pks: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Picture:
    """The books at one version."""

    keys: dict[str, KeySnapshot]  # SHA-256 of a secret -> its key
    fleet: Fleet
    next_change: float | None  # Unix seconds: when the next time-limited row ends


def take(now: dt.datetime, version: int, scope: Scope | None) -> Picture:
    """Read the keys of the scope (None: all) and the whole fleet."""
    keys = list(_keys(now, scope))
    rows = LimitRow.objects.all()
    if scope is not None:
        rows = rows.filter(_concerning(keys))
    resolver = _Resolver(resolve.index(limit_rows(rows), now))
    by_pk = {key.pk: snapshot(key, resolver, version, now) for key in keys}
    snapshots = {key.digest: by_pk[key.pk] for key in keys}
    olds = OldSecret.objects.filter(valid_until__gt=now)
    if scope is not None:
        olds = olds.filter(key__in=list(by_pk))
    for old in olds:
        current = by_pk.get(old.key_id)
        if current is None:
            continue
        ends = min(old.valid_until.timestamp(), current.expires_at or float("inf"))
        snapshots[old.digest] = replace(current, expires_at=ends, masked=old.masked)
    kept = reserved.running_and_coming(now)
    return Picture(snapshots, _fleet(version, kept), _next_change(now, kept))


def _concerning(keys: list[ApiKey]) -> Q:
    """Return the rows of limits that any of the keys can feel."""
    return (
        Q(level="everyone")
        | Q(group__in={key.owner.group_id for key in keys} - {None})
        | Q(user__in={key.owner_id for key in keys})
        | Q(key__in=[key.pk for key in keys])
    )


def _next_change(now: dt.datetime, kept: list[Shown]) -> float | None:
    """Return when the next limit or account ends, or a reservation begins or ends, by itself."""
    ends: list[dt.datetime | None] = [one.next_change for one in kept]
    ends += [
        model.objects.filter(ends_at__gt=now).aggregate(at=Min("ends_at"))["at"]
        for model in (LimitRow, User)
    ]
    return min((end.timestamp() for end in ends if end is not None), default=None)


def limit_rows(rows: QuerySet[LimitRow]) -> Iterator[resolve.Row]:
    """Read rows of limits as plain data."""
    for row in rows.order_by("id"):
        yield resolve.Row(
            id=row.pk,
            level=row.level,
            group_id=row.group_id,
            user_id=row.user_id,
            key_pk=row.key_id,
            service_class=row.service_class,
            name=row.name,
            per=row.per,
            value=row.value,
            names=None if row.names is None else tuple(row.names),
            ends_at=row.ends_at,
            note=row.note,
            edition=row.edition,
        )


def _keys(now: dt.datetime, scope: Scope | None) -> QuerySet[ApiKey]:
    horizon = now - REMEMBERED
    keys = ApiKey.objects.filter(
        Q(revoked_at__isnull=True) | Q(revoked_at__gt=horizon),
        Q(expires_at__isnull=True) | Q(expires_at__gt=horizon),
    ).select_related("owner", "owner__group")
    if scope is not None:
        keys = keys.filter(Q(pk__in=scope.key_pks) | Q(owner_id__in=scope.user_ids))
    return keys


class _Resolver:
    """Resolves each combination of group, user and key that has rows of its own only once."""

    def __init__(self, rows: resolve.Index) -> None:
        self._rows = rows
        self._known: dict[resolve.Target, dict[str, Limits]] = {}

    def limits(self, key: ApiKey) -> dict[str, Limits]:
        """Return the key's limits in both classes."""
        group_id, user_id = key.owner.group_id, key.owner_id
        target = resolve.Target(
            group_id=group_id if ("group", group_id) in self._rows else None,
            user_id=user_id if ("user", user_id) in self._rows else None,
            key_pk=key.pk if ("key", key.pk) in self._rows else None,
        )
        if target not in self._known:
            self._known[target] = {
                name: resolve.for_gateway(resolve.explain(self._rows, target, name))
                for name in CLASSES
            }
        return self._known[target]


def snapshot(key: ApiKey, resolver: _Resolver, version: int, now: dt.datetime) -> KeySnapshot:
    """Return the key as the gateway needs it; `key.owner` and its group are already read."""
    owner = key.owner
    limits = resolver.limits(key)
    return KeySnapshot(
        key_id=key.public_id,
        name=key.name,
        user_id=str(owner.pk),
        user_name=owner.username,
        group_id="" if owner.group_id is None else str(owner.group_id),
        service_class=key.service_class,
        state=_state(key, now),
        expires_at=None if key.expires_at is None else key.expires_at.timestamp(),
        interactive=limits["interactive"],
        batch=limits["batch"],
        share=owner.share,
        version=version,
        end_user_header=key.end_user_header,
        masked=key.masked,
    )


def _state(key: ApiKey, now: dt.datetime) -> str:
    if key.revoked_at is not None:
        return "revoked"
    owner = key.owner
    if owner.ends_at is not None and owner.ends_at <= now:
        return "owner_disabled"
    if not owner.is_active or (owner.group is not None and not owner.group.is_active):
        return "owner_disabled"
    return "live" if key.disabled_at is None else "disabled"


def _fleet(version: int, kept: list[Shown]) -> Fleet:
    return Fleet(
        version=version,
        pools=tuple(_pool(pool, kept) for pool in Pool.objects.all()),
        replicas=tuple(_replica(r) for r in Replica.objects.select_related("pool", "card")),
        cards=tuple(
            CardSnapshot(card.public_id, card.name, card.memory_mib, card.sharing_mode)
            for card in Card.objects.all()
        ),
    )


def _pool(pool: Pool, kept: list[Shown]) -> PoolSnapshot:
    return PoolSnapshot(
        name=pool.name,
        aliases=tuple(pool.aliases),
        batch_slots=pool.batch_slots,
        batch_slots_idle=pool.batch_slots_idle,
        batch_idle_after_s=pool.batch_idle_after_s,
        queue_bound_interactive=pool.queue_bound_interactive,
        queue_bound_batch=pool.queue_bound_batch,
        max_output_tokens=pool.max_output_tokens,
        context=pool.context,
        reservations=tuple(_reservation(one) for one in kept if one.reservation.pool_id == pool.pk),
    )


def _reservation(kept: Shown) -> ReservationSnapshot:
    return ReservationSnapshot(
        group_id=str(kept.reservation.group_id),
        group_name=kept.reservation.group.name,
        slots=kept.reservation.slots,
        starts_at=kept.occurrence.starts_at.timestamp(),
        ends_at=kept.occurrence.ends_at.timestamp(),
        is_running=kept.is_running,
    )


def _replica(replica: Replica) -> ReplicaSnapshot:
    return ReplicaSnapshot(
        replica_id=replica.public_id,
        name=replica.name,
        pool=replica.pool.name,
        url=replica.url,
        kind=replica.kind,
        slots=replica.slots,
        prefill_budget=replica.prefill_budget,
        takes_priority=replica.takes_priority,
        state=replica.state,
        card=replica.card.public_id if replica.card else "",
        model=replica.model,
        sealed_key=replica.sealed_key,
    )
