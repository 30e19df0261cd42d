"""Public names of rows: short, random, safe in an address, telling what they name."""

from __future__ import annotations

import secrets

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's: nothing looks like something else
LENGTH = 16  # 80 bits


def make(prefix: str) -> str:
    """Return a new public name such as `key_3f…`."""
    return prefix + "".join(secrets.choice(ALPHABET) for _ in range(LENGTH))


def new_key_id() -> str:
    """Name a key."""
    return make("key_")


def new_card_id() -> str:
    """Name a card."""
    return make("card_")


def new_replica_id() -> str:
    """Name a replica."""
    return make("rep_")
