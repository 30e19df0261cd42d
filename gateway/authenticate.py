"""Who is calling: reads the key from the headers and finds its snapshot.

Rule 1: a text that cannot be a key costs no look-up. Rule 2: keys are looked up by the SHA-256 of
the whole text, never compared; what was worked out of a header is remembered in this process alone,
and asked of the directory each time. Rule 3: no key and no part of one is ever logged.
"""

from __future__ import annotations

import time
from functools import lru_cache
from typing import Final

from gateway.caller import Caller
from gateway.core.headers import Headers, first
from gateway.core.types import ServiceClass
from gateway.directory import Directory
from gateway.errors import NotAuthenticated
from quotas.snapshots import credentials, keyformat
from quotas.snapshots.directory import KeySnapshot

_END_USER_LENGTH = 128
_CALLERS = 10_000  # that are remembered


# The same few keys come again and again, and OpenSSL takes longer to begin than to hash them.
_digest: Final = lru_cache(maxsize=4096)(keyformat.digest)
# A batch sends thousands of lines with one credential; its end is looked at each time.
_read: Final = lru_cache(maxsize=1024)(credentials.read)
_CLASSES: Final = {one.value: one for one in ServiceClass}


def presented(headers: Headers) -> str:
    """Return the secret of a request, or say that there is none."""
    if secret := _borne(first(headers, b"authorization") or b""):
        return secret
    raw = first(headers, b"x-api-key")
    if raw:
        return raw.decode("latin-1").strip()
    raise NotAuthenticated("Send your key as `Authorization: Bearer …`.", code="missing_api_key")


def _borne(raw: bytes) -> str:
    """Return the secret in an Authorization header, "" where there is none."""
    scheme, _, secret = raw.decode("latin-1").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


#: Authorization header of a key that means the same caller each time -> its digest and that caller.
_recognised: dict[bytes, tuple[str, Caller]] = {}


def recognise(headers: Headers, directory: Directory, secret_key: str) -> Caller | None:
    """Return the caller, or refuse; None where the key has to be looked up."""
    raw = first(headers, b"authorization") or b""
    found = _recognised.get(raw)
    if found is not None:
        digest, caller = found
        if directory.trusted(digest) is caller.key and not _is_past(caller.expires_at):
            return caller
    secret = presented(headers)
    credential, digest = _shown(secret, secret_key)
    key = directory.trusted(digest)
    if key is None:
        return None
    caller = _caller_of(headers, key, credential)
    if credential is None and not key.end_user_header and secret == _borne(raw):
        if len(_recognised) >= _CALLERS:
            _recognised.clear()
        _recognised[raw] = (digest, caller)
    return caller


async def authenticate(headers: Headers, directory: Directory, secret_key: str) -> Caller:
    """Return the caller, or refuse."""
    secret = presented(headers)
    credential, digest = _shown(secret, secret_key)
    key = directory.trusted(digest)
    if key is None:
        if credential is None and not keyformat.is_well_formed(secret):
            raise NotAuthenticated("This is not a key.")
        key = await directory.key(digest)
    if key is None:
        raise NotAuthenticated("This key is not known.")
    return _caller_of(headers, key, credential)


def _shown(secret: str, secret_key: str) -> tuple[credentials.Credential | None, str]:
    """Return the credential, if it is one, and the digest of the key that is shown."""
    if secret.startswith(credentials.PREFIX):
        credential = _credential(secret_key, secret)
        return credential, credential.key_digest
    return None, _digest(secret)


def _caller_of(
    headers: Headers, key: KeySnapshot, credential: credentials.Credential | None
) -> Caller:
    _check_live(key)
    is_batch = credential is not None and credential.scope == "batch"
    return _caller(
        key,
        ServiceClass.BATCH if is_batch else _CLASSES[key.service_class],
        _end_user(headers, key),
        credential.batch_id if credential else "",
    )


_callers: dict[tuple[str, ServiceClass, str, str], Caller] = {}


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
    if _is_past(key.expires_at):
        raise NotAuthenticated("This key has expired.", code="key_expired")


def _is_past(at: float | None) -> bool:
    return at is not None and at <= time.time()


def _end_user(headers: Headers, key: KeySnapshot) -> str:
    if not key.end_user_header:
        return ""
    raw = first(headers, key.end_user_header.lower().encode())
    return raw.decode("latin-1").strip()[:_END_USER_LENGTH] if raw else ""
