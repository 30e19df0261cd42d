"""Keys: issue, rename, extend, rotate, disable, revoke."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass

from django.core.exceptions import ValidationError
from django.utils import timezone

from quotas.models import ApiKey, OldSecret, ServiceClass, User
from quotas.picture import Scope
from quotas.services import books
from quotas.snapshots import keyformat

DEFAULT_LIFETIME = dt.timedelta(days=90)
LONGEST_LIFETIME = dt.timedelta(days=3650)
LONGEST_OVERLAP = dt.timedelta(days=30)


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A key and the only copy of its secret there will ever be."""

    key: ApiKey
    secret: str

    def __repr__(self) -> str:
        return f"IssuedKey({self.key!r})"  # a secret must not reach a log or a traceback


def issue(
    *,
    owner: User,
    name: str,
    service_class: str,
    lifetime: dt.timedelta | None = DEFAULT_LIFETIME,
    kind: str = ApiKey.Kind.ORDINARY,
    end_user_header: str = "",
    may_manage: bool = False,
    most: int | None = None,
) -> IssuedKey:
    """Create a key; lifetime None means it never expires.

    `most` is how many keys the owner may have. They are counted under the books' lock, so that
    who sends ten forms at once gets no more than who sends one after the other.
    """
    if service_class not in ServiceClass.values:
        raise ValidationError({"service_class": "The class is interactive or batch."})
    secret = keyformat.generate(service_class)
    key = ApiKey(
        owner=owner,
        name=name.strip(),
        service_class=service_class,
        kind=kind,
        end_user_header=end_user_header.strip(),
        may_manage=may_manage,
        digest=keyformat.digest(secret),
        masked=keyformat.masked(secret),
        expires_at=_end_of(lifetime),
    )
    with books.writing(Scope(user_ids=frozenset({owner.pk}))):
        if most is not None and owner.keys.filter(revoked_at=None).count() >= most:
            raise ValidationError(
                f"{most} keys are the most one person may have. Revoke one that is not used."
            )
        key.full_clean()
        key.save(force_insert=True)
    return IssuedKey(key, secret)


def rename(*, key: ApiKey, name: str) -> ApiKey:
    """Give the key another name."""
    with books.writing(_scope(key)):
        key = _locked(key)
        key.name = name.strip()
        key.full_clean()
        key.save(update_fields=["name"])
    return key


def extend(*, key: ApiKey, lifetime: dt.timedelta | None) -> ApiKey:
    """Let a live key expire `lifetime` from now. An expired one is not re-armed: rotate it."""
    with books.writing(_scope(key)):
        key = _locked(key)
        if key.state(timezone.now()) == "expired":
            raise ValidationError("An expired key stays expired: rotate it for a new secret.")
        key.expires_at = _end_of(lifetime)
        key.save(update_fields=["expires_at"])
    return key


def rotate(
    *,
    key: ApiKey,
    overlap: dt.timedelta = dt.timedelta(0),
    lifetime: dt.timedelta | None = DEFAULT_LIFETIME,
    seen_masked: str = "",
) -> IssuedKey:
    """Give the key a new secret; id, limits and usage stay. The old one works for `overlap`.

    `seen_masked` is what the page showed of the secret to replace: a form sent twice rotates once.
    """
    if not dt.timedelta(0) <= overlap <= LONGEST_OVERLAP:
        raise ValidationError({"overlap": f"Between 0 and {LONGEST_OVERLAP.days} days."})
    now = timezone.now()
    secret = keyformat.generate(key.service_class)
    with books.writing(_scope(key)) as gone:
        key = _locked(key)
        if seen_masked and seen_masked != key.masked:
            raise ValidationError("This key was rotated meanwhile; its newest secret stays.")
        old_ends = min(now + overlap, key.expires_at or now + overlap)
        if old_ends > now:
            OldSecret.objects.create(
                key=key, digest=key.digest, masked=key.masked, valid_until=old_ends
            )
        gone.add(key.digest)
        key.digest = keyformat.digest(secret)
        key.masked = keyformat.masked(secret)
        key.expires_at = _end_of(lifetime)
        key.save(update_fields=["digest", "masked", "expires_at"])
    return IssuedKey(key, secret)


def disable(*, key: ApiKey) -> ApiKey:
    """Stop the key until it is enabled again."""
    with books.writing(_scope(key)):
        key = _locked(key)
        key.disabled_at = key.disabled_at or timezone.now()
        key.save(update_fields=["disabled_at"])
    return key


def enable(*, key: ApiKey) -> ApiKey:
    """Let a disabled key work again."""
    with books.writing(_scope(key)):
        key = _locked(key)
        key.disabled_at = None
        key.save(update_fields=["disabled_at"])
    return key


def revoke(*, key: ApiKey) -> ApiKey:
    """End the key for good, its old secrets with it. Revoking twice changes nothing."""
    with books.writing(_scope(key)) as gone:
        key = ApiKey.objects.select_for_update().get(pk=key.pk)
        if key.revoked_at is None:
            key.revoked_at = timezone.now()
            key.save(update_fields=["revoked_at"])
            gone.update(key.old_secrets.values_list("digest", flat=True))
            key.old_secrets.all().delete()
    return key


def revoke_all(*, owners: Iterable[User]) -> int:
    """End every key of these people for good, all or none; return how many were ended now."""
    people = frozenset(owner.pk for owner in owners)
    with books.writing(Scope(user_ids=people)) as gone:
        chosen = ApiKey.objects.select_for_update().filter(owner__in=people, revoked_at=None)
        pks = list(chosen.values_list("pk", flat=True))
        old = OldSecret.objects.filter(key__in=pks)
        gone.update(old.values_list("digest", flat=True))
        old.delete()
        ApiKey.objects.filter(pk__in=pks).update(revoked_at=timezone.now())
    return len(pks)


def _scope(key: ApiKey) -> Scope:
    return Scope(key_pks=frozenset({key.pk}))


def _locked(key: ApiKey) -> ApiKey:
    """Read the key again under lock; a revoked one can no longer be changed."""
    key = ApiKey.objects.select_for_update().get(pk=key.pk)
    if key.revoked_at is not None:
        raise ValidationError("The key is revoked; that is final.")
    return key


def _end_of(lifetime: dt.timedelta | None) -> dt.datetime | None:
    if lifetime is None:
        return None
    if not dt.timedelta(0) < lifetime <= LONGEST_LIFETIME:
        raise ValidationError({"expires_at": "Between now and ten years from now."})
    return timezone.now() + lifetime
