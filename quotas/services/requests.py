"""Requests for more: ask, approve (or give something else), refuse, withdraw.

An approved request is a limit row of the person with an end, so the raise ends by itself.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db.models import Q, QuerySet
from django.utils import timezone

from quotas import mail
from quotas.limits import find
from quotas.models import QuotaRequest, User
from quotas.services import books, groups, limits
from quotas.services.limits import Holder

State = QuotaRequest.State
LONGEST = dt.timedelta(days=366)


def ask(
    *, user: User, service_class: str, name: str, value: int, reason: str, until: dt.datetime
) -> QuotaRequest:
    """Ask for a limit of one's own until a date; deciders get a mail."""
    try:
        per = find(name).usual_per("user")
    except LookupError as error:
        raise ValidationError({"name": str(error)}) from error
    limits.check(
        holder=Holder(user=user),
        service_class=service_class,
        name=name,
        per=per,
        value=value,
        names=None,
        ends_at=until,
    )
    if until > timezone.now() + LONGEST:
        raise ValidationError({"wanted_until": "At most a year from now."})
    asked = QuotaRequest(
        user=user,
        service_class=service_class,
        name=name,
        per=per,
        asked=value,
        reason=reason.strip(),
        wanted_until=until,
    )
    with books.writing(limits.NO_KEYS):
        asked.full_clean()
        asked.save()
        mail.after_commit(
            subject=f"{user.username} asks for more: {name}",
            text=_text(asked, f"{user.username} asks for {_what(asked, value)}.\n\n{reason}"),
            to=(decider.email for decider in deciders(user)),
        )
    return asked


def approve(
    *,
    request: QuotaRequest,
    by: User,
    value: int | None = None,
    until: dt.datetime | None = None,
    answer: str = "",
) -> QuotaRequest:
    """Grant what was asked, or another value or end; in force within 5 seconds."""
    holder = Holder(user=request.user)
    with books.writing(holder.scope):
        request = _open(request, by)
        request.granted = request.asked if value is None else value
        request.granted_until = until or request.wanted_until
        if not by.is_staff:
            groups.check_division(
                member=request.user,
                service_class=request.service_class,
                name=request.name,
                per=request.per,
                value=request.granted,
            )
        limits.set_limit(
            holder=holder,
            service_class=request.service_class,
            name=request.name,
            per=request.per,
            value=request.granted,
            ends_at=request.granted_until,
            note=f"request {request.pk}",
        )
        return _decided(request, by, State.APPROVED, answer)


def refuse(*, request: QuotaRequest, by: User, answer: str) -> QuotaRequest:
    """Say no, and why."""
    with books.writing(limits.NO_KEYS):
        return _decided(_open(request, by), by, State.REFUSED, answer)


def withdraw(*, request: QuotaRequest, by: User) -> QuotaRequest:
    """Take one's own open request back."""
    with books.writing(limits.NO_KEYS):
        request = QuotaRequest.objects.select_for_update().get(pk=request.pk)
        if request.user_id != by.pk or request.state != State.OPEN:
            raise ValidationError("Only your own open request can be withdrawn.")
        request.state = State.WITHDRAWN
        request.decided_at = timezone.now()
        request.save()
    return request


def may_decide(*, person: User, request: QuotaRequest) -> bool:
    """Tell whether the person is an administrator, or owns the asker's group; never for oneself."""
    if person.pk == request.user_id and not person.is_superuser:
        return False
    group = request.user.group
    owns = group is not None and group.owners.filter(pk=person.pk).exists()
    return person.is_active and (person.is_staff or owns)


def to_decide(*, person: User) -> QuerySet[QuotaRequest]:
    """Return the open requests this person may decide, oldest first."""
    waiting = QuotaRequest.objects.filter(state=State.OPEN).select_related("user", "user__group")
    if not person.is_staff:
        waiting = waiting.filter(user__group__owners=person).exclude(user=person)
    return waiting.order_by("asked_at")


def deciders(user: User) -> Iterable[User]:
    """Return administrators and the owners of the person's group."""
    owns = Q(owned_groups=user.group_id) if user.group_id else Q(pk__in=[])
    people = User.objects.filter(Q(is_staff=True) | owns, is_active=True)
    return people.exclude(pk=user.pk).distinct()


def _open(request: QuotaRequest, by: User) -> QuotaRequest:
    """Read the request again under lock; the first decision counts."""
    request = QuotaRequest.objects.select_for_update().get(pk=request.pk)
    if not may_decide(person=by, request=request):
        raise ValidationError("Only administrators and the group's owners decide.")
    if request.state != State.OPEN:
        raise ValidationError("Somebody decided this request already.")
    return request


def _decided(request: QuotaRequest, by: User, state: str, answer: str) -> QuotaRequest:
    request.state = state
    request.answer = answer.strip()
    request.decided_by = by
    request.decided_at = timezone.now()
    request.full_clean(validate_unique=False)
    request.save()
    granted = request.granted if state == State.APPROVED else request.asked
    what = _what(request, granted or 0)
    mail.after_commit(
        subject=f"Your request for more {request.name} is {state}",
        text=_text(request, f"{by.username} {state} {what}.\n\n{request.answer}"),
        to=[request.user.email, *(d.email for d in deciders(request.user) if d.pk != by.pk)],
    )
    return request


def _what(request: QuotaRequest, value: int) -> str:
    until = request.granted_until or request.wanted_until
    return f"{request.name} {value:,} ({request.service_class}) until {until:%Y-%m-%d}"


def _text(request: QuotaRequest, text: str) -> str:
    return f"{text}\n\n{getattr(settings, 'PUBLIC_URL', '')}\n"
