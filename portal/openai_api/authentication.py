"""Lets a key in: the same keys, found the same way, as at the gateway."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils import timezone
from rest_framework.authentication import BaseAuthentication
from rest_framework.request import Request

from portal.openai_api.errors import Unauthorized
from quotas.models import ApiKey, OldSecret, User
from quotas.snapshots import keyformat


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks, and with which key."""

    user: User
    key: ApiKey


def find_key(secret: str) -> ApiKey | None:
    """Return the key this secret opens, old secrets of a rotated key included."""
    digest = keyformat.digest(secret)
    keys = ApiKey.objects.select_related("owner", "owner__group")
    found = keys.filter(digest=digest).first()
    if found is None:
        old = OldSecret.objects.filter(digest=digest, valid_until__gt=timezone.now()).first()
        found = keys.filter(pk=old.key_id).first() if old else None
    return found


def why_not(key: ApiKey) -> str:
    """Return in plain words why this key may not be used now; empty when it may."""
    state = key.state(timezone.now())
    if state != "live":
        return f"the key {key.name} is {state}"
    if not key.owner.is_active:
        return "the owner's account is switched off"
    if key.owner.group is not None and not key.owner.group.is_active:
        return f"the group {key.owner.group.name} is switched off"
    return ""


class KeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer fw_…`; anything else is 401, never a log-in page."""

    def authenticate(self, request: Request) -> tuple[User, ApiKey]:
        """Return owner and key, or raise 401."""
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        secret = secret.strip()
        if scheme.lower() != "bearer" or not secret:
            raise Unauthorized(
                "No key given. Send it as: Authorization: Bearer fw_…", code="missing_api_key"
            )
        if not keyformat.is_well_formed(secret):
            raise Unauthorized("This is not a key of this server; check for a missing letter.")
        key = find_key(secret)
        if key is None:
            raise Unauthorized("This key is not known here.")
        reason = why_not(key)
        if reason:
            raise Unauthorized(f"This key cannot be used: {reason}.")
        return key.owner, key

    def authenticate_header(self, request: Request) -> str:
        """Name the scheme, so that DRF answers 401 and not 403."""
        return "Bearer"
