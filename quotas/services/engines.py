"""Engines: register, change, drain, remove replicas; pools and cards beside them."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db.models.functions import Lower

from quotas.models import Card, Pool, Replica
from quotas.picture import Scope
from quotas.services import books
from quotas.snapshots.addresses import BadAddress, allowed_hosts, engine_url

# Prompt tokens that may be read at once, until a rate is measured (docs/scheduler.md).
PREFILL_BUDGET = {"llamacpp": 8192}
PREFILL_BUDGET_OTHERWISE = 16_384
NO_KEYS = Scope()  # engines change nothing of any key


def register(
    *,
    url: str,
    pool: str,
    kind: str,
    slots: int,
    name: str = "",
    prefill_budget: int | None = None,
    takes_priority: bool = False,
    card: str = "",
    model: str = "",
    context: int | None = None,
) -> Replica:
    """Add a replica, or change the one at that address; its pool and card are made if missing."""
    url = check_url(url)
    with books.writing(NO_KEYS):
        home = _pool(pool, context)
        replica = Replica.objects.filter(url=url).first() or Replica(url=url)
        replica.pool = home
        replica.kind = kind
        replica.slots = slots
        replica.name = name.strip() or replica.name or _free_name(home.name)
        replica.prefill_budget = prefill_budget or PREFILL_BUDGET.get(
            kind, PREFILL_BUDGET_OTHERWISE
        )
        replica.takes_priority = takes_priority
        replica.card = Card.objects.get_or_create(name=card)[0] if card else replica.card
        replica.model = "" if model == home.name else model
        replica.full_clean()
        replica.save()
    return replica


def update(*, replica: Replica, **changes: Any) -> Replica:
    """Change named fields of a replica."""
    with books.writing(NO_KEYS):
        replica = Replica.objects.select_for_update().get(pk=replica.pk)
        if "url" in changes:
            changes["url"] = check_url(changes["url"])
        for field, value in changes.items():
            setattr(replica, field, value)
        replica.full_clean()
        replica.save()
    return replica


def set_state(*, replica: Replica, state: str) -> Replica:
    """Drain, disable or activate a replica."""
    return update(replica=replica, state=state)


def drain(*, replica: Replica) -> Replica:
    """Let it finish what runs and take nothing new."""
    return set_state(replica=replica, state=Replica.State.DRAINING)


def remove(*, replica: Replica) -> None:
    """Forget a replica; its usage stays in the books."""
    with books.writing(NO_KEYS):
        replica.delete()


def update_pool(*, pool: Pool, **changes: Any) -> Pool:
    """Change how a pool is shared."""
    with books.writing(NO_KEYS):
        pool = Pool.objects.select_for_update().get(pk=pool.pk)
        for field, value in changes.items():
            setattr(pool, field, value)
        check_aliases(pool)
        pool.full_clean()
        pool.save()
    return pool


def check_aliases(pool: Pool) -> None:
    """Refuse a name that would mean two models."""
    wanted = {name.lower() for name in [pool.name, *pool.aliases]}
    others = Pool.objects.exclude(pk=pool.pk).annotate(lower=Lower("name"))
    for other in others:
        taken = {name.lower() for name in [other.name, *other.aliases]} & wanted
        if taken:
            raise ValidationError({"aliases": f"{taken.pop()} already means {other.name}."})


def check_url(url: str) -> str:
    """Return the address in its plain form, or refuse one that no engine may have.

    The rule is `quotas.snapshots.addresses`, which the gateway applies again to what a host name
    leads to, each time it connects.
    """
    allowed = allowed_hosts(
        getattr(settings, "ENGINE_HOSTS", ()), [getattr(settings, "ENGINE_URL", "")]
    )
    try:
        return engine_url(url.strip(), allowed)
    except BadAddress as error:
        raise ValidationError({"url": str(error)}) from error


def _pool(name: str, context: int | None) -> Pool:
    pool = Pool.objects.filter(name=name).first() or Pool(name=name.strip())
    if pool._state.adding or (context and pool.context is None):
        pool.context = context
        check_aliases(pool)
        pool.full_clean()
        pool.save()
    return pool


def _free_name(pool: str) -> str:
    """Return the first of model-1, model-2, … that no replica has."""
    base = pool.rsplit("/", 1)[-1][:90]
    taken = set(Replica.objects.values_list("name", flat=True))
    number = 1
    while f"{base}-{number}" in taken:
        number += 1
    return f"{base}-{number}"
