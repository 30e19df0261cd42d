"""Turns what the books publish into the caps the ledger knows."""

from __future__ import annotations

from collections import Counter

from gateway.core.types import ServiceClass
from gateway.ledger.interface import KeyPolicy, Ledger, PoolPolicy, ReplicaPolicy, UserPolicy
from quotas.snapshots.directory import Fleet, KeySnapshot, Limits, PoolSnapshot

DEFAULT_IN_FLIGHT = 2
DEFAULT_QUEUED = {
    ServiceClass.INTERACTIVE: (8, 16),  # per key, per person
    ServiceClass.BATCH: (16, 16),
}


def write_key(ledger: Ledger, key: KeySnapshot, user_id: str | None = None) -> None:
    """Hand a key and its owner to the ledger, in both classes.

    `user_id` names the flow where it is not the owner's: the end user of an application key.
    """
    for service_class in ServiceClass:
        limits = key.limits(service_class)
        of_key, of_person = DEFAULT_QUEUED[service_class]
        ledger.write_key(
            KeyPolicy(
                key_id=key.key_id,
                version=key.version,
                live=key.state == "live",
                in_flight=limits.key.get("in_flight", DEFAULT_IN_FLIGHT),
                queued=limits.key.get("queued", of_key),
                in_flight_is_default=_is_default(limits, "key", "in_flight"),
                service_class=service_class,
            )
        )
        ledger.write_user(
            UserPolicy(
                user_id=user_id or key.user_id,
                service_class=service_class,
                version=key.version,
                in_flight=(
                    None
                    if _is_default(limits, "person", "in_flight")
                    else limits.person.get("in_flight")
                ),
                queued=limits.person.get("queued", of_person),
                share=key.share,
            )
        )


def _is_default(limits: Limits, per: str, name: str) -> bool:
    return f"{per}.{name}" in limits.defaults or name not in getattr(limits, per)


def _reserved(pool: PoolSnapshot) -> tuple[tuple[str, int], ...]:
    """Return what is kept for each group now: 0 before a reservation begins."""
    slots: Counter[str] = Counter()
    for one in pool.reservations:
        slots[one.group_id] += one.slots if one.is_running else 0
    return tuple(sorted(slots.items()))


class FleetWriter:
    """Tells the ledger which pools and replicas there are, and which are no more."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: frozenset[str] = frozenset()

    def write(self, fleet: Fleet) -> None:
        """Take over the fleet of a new version of the books."""
        for pool in fleet.pools:
            self._ledger.write_pool(
                PoolPolicy(
                    pool=pool.name,
                    version=fleet.version,
                    batch_slots=pool.batch_slots,
                    batch_slots_idle=pool.batch_slots_idle,
                    batch_idle_after_ms=pool.batch_idle_after_s * 1000,
                    queue_bound_interactive=pool.queue_bound_interactive,
                    queue_bound_batch=pool.queue_bound_batch,
                    reserved=_reserved(pool),
                )
            )
        wanted = [replica for replica in fleet.replicas if replica.state != "disabled"]
        for replica in wanted:
            self._ledger.write_replica(
                ReplicaPolicy(
                    replica_id=replica.replica_id,
                    version=fleet.version,
                    pool=replica.pool,
                    slots=replica.slots,
                    prefill_budget=replica.prefill_budget,
                    card=replica.card,
                )
            )
        now = frozenset(replica.replica_id for replica in wanted)
        for gone in self._known - now:
            self._ledger.remove_replica(gone)
        self._known = now
