"""Takes a picture of the books for the gateways: a fixed number of queries, however many keys."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from django.db.models import Min, Q, QuerySet

from quotas import resolve
from quotas.limits import CLASSES
from quotas.models import ApiKey, Card, LimitRow, OldSecret, Pool, Replica, User
from quotas.snapshots.directory import (
    CardSnapshot,
    Fleet,
    KeySnapshot,
    PoolSnapshot,
    ReplicaSnapshot,
)

if TYPE_CHECKING:
    from quotas.directory import Scope

# A key that stopped working is still told apart from one that never was, for this long.
REMEMBERED = dt.timedelta(days=30)


@dataclass(frozen=True, slots=True)
class Picture:
    """The books at one version."""

    keys: dict[str, KeySnapshot]  # SHA-256 of a secret -> its key
    fleet: Fleet
    next_change: float | None  # Unix seconds: when the next time-limited row ends


def take(now: dt.datetime, version: int, scope: Scope | None) -> Picture:
    """Read the keys of the scope (None: all) and the whole fleet."""
    rows = list(limit_rows(LimitRow.objects.all()))
    indexed = resolve.index(rows, now)
    keys = dict(_keys(indexed, now, version, scope))
    ends = [row.ends_at.timestamp() for row in rows if row.ends_at and row.ends_at > now]
    next_account = User.objects.filter(ends_at__gt=now).aggregate(at=Min("ends_at"))["at"]
    if next_account is not None:
        ends.append(next_account.timestamp())
    return Picture(keys, _fleet(version), min(ends, default=None))


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


def _keys(
    rows: resolve.Index, now: dt.datetime, version: int, scope: Scope | None
) -> Iterator[tuple[str, KeySnapshot]]:
    horizon = now - REMEMBERED
    keys = ApiKey.objects.filter(
        Q(revoked_at__isnull=True) | Q(revoked_at__gt=horizon),
        Q(expires_at__isnull=True) | Q(expires_at__gt=horizon),
    ).select_related("owner", "owner__group")
    if scope is not None:
        keys = keys.filter(Q(pk__in=scope.key_pks) | Q(owner_id__in=scope.user_ids))
    by_pk: dict[int, KeySnapshot] = {}
    for key in keys:
        by_pk[key.pk] = snapshot(key, rows, version, now)
        yield key.digest, by_pk[key.pk]
    for old in OldSecret.objects.filter(key__in=list(by_pk), valid_until__gt=now):
        current = by_pk[old.key_id]
        ends = min(old.valid_until.timestamp(), current.expires_at or float("inf"))
        yield old.digest, replace(current, expires_at=ends, masked=old.masked)


def snapshot(key: ApiKey, rows: resolve.Index, version: int, now: dt.datetime) -> KeySnapshot:
    """Return the key as the gateway needs it; `key.owner` and its group are already read."""
    owner = key.owner
    target = resolve.Target(group_id=owner.group_id, user_id=owner.pk, key_pk=key.pk)
    limits = {name: resolve.for_gateway(resolve.explain(rows, target, name)) for name in CLASSES}
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


def _fleet(version: int) -> Fleet:
    return Fleet(
        version=version,
        pools=tuple(_pool(pool) for pool in Pool.objects.all()),
        replicas=tuple(_replica(r) for r in Replica.objects.select_related("pool", "card")),
        cards=tuple(
            CardSnapshot(card.public_id, card.name, card.memory_mib, card.sharing_mode)
            for card in Card.objects.all()
        ),
    )


def _pool(pool: Pool) -> PoolSnapshot:
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
    )
