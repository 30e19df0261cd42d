"""People and groups: make, move, disable."""

from __future__ import annotations

import datetime as dt

from django.core.exceptions import ValidationError
from django.dispatch import Signal

from quotas.models import Group, User
from quotas.picture import Scope
from quotas.services import books

#: Sent with `user=` when somebody else has set a person's password and so knows it.
password_given = Signal()


def ensure_group(*, name: str) -> Group:
    """Return the group of that name, made if missing."""
    group = Group(name=name.strip())
    with books.writing(Scope()):
        found = Group.objects.filter(name=group.name).first()
        if found is not None:
            return found
        group.full_clean()
        group.save()
    return group


def ensure_user(*, username: str, group: Group | None = None, email: str = "") -> User:
    """Return the person of that name, made without a password if missing.

    A group is given to a new person only: a command that names another one for somebody who
    exists must not move their quota by accident.
    """
    with books.writing(Scope()):
        found = User.objects.filter(username=username).first()
        if found is not None:
            if group is not None and found.group_id != group.pk:
                where = found.group.name if found.group else "no group"
                raise ValidationError({"group": f"{username} is in {where}; move them first."})
            return found
        user = User(username=username, email=email, group=group)
        user.set_unusable_password()
        user.full_clean(exclude=["password"])
        user.save()
    return user


def move(*, user: User, group: Group | None) -> User:
    """Put the person into another group (or none)."""
    with books.writing(_scope(user)):
        user.group = group
        user.save(update_fields=["group"])
    return user


def set_share(*, user: User, share: int) -> User:
    """Set the person's weight in the fair share."""
    with books.writing(_scope(user)):
        user.share = share
        user.full_clean(exclude=["password"])
        user.save(update_fields=["share"])
    return user


def set_active(*, user: User, is_active: bool) -> User:
    """Let the person in or keep them out; their keys follow within seconds."""
    with books.writing(_scope(user)):
        user.is_active = is_active
        user.save(update_fields=["is_active"])
    return user


def end_accounts(*, now: dt.datetime) -> int:
    """Deactivate the accounts whose end has come; their keys stopped at that second already."""
    with books.writing():
        ended = User.objects.filter(is_active=True, ends_at__lte=now)
        return ended.update(is_active=False)


def set_group_active(*, group: Group, is_active: bool) -> Group:
    """Stop or start every key of every member."""
    with books.writing():
        group.is_active = is_active
        group.save(update_fields=["is_active"])
    return group


def _scope(user: User) -> Scope:
    return Scope(user_ids=frozenset({user.pk}))
