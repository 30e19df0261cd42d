"""Mails about keys that expire soon: fourteen, seven and one day before."""

from __future__ import annotations

import datetime as dt

import structlog
from django.conf import settings
from django.core.mail import send_mail

from portal.announcements.models import KeyReminder
from quotas.models import ApiKey

log = structlog.get_logger(__name__)

DAYS_BEFORE = (1, 7, 14)


def due(expires_at: dt.datetime, now: dt.datetime) -> int | None:
    """Return which reminder a key is due for: the nearest whose time has come."""
    left = expires_at - now
    if left <= dt.timedelta(0):
        return None
    return next((days for days in DAYS_BEFORE if left <= dt.timedelta(days=days)), None)


def send(now: dt.datetime) -> int:
    """Mail every owner once for each reminder; returns how many mails went out."""
    horizon = now + dt.timedelta(days=DAYS_BEFORE[-1])
    keys = ApiKey.objects.filter(
        revoked_at=None, disabled_at=None, expires_at__gt=now, expires_at__lte=horizon
    ).select_related("owner")
    return sum(_remind(key, now) for key in keys)


def _remind(key: ApiKey, now: dt.datetime) -> bool:
    if key.expires_at is None or not key.owner.email or not key.owner.is_active:
        return False
    days = due(key.expires_at, now)
    if days is None:
        return False
    _, is_new = KeyReminder.objects.get_or_create(key=key, expires_at=key.expires_at, days=days)
    if not is_new:
        return False
    try:
        send_mail(
            subject=f"{settings.ACCOUNT_EMAIL_SUBJECT_PREFIX}Your key {key.name} expires soon",
            message=(
                f"Your {key.service_class} key {key.name} ({key.masked}) expires on "
                f"{key.expires_at:%Y-%m-%d at %H:%M} UTC; programs using it are refused then.\n\n"
                f"Let it live longer, or rotate it: {settings.PUBLIC_URL}/keys/{key.public_id}/\n"
            ),
            from_email=None,
            recipient_list=[key.owner.email],
        )
    except OSError as error:
        # The row stays: a mail server that is away must not fill with the same mail each hour.
        log.warning("reminder_not_sent", key=key.public_id, error=type(error).__name__)
        return False
    return True
