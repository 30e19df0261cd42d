"""Who calls, and on which way to which pool: what is worked out once for very many requests.

Rule 1: nothing here changes but what is remembered of work done for it.
Rule 2: a caller lasts as long as the snapshot of its key, a way as long as the directory's edition.
"""

from __future__ import annotations

import orjson

from gateway.charges import COUNTED, Plan, needs_calendar
from gateway.core import tier
from gateway.core.fields import PATH_OF, Kind
from gateway.core.types import ServiceClass
from gateway.fleet.activity import Activity
from gateway.metrics import PoolMetrics
from gateway.upstream import Target
from quotas.snapshots.directory import KeySnapshot, PoolSnapshot, ReplicaSnapshot

_NAMES_TIER = frozenset((Kind.CHAT, Kind.RESPONSES))


class Caller:
    """The key behind a request, and in which class it stands; the same for all its requests."""

    __slots__ = (
        "_as_batch", "batch_id", "class_header", "end_user", "expires_at", "identities",
        "is_counted", "key", "limits", "needs_calendar", "plans", "service_class", "user_id",
        "ways",
    )  # fmt: skip

    def __init__(
        self,
        key: KeySnapshot,
        service_class: ServiceClass,
        user_id: str,  # whose flow: the owner, or the end user an application key names
        end_user: str = "",
        batch_id: str = "",
    ) -> None:
        self.key = key
        self.service_class = service_class
        self.user_id = user_id
        self.end_user = end_user
        self.batch_id = batch_id
        self.expires_at = key.expires_at
        #: What each answer says of its class.
        self.class_header = (b"x-fairway-class", service_class.value.encode())
        #: The limits that bind.
        limits = self.limits = key.limits(service_class)
        #: Whose counters it draws on; behind an application key that of the end user.
        self.identities = {"key": key.key_id, "person": user_id, "group": key.group_id}
        #: Does any limit per minute, day or month bind it?
        self.is_counted = any(
            name in COUNTED for of in (limits.key, limits.person, limits.group) for name in of
        )
        #: Does a limit of a day or month?
        self.needs_calendar = needs_calendar(limits)
        #: Its counted limits by time zone (quota).
        self.plans: dict[str, Plan] = {}
        #: Its ways by route and the name of the model it asks for (intake).
        self.ways: dict[tuple[Kind, str], Way] = {}
        self._as_batch: Caller | None = None

    @property
    def as_batch(self) -> Caller:
        """Return the same caller in the batch class."""
        if self._as_batch is None:
            self._as_batch = Caller(
                self.key, ServiceClass.BATCH, self.user_id, self.end_user, self.batch_id
            )
        return self._as_batch

    def least(self, name: str) -> int | None:
        """Return the tightest of its limits of this name."""
        scopes = (self.limits.key, self.limits.person, self.limits.group)
        return min((scope[name] for scope in scopes if name in scope), default=None)


class Way:
    """One caller's way to one pool by one route."""

    __slots__ = (
        "caller", "context", "edition", "group", "kind", "legs", "metrics", "most_output",
        "most_prompt", "names_tier", "pool_name", "replica_ids", "written",
    )  # fmt: skip

    def __init__(
        self,
        caller: Caller,
        kind: Kind,
        pool: PoolSnapshot,
        edition: object,
        replica_ids: tuple[str, ...],
        metrics: PoolMetrics,
    ) -> None:
        self.caller = caller
        self.kind = kind
        self.pool_name = pool.name
        self.context = pool.context
        self.edition = edition  # of the directory that it was found in
        self.replica_ids = replica_ids
        self.metrics = metrics
        stated = (caller.least("max_output_tokens"), pool.max_output_tokens, pool.context)
        #: The longest answer and prompt that may be asked for.
        self.most_output = min((limit for limit in stated if limit is not None), default=None)
        self.most_prompt = caller.least("max_prompt_tokens")
        #: Its group, where that has slots of the pool reserved; else "".
        self.group = pool.reserving(caller.key.group_id)
        #: The service tier its answers name where the client asks.
        self.names_tier = tier.TIER_OF[caller.service_class] if kind in _NAMES_TIER else ""
        #: Its last legs, by replica (dispatch).
        self.legs: dict[str, Leg] = {}
        #: What the usage records of all its requests have in common.
        self.written = self._written()

    def _written(self) -> bytes:
        key = self.caller.key
        fields = {
            "key_id": key.key_id,
            "user_id": key.user_id,
            "group_id": key.group_id,
            "service_class": self.caller.service_class,
            "route": PATH_OF[self.kind],
            "model": self.pool_name,
            "end_user": self.caller.end_user,
            "batch_id": self.caller.batch_id,
        }
        return orjson.dumps(fields)[1:-1]


class Leg:
    """The last leg of a way: to one replica of the pool."""

    __slots__ = (
        "activity", "edition", "head", "kind", "model", "salt", "takes_priority", "target",
    )  # fmt: skip

    def __init__(
        self,
        replica: ReplicaSnapshot,
        edition: object,
        activity: Activity,
        target: Target,
        head: bytes,
        salt: str | None,
    ) -> None:
        self.edition = edition  # of the directory that the replica was found in
        self.activity = activity
        self.target = target
        self.head = head  # of all its requests, up to what is each one's own
        self.salt = salt  # keeps other people from timing its prompts in the prefix cache
        self.kind = replica.kind
        self.model = replica.model  # the engine's own name of the model; "" = same as the pool
        self.takes_priority = replica.takes_priority
