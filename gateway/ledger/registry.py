"""Caps and replicas as the ledger knows them: written by gateways, never guessed.

Rule 1: what is missing starts nothing. Rule 2: an older version never overwrites a newer one.
Rule 3: nothing running is ever ended by a write; there is no start until below.
"""

from __future__ import annotations

from dataclasses import replace

from gateway.core.placing import Replica
from gateway.core.types import ServiceClass
from gateway.ledger import operations as op
from gateway.ledger.desk import Desk
from gateway.ledger.interface import KeyPolicy, PoolPolicy, ReplicaPolicy, UserPolicy
from gateway.ledger.state import BATCH, LedgerState

Seen = tuple[bool, int | None, bool]  # accepts, slots, affine


class Registry:
    """Takes policies and observations, and keeps what follows from them."""

    def __init__(self, state: LedgerState, desk: Desk) -> None:
        self.state = state
        #: What each replica looked like to each gateway process.
        self.seen: dict[tuple[str, str], Seen] = {}
        self._desk = desk

    def write_key(self, policy: KeyPolicy) -> None:
        """Take a key's caps; one that is no longer live loses what it has queued."""
        for service_class in ServiceClass:
            if policy.service_class not in (None, service_class):
                continue
            owner = (service_class, policy.key_id)
            known = self.state.keys.get(owner)
            if known is not None and known.version > policy.version:
                continue
            self.state.keys[owner] = replace(policy, service_class=service_class)
            if not policy.live:
                self._put_out(service_class, policy.key_id)

    def _put_out(self, service_class: ServiceClass, key_id: str) -> None:
        gone = [
            e
            for e in self.state.entries.values()
            if not e.replica_id and e.key == (service_class, key_id)
        ]
        for entry in sorted(gone, key=lambda e: e.seq):
            self._desk.revoke(entry)

    def write_user(self, policy: UserPolicy) -> None:
        """Take a user's caps; a larger batch cap widens the accrual window."""
        owner = (policy.service_class, policy.user_id)
        known = self.state.users.get(owner)
        if known is not None and known.version > policy.version:
            return
        self.state.users[owner] = policy
        if policy.service_class is BATCH:
            for pool in sorted(self.state.pools):
                self._desk.widen_window((pool, BATCH, policy.user_id))

    def write_pool(self, policy: PoolPolicy) -> None:
        known = self.state.pools.get(policy.pool)
        if known is None or known.version <= policy.version:
            self.state.pools[policy.pool] = policy
            self.refresh()

    def write_replica(self, policy: ReplicaPolicy) -> None:
        known = self.state.replica_policies.get(policy.replica_id)
        if known is not None and known.version > policy.version:
            return
        self.state.replica_policies[policy.replica_id] = policy
        replica = self.state.replicas.get(policy.replica_id)
        if replica is None:
            replica = Replica(policy.replica_id, policy.pool, 0, 0, 0)
            self.state.replicas[policy.replica_id] = replica
        replica.pool, replica.slots = policy.pool, policy.slots
        replica.prefill_budget = policy.prefill_budget
        self.refresh()

    def remove_replica(self, replica_id: str) -> None:
        """Forget a replica; what runs there stays counted until it ends."""
        self.state.replica_policies.pop(replica_id, None)
        replica = self.state.replicas.get(replica_id)
        if replica is not None and not replica.in_flight:
            del self.state.replicas[replica_id]
        for key in [k for k in self.seen if k[0] == replica_id]:
            del self.seen[key]
        self.refresh()

    def observe(self, gateway: str, seen: op.Observe) -> None:
        """Take one process's view of a replica; a restarted engine has lost every cache."""
        if seen.replica_id not in self.state.replica_policies:
            return
        self.seen[(seen.replica_id, gateway)] = (seen.accepts, seen.slots, seen.affine)
        if seen.incarnation:
            self._desk.homes.incarnations[seen.replica_id] = seen.incarnation
        self.refresh()

    def forget_gateway(self, gateway: str) -> None:
        """Drop what a dead process saw."""
        for key in [k for k in self.seen if k[1] == gateway]:
            del self.seen[key]
        self.refresh()

    def refresh(self) -> None:
        """Work out which replicas take work, with how many slots, and which pools have none."""
        state = self.state
        for replica in state.replicas.values():
            views = [s for (name, _), s in self.seen.items() if name == replica.replica_id]
            registered = replica.replica_id in state.replica_policies
            replica.accepts = registered and all(accepts for accepts, _, _ in views)
            replica.affine = all(affine for _, _, affine in views)
            told = [slots for _, slots, _ in views if slots is not None]
            replica.slots_now = min([replica.slots, *told])
        state.count_fleet()
        for pool in state.pools:
            if pool in state.up:
                state.down_since_ms.pop(pool, None)
            else:
                state.down_since_ms.setdefault(pool, state.now_ms)
