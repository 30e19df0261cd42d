"""Who is calling: reads the key from the headers and finds its snapshot.

Rule 1: a text that cannot be a key costs no look-up. Rule 2: keys are looked up by the SHA-256 of
the whole text, never compared. Rule 3: no key and no part of one is ever logged.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from gateway.core.headers import Headers, first
from gateway.core.types import ServiceClass
from gateway.directory import Directory
from gateway.errors import NotAuthenticated
from quotas.snapshots import credentials, keyformat
from quotas.snapshots.directory import KeySnapshot, Limits

_END_USER_LENGTH = 128


@dataclass(frozen=True, slots=True)
class Caller:
    """The key behind a request, and in which class it stands."""

    key: KeySnapshot
    service_class: ServiceClass
    user_id: str  # whose flow: the owner, or the end user an application key names
    end_user: str = ""
    batch_id: str = ""

    @property
    def limits(self) -> Limits:
        """Return the limits that bind."""
        return self.key.limits(self.service_class)


def presented(headers: Headers) -> str:
    """Return the secret of a request, or say that there is none."""
    raw = first(headers, b"authorization")
    if raw is not None:
        scheme, _, secret = raw.decode("latin-1").partition(" ")
        if scheme.lower() == "bearer" and secret.strip():
            return secret.strip()
    raw = first(headers, b"x-api-key")
    if raw:
        return raw.decode("latin-1").strip()
    raise NotAuthenticated("Send your key as `Authorization: Bearer …`.", code="missing_api_key")


async def authenticate(headers: Headers, directory: Directory, secret_key: str) -> Caller:
    """Return the caller, or refuse."""
    secret = presented(headers)
    credential = None
    if secret.startswith(credentials.PREFIX):
        credential = _credential(secret_key, secret)
        digest = credential.key_digest
    else:
        digest = keyformat.digest(secret)
    key = directory.trusted(digest)
    if key is None:
        if credential is None and not keyformat.is_well_formed(secret):
            raise NotAuthenticated("This is not a key.")
        key = await directory.key(digest)
    if key is None:
        raise NotAuthenticated("This key is not known.")
    _check_live(key)
    service_class = ServiceClass(key.service_class)
    if credential is not None and credential.scope == "batch":
        service_class = ServiceClass.BATCH
    end_user = _end_user(headers, key)
    return Caller(
        key=key,
        service_class=service_class,
        user_id=f"{key.user_id}/{end_user}" if end_user else key.user_id,
        end_user=end_user,
        batch_id=credential.batch_id if credential else "",
    )


def _credential(secret_key: str, secret: str) -> credentials.Credential:
    try:
        credential = credentials.verify(secret_key, secret, time.time())
    except credentials.BadCredential:
        raise NotAuthenticated("This credential is not valid.") from None
    if credential.scope not in ("batch", "try"):
        raise NotAuthenticated("This credential does not allow requests.")
    return credential


def allows_live(headers: Headers, secret_key: str) -> bool:
    """Tell whether the request carries a credential for /internal/."""
    try:
        return credentials.verify(secret_key, presented(headers), time.time()).scope == "live"
    except (credentials.BadCredential, NotAuthenticated):
        return False


def _check_live(key: KeySnapshot) -> None:
    """All refusals look alike but for their code: the secret was right, so its owner may know."""
    if key.state == "revoked":
        raise NotAuthenticated("This key was revoked.", code="key_revoked")
    if key.state != "live":
        raise NotAuthenticated("This key is disabled.", code="key_disabled")
    if key.expires_at is not None and key.expires_at <= time.time():
        raise NotAuthenticated("This key has expired.", code="key_expired")


def _end_user(headers: Headers, key: KeySnapshot) -> str:
    if not key.end_user_header:
        return ""
    raw = first(headers, key.end_user_header.lower().encode())
    return raw.decode("latin-1").strip()[:_END_USER_LENGTH] if raw else ""
