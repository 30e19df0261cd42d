"""What a group's owner may do: divide the group's quota among its members."""

from __future__ import annotations

import datetime as dt

from django.core.exceptions import ValidationError
from django.db.models import Sum

from quotas.limits import find
from quotas.models import LimitRow, User
from quotas.services import books, limits
from quotas.services.limits import Holder


def divide(
    *,
    by: User,
    member: User,
    service_class: str,
    name: str,
    value: int | None,
    ends_at: dt.datetime | None = None,
) -> LimitRow | None:
    """Give a member of a group one owns a limit of their own; None takes it away again."""
    owns = member.group is not None and member.group.owners.filter(pk=by.pk).exists()
    if not (owns or by.is_staff):
        raise ValidationError("Only the group's owners divide its quota.")
    holder = Holder(user=member)
    per = find(name).usual_per("user")
    if value is None:
        limits.clear_limit(holder=holder, service_class=service_class, name=name, per=per)
        return None
    with books.writing(holder.scope):  # the lock keeps two owners from dividing the same rest
        check_division(member=member, service_class=service_class, name=name, per=per, value=value)
        return limits.set_limit(
            holder=holder,
            service_class=service_class,
            name=name,
            per=per,
            value=value,
            ends_at=ends_at,
            note=f"divided by {by.username}",
        )


def check_division(*, member: User, service_class: str, name: str, per: str, value: int) -> None:
    """Refuse a member's limit that the group's own quota does not cover.

    With a total of the whole group, the members' limits together stay within it. Without one, a
    member gets at most what the group's level (or everyone's) gives each person.
    """
    group = member.group
    if group is None:
        raise ValidationError("The person is in no group.")
    found = {
        (item.spec.name, item.per): item.value
        for item in limits.effective(group=group, service_class=service_class)
    }
    total = found.get((name, "group"))
    if total is None:
        most = found.get((name, per))
        if most is not None and value > most:
            raise ValidationError({"value": f"The group gives each person at most {most}."})
        return
    others = LimitRow.objects.filter(
        user__group=group, service_class=service_class, name=name, per=per
    ).exclude(user=member)
    given = others.aggregate(sum=Sum("value"))["sum"] or 0
    if given + value > total:
        raise ValidationError(
            {"value": f"The group has {total}, others were given {given}: {total - given} is left."}
        )
