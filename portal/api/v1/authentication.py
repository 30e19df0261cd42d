"""Who may call the portal's API: a signed-in browser with its token, or a key for reading."""

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


class KeyMayRead(BaseAuthentication):
    """`Authorization: Bearer fw_…`: the same keys as at the gateway, for reading only."""

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


class KeysOnlyRead(BasePermission):
    """A key that leaked must not be able to make another one."""

    message = "A key may only read here; sign in with the browser to change something."

    def has_permission(self, request: Request, view: View) -> bool:
        """Refuse changes by key."""
        return not isinstance(request.auth, ApiKey) or request.method in SAFE_METHODS


class KeyScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Tells the OpenAPI schema about keys."""

    target_class = KeyMayRead
    name = "key"

    def get_security_definition(self, auto_schema: object) -> dict[str, str]:
        """Describe the header."""
        return {"type": "http", "scheme": "bearer", "description": "A key; reading only."}
