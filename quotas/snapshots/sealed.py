"""Secrets the books keep for the gateway, such as the key an engine asks for.

They are sealed with SECRET_KEY before they are stored or published, so no dump of a database, no
copy of Redis and no backup shows them. Whoever holds SECRET_KEY may do anything here anyway.
"""

from __future__ import annotations

import base64
import hmac
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

CONTEXT = b"fairway sealed secret 1"


def seal(secret_key: str, text: str) -> str:
    """Return a text that tells nothing without SECRET_KEY; "" stays ""."""
    return _box(secret_key).encrypt(text.encode()).decode() if text else ""


@lru_cache(maxsize=256)
def opened(secret_key: str, sealed: str) -> str:
    """Return the secret, or "" where it was sealed with another SECRET_KEY or there is none."""
    if not sealed:
        return ""
    from cryptography.fernet import InvalidToken

    try:
        return _box(secret_key).decrypt(sealed.encode()).decode()
    except InvalidToken:
        return ""


def _box(secret_key: str) -> Fernet:
    # Loaded by those only who keep such a secret: few installations do.
    from cryptography.fernet import Fernet

    root = hmac.digest(secret_key.encode(), CONTEXT, "sha256")
    return Fernet(base64.urlsafe_b64encode(root))
