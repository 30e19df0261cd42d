"""Makes the ids of requests."""

from __future__ import annotations

import os
import time

_random = b""
_ID_BYTES = 8
_IDS_AT_ONCE = 256


def new_id() -> str:
    """Return a request id, unique for ever and not to be guessed.

    It begins with its time, so that the books, which hold millions, find it without an index.
    """
    global _random
    if not _random:
        _random = os.urandom(_ID_BYTES * _IDS_AT_ONCE)  # one call to the kernel for many
    taken, _random = _random[:_ID_BYTES], _random[_ID_BYTES:]
    return f"req_{time.time_ns() // 1_000_000:012x}{taken.hex()}"
