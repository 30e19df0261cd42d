"""Short-lived signed credentials by which our own processes call the gateway for a key's owner.

`fw_svc_<payload>.<signature>`: base64url JSON and an HMAC-SHA-256 under a key derived from
SECRET_KEY. The batch runner and "try it here" use them because keys exist only as hashes.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import asdict, dataclass

PREFIX = "fw_svc_"
CONTEXT = b"fairway service credential v1"


class BadCredential(ValueError):
    """Not ours, changed, or past its end."""


@dataclass(frozen=True, slots=True)
class Credential:
    """What a service credential allows."""

    scope: str  # "batch" (lines), "try" (try it here), "live" (/internal/*)
    key_digest: str  # SHA-256 of the key whose owner it stands for; "" for scope live
    expires_at: float  # Unix seconds
    batch_id: str = ""


def _signature(secret_key: str, payload: bytes) -> str:
    key = hmac.digest(secret_key.encode(), CONTEXT, "sha256")
    raw = hmac.new(key, payload, hashlib.sha256).digest()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def sign(secret_key: str, credential: Credential) -> str:
    """Return the text that goes after `Bearer `."""
    text = json.dumps(asdict(credential), separators=(",", ":")).encode()
    payload = base64.urlsafe_b64encode(text).rstrip(b"=")
    return f"{PREFIX}{payload.decode()}.{_signature(secret_key, payload)}"


def verify(secret_key: str, text: str, now_s: float) -> Credential:
    """Return the credential, or raise `BadCredential`."""
    credential = read(secret_key, text)
    if credential.expires_at <= now_s:
        raise BadCredential("expired")
    return credential


def read(secret_key: str, text: str) -> Credential:
    """Return the credential whatever the time is, or raise `BadCredential`: it is not ours."""
    payload, _, signature = text.removeprefix(PREFIX).partition(".")
    raw = payload.encode("ascii", "replace")
    expected = _signature(secret_key, raw)
    if not hmac.compare_digest(signature.encode("ascii", "replace"), expected.encode()):
        raise BadCredential("bad signature")
    try:
        fields = json.loads(base64.urlsafe_b64decode(raw + b"=" * (-len(raw) % 4)))
        return Credential(**fields)
    except (ValueError, TypeError) as error:
        raise BadCredential("unreadable") from error
