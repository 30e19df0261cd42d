"""Who is calling: reads the key from the headers and finds its snapshot.

Rule 1: a text that cannot be a key costs no look-up. Rule 2: keys are looked up by the SHA-256 of
the whole text, never compared. Rule 3: no key and no part of one is ever logged.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from gateway.charges import COUNTED, Counted, needs_calendar
from gateway.core.fields import Kind
from gateway.core.headers import Headers, first
from gateway.core.types import ServiceClass
from gateway.directory import Directory
from gateway.errors import NotAuthenticated
from quotas.snapshots import credentials, keyformat
from quotas.snapshots.directory import KeySnapshot, Limits

_END_USER_LENGTH = 128


# The same few keys come again and again, and OpenSSL takes longer to begin than to hash them.
_digest = lru_cache(maxsize=4096)(keyformat.digest)
# A batch sends thousands of lines with one credential; its end is looked at each time.
_read = lru_cache(maxsize=1024)(credentials.read)
_CLASSES = {one.value: one for one in ServiceClass}


@dataclass(frozen=True)
class Caller:
    """The key behind a request, and in which class it stands; the same for all its requests."""

    key: KeySnapshot
    service_class: ServiceClass
    user_id: str  # whose flow: the owner, or the end user an application key names
    end_user: str = ""
    batch_id: str = ""

    @cached_property
    def limits(self) -> Limits:
        """Return the limits that bind."""
        return self.key.limits(self.service_class)

    @cached_property
    def identities(self) -> dict[str, str]:
        """Return whose counters it draws on; behind an application key that of the end user."""
        key = self.key
        return {"key": key.key_id, "person": self.user_id, "group": key.group_id}

    @cached_property
    def is_counted(self) -> bool:
        """Does any limit per minute, day or month bind it?"""
        limits = self.limits
        return any(
            name in COUNTED for of in (limits.key, limits.person, limits.group) for name in of
        )

    @cached_property
    def needs_calendar(self) -> bool:
        """Does a limit of a day or month bind it?"""
        return needs_calendar(self.limits)

    @cached_property
    def as_batch(self) -> Caller:
        """Return the same caller in the batch class."""
        return replace(self, service_class=ServiceClass.BATCH)

    @cached_property
    def plans(self) -> dict[str, tuple[float, tuple[Counted, ...]]]:
        """Return its counted limits by time zone, with the end of their first window (quota)."""
        return {}

    @cached_property
    def written(self) -> dict[tuple[Kind, str], bytes]:
        """Return the constant part of its usage records, by route and pool (gateway.record)."""
        return {}

    def least(self, name: str) -> int | None:
        """Return the tightest of its limits of this name."""
        if name not in self._least:
            scopes = (self.limits.key, self.limits.person, self.limits.group)
            found = [scope[name] for scope in scopes if name in scope]
            self._least[name] = min(found, default=None)
        return self._least[name]

    @cached_property
    def _least(self) -> dict[str, int | None]:
        return {}


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
        digest = _digest(secret)
    key = directory.trusted(digest)
    if key is None:
        if credential is None and not keyformat.is_well_formed(secret):
            raise NotAuthenticated("This is not a key.")
        key = await directory.key(digest)
    if key is None:
        raise NotAuthenticated("This key is not known.")
    _check_live(key)
    is_batch = credential is not None and credential.scope == "batch"
    return _caller(
        key,
        ServiceClass.BATCH if is_batch else _CLASSES[key.service_class],
        _end_user(headers, key),
        credential.batch_id if credential else "",
    )


_callers: dict[tuple[str, ServiceClass, str, str], Caller] = {}
_CALLERS = 10_000


def _caller(key: KeySnapshot, service_class: ServiceClass, end_user: str, batch_id: str) -> Caller:
    """Return the caller, made once for each snapshot of its key."""
    name = (key.key_id, service_class, end_user, batch_id)
    found = _callers.get(name)
    if found is None or found.key is not key:
        if len(_callers) >= _CALLERS:
            _callers.clear()
        user_id = f"{key.user_id}/{end_user}" if end_user else key.user_id
        found = _callers[name] = Caller(key, service_class, user_id, end_user, batch_id)
    return found


def _credential(secret_key: str, secret: str) -> credentials.Credential:
    try:
        credential = _read(secret_key, secret)
    except credentials.BadCredential:
        raise NotAuthenticated("This credential is not valid.") from None
    if credential.expires_at <= time.time():
        raise NotAuthenticated("This credential is not valid.")
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
