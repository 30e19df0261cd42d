"""Who may call the portal's API: a signed-in browser with its token, or a key.

An ordinary key reads. One that may manage does there what its owner may do, except making another
that may manage: who found one cannot keep the door open once it is revoked.
"""

from __future__ import annotations

from django.views import View
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from portal.openai_api.authentication import find_key, why_not
from quotas.models import ApiKey, User
from quotas.snapshots import keyformat


class ByKey(BaseAuthentication):
    """`Authorization: Bearer fw_…`: the same keys as at the gateway."""

    def authenticate(self, request: Request) -> tuple[User, ApiKey] | None:
        """Return owner and key; no such header leaves it to the session."""
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        key = find_key(secret.strip()) if keyformat.is_well_formed(secret.strip()) else None
        if key is None or (reason := why_not(key)):
            raise AuthenticationFailed("This key is not known here." if key is None else reason)
        return key.owner, key

    def authenticate_header(self, request: Request) -> str:
        """Name the scheme, so that DRF answers 401 and not 403."""
        return "Bearer"


class MayChange(BasePermission):
    """Changes by key need one that may manage."""

    message = (
        "This key may only read here: make one that may also manage, on the keys page, or sign in "
        "with the browser."
    )

    def has_permission(self, request: Request, view: View) -> bool:
        """Let sessions, readers and managing keys through."""
        key = request.auth
        return not isinstance(key, ApiKey) or key.may_manage or request.method in SAFE_METHODS


class KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Tells the OpenAPI schema about keys."""

    target_class = ByKey
    name = "key"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        """Describe the header."""
        return {
            "type": "http",
            "scheme": "bearer",
            "description": "A key; to change, one that may manage.",
        }
