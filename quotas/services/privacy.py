"""What a person can take along, and what stays when they go.

Going: every key is revoked, name, address and password are wiped, in the audit trail as well.
What stays is numbers: usage counts towards its month and group under a number that leads to
nobody. Files and batches are the portal's, which wipes them in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib.admin.models import LogEntry
from django.core.exceptions import ValidationError
from django.forms.models import model_to_dict
from django.utils import timezone

from quotas.models import ApiKey, LimitRow, QuotaRequest, UsageEvent, UsageHour, User
from quotas.services import books


def erase(*, user: User) -> User:
    """Wipe a person; their usage stays as numbers. Erasing twice changes nothing."""
    with books.writing():
        user = User.objects.select_for_update().get(pk=user.pk)
        if user.is_superuser and not _other_superuser(user):
            raise ValidationError("The last administrator cannot be erased.")
        if user.erased_at is not None:
            return user
        now = timezone.now()
        user.keys.filter(revoked_at__isnull=True).update(revoked_at=now)
        for number, key in enumerate(user.keys.order_by("pk"), start=1):
            key.old_secrets.all().delete()
            ApiKey.objects.filter(pk=key.pk).update(name=f"erased {number}")
        user.quota_requests.all().delete()
        user.limits.all().delete()
        _wipe(user)
        user.erased_at = now
        user.save()
        _wipe_trail(user)
    return user


def _wipe(user: User) -> None:
    user.username = f"erased-{user.pk}"
    user.first_name = user.last_name = user.email = user.time_zone = ""
    user.is_active = user.is_staff = user.is_superuser = False
    user.last_login = None
    user.set_unusable_password()
    user.owned_groups.clear()
    user.user_permissions.clear()


def _wipe_trail(user: User) -> None:
    """Take the person's words out of older versions; that something changed stays."""
    trail: Any = User
    trail.pgh_event_model.objects.filter(pgh_obj_id=user.pk).update(
        username=user.username, email="", first_name="", last_name=""
    )
    keys: Any = ApiKey
    keys.pgh_event_model.objects.filter(owner_id=user.pk).update(name="erased")
    asked: Any = QuotaRequest
    asked.pgh_event_model.objects.filter(user_id=user.pk).update(reason="", answer="")
    LogEntry.objects.filter(
        content_type__app_label="quotas", content_type__model="user", object_id=str(user.pk)
    ).update(object_repr=user.username, change_message="")


def _other_superuser(user: User) -> bool:
    others = User.objects.filter(is_superuser=True, is_active=True)
    return others.exclude(pk=user.pk).exists()


def my_data(*, user: User) -> dict[str, Any]:
    """Return everything the books hold about a person but their single requests."""
    hidden = {"password", "digest", "user_permissions", "groups"}
    person = {name: value for name, value in model_to_dict(user).items() if name not in hidden}
    person["groups_owned"] = list(user.owned_groups.values_list("name", flat=True))
    return {
        "person": person,
        "keys": [
            {
                "key_id": key.public_id,
                "name": key.name,
                "service_class": key.service_class,
                "masked": key.masked,
                "created_at": key.created_at,
                "last_used_at": key.last_used_at,
                "expires_at": key.expires_at,
                "revoked_at": key.revoked_at,
            }
            for key in user.keys.all()
        ],
        "limits": list(
            LimitRow.objects.filter(user=user).values(
                "service_class", "name", "per", "value", "names", "ends_at", "note"
            )
        ),
        "quota_requests": list(
            user.quota_requests.values(
                "service_class", "name", "asked", "reason", "state", "answer", "asked_at"
            )
        ),
        "hours": list(UsageHour.objects.filter(user_id=user.pk).order_by("hour").values()),
    }


def my_requests(*, user: User) -> Iterator[UsageEvent]:
    """Stream every single request of a person that is still kept."""
    rows = UsageEvent.objects.filter(user_id=user.pk).order_by("arrived_at")
    return rows.iterator(chunk_size=2000)
