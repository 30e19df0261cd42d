"""Engines: register, change, drain, remove replicas; pools and cards beside them."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db.models.functions import Lower
from django.utils import timezone

from quotas.models import Card, Pool, Replica
from quotas.picture import Scope
from quotas.services import books
from quotas.snapshots.addresses import BadAddress, allowed_hosts, engine_url
from quotas.snapshots.sealed import opened, seal

# Prompt tokens that may be read at once, until a rate is measured (docs/scheduler.md).
PREFILL_BUDGET = {"llamacpp": 8192}
PREFILL_BUDGET_OTHERWISE = 16_384
NO_KEYS = Scope()  # engines change nothing of any key
# What may stand in a header; anything else would be cut off or worse.
API_KEY = re.compile(r"[!-~]{1,512}")


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
    api_key: str | None = None,
) -> Replica:
    """Add a replica, or change the one at that address; its pool and card are made if missing.

    `api_key` is the key the engine asks of its callers: None leaves it, "" forgets it.
    """
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
        set_api_key(replica, api_key)
        replica.full_clean()
        replica.save()
    return replica


def update(*, replica: Replica, api_key: str | None = None, **changes: Any) -> Replica:
    """Change named fields of a replica."""
    with books.writing(NO_KEYS):
        replica = Replica.objects.select_for_update().get(pk=replica.pk)
        before = replica.url
        if "url" in changes:
            changes["url"] = check_url(changes["url"])
        for field, value in changes.items():
            setattr(replica, field, value)
        set_api_key(replica, api_key, moved_from=before)
        replica.full_clean()
        replica.save()
    return replica


def set_api_key(replica: Replica, api_key: str | None, *, moved_from: str = "") -> None:
    """Seal the key an engine asks for; None leaves the one there is, "" forgets it.

    One that moves to another host forgets its key: else whoever may change an address, but was
    never told the key, could have it sent to a server of their own.
    """
    has_moved = moved_from and urlsplit(moved_from).netloc != urlsplit(replica.url).netloc
    if api_key is None and has_moved:
        api_key = ""
    if api_key is None or (not api_key and not replica.sealed_key):
        return
    if api_key and not API_KEY.fullmatch(api_key):
        raise ValidationError(
            {"api_key": "A key has up to 512 letters, digits and signs, and no spaces."}
        )
    replica.sealed_key = seal(settings.SECRET_KEY, api_key)
    replica.key_set_at = timezone.now() if api_key else None


def api_key_of(replica: Replica) -> str:
    """Return the key an engine asks for, "" for none; for the gateway's commands only."""
    return opened(settings.SECRET_KEY, replica.sealed_key)


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
