"""Invitations: one link by which the people of a course make their own accounts."""

from __future__ import annotations

import datetime as dt
import hashlib
from dataclasses import dataclass

from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.utils import timezone

from quotas.models import Group, Invite, User
from quotas.models.requests import new_token
from quotas.services import books
from quotas.services.limits import NO_KEYS


@dataclass(frozen=True, slots=True)
class MadeInvite:
    """An invitation and the only copy of its link's secret part."""

    invite: Invite
    token: str


def make(
    *,
    group: Group,
    seats: int,
    ends_at: dt.datetime,
    by: User,
    accounts_end_at: dt.datetime | None = None,
) -> MadeInvite:
    """Make a link for `seats` people; limits are those of the group."""
    if not (by.is_staff or group.owners.filter(pk=by.pk).exists()):
        raise ValidationError("Only administrators and the group's owners invite.")
    now = timezone.now()
    if ends_at <= now or (accounts_end_at is not None and accounts_end_at <= now):
        raise ValidationError({"ends_at": "The end must be in the future."})
    token = new_token()
    invite = Invite(
        group=group,
        token_digest=_digest(token),
        seats=seats,
        ends_at=ends_at,
        accounts_end_at=accounts_end_at,
        made_by=by,
    )
    with books.writing(NO_KEYS):
        invite.full_clean()
        invite.save()
    return MadeInvite(invite, token)


def find(*, token: str) -> Invite | None:
    """Return the invitation of a link while it works."""
    invite = (
        Invite.objects.select_related("group")
        .filter(token_digest=_digest(token), revoked_at__isnull=True, ends_at__gt=timezone.now())
        .first()
    )
    return invite if invite is not None and invite.taken < invite.seats else None


def accept(*, token: str, username: str, password: str, email: str = "") -> User:
    """Take one seat and make the account; two people never take the same seat."""
    with books.writing(NO_KEYS):
        invite = (
            Invite.objects.select_for_update(of=["self"])
            .select_related("group")
            .filter(token_digest=_digest(token))
            .first()
        )
        now = timezone.now()
        if invite is None or invite.revoked_at is not None or invite.ends_at <= now:
            raise ValidationError("This link does not work any more.")
        if invite.taken >= invite.seats:
            raise ValidationError("Every seat of this link is taken.")
        user = User(
            username=username.strip(),
            email=email,
            group=invite.group,
            ends_at=invite.accounts_end_at,
        )
        validate_password(password, user)
        user.set_password(password)
        user.full_clean()
        user.save()
        invite.taken += 1
        invite.save(update_fields=["taken"])
    return user


def revoke(*, invite: Invite) -> Invite:
    """Stop the link; accounts made by it stay."""
    with books.writing(NO_KEYS):
        invite = Invite.objects.select_for_update().get(pk=invite.pk)
        invite.revoked_at = invite.revoked_at or timezone.now()
        invite.save(update_fields=["revoked_at"])
    return invite


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
