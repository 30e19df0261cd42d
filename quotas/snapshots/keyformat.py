"""The form of a key: `fw_int_` or `fw_bat_`, 30 random base62 characters, 6 of CRC32.

The checksum lets the gateway refuse a typo without asking anything; underscores keep the whole
key one double-click; no character needs escaping anywhere. Only `digest` of a key is stored.
"""

from __future__ import annotations

import hashlib
import secrets
import string
import zlib

ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
PREFIXES = {"interactive": "fw_int_", "batch": "fw_bat_"}
BODY_LENGTH = 30
CHECK_LENGTH = 6
PREFIX_LENGTH = 7
LENGTH = PREFIX_LENGTH + BODY_LENGTH + CHECK_LENGTH
# For secret scanners (gitleaks, detect-secrets); shown in the docs.
PATTERN = r"fw_(?:int|bat)_[0-9A-Za-z]{36}"


def checksum(text: str) -> str:
    """Return the CRC32 of the ASCII text as six base62 digits."""
    number = zlib.crc32(text.encode("ascii"))
    digits = []
    for _ in range(CHECK_LENGTH):
        number, rest = divmod(number, len(ALPHABET))
        digits.append(ALPHABET[rest])
    return "".join(reversed(digits))


def generate(service_class: str) -> str:
    """Make a new secret of the class; about 178 random bits."""
    body = "".join(secrets.choice(ALPHABET) for _ in range(BODY_LENGTH))
    head = PREFIXES[service_class] + body
    return head + checksum(head)


def is_well_formed(secret: str) -> bool:
    """Tell whether the text can be a key at all; costs no look-up."""
    if len(secret) != LENGTH or not secret.isascii():
        return False
    if secret[:PREFIX_LENGTH] not in PREFIXES.values():
        return False
    return checksum(secret[:-CHECK_LENGTH]) == secret[-CHECK_LENGTH:]


def digest(secret: str) -> str:
    """Return the SHA-256 under which a key is stored; 178 random bits need no slow hash."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def masked(secret: str) -> str:
    """Return what may be shown of a key: its first ten and last four characters."""
    return f"{secret[:10]}…{secret[-4:]}"
