"""What the books say was used in this day and month, for counters that Redis has lost.

In Redis: hash `fairway:directory:used`, `field(...)` -> tokens of prompt and completion, replaced
as a whole together with the directory after a loss, and again every half minute while a limit of
a day or month exists; `as_of` holds the Unix time it was true, `zone` the time zone whose calendar
names the windows. The books are never ahead of the truth, so a gateway may always lift a counter
to this number, and never lowers one to it.
"""

from __future__ import annotations

USED = "fairway:directory:used"
AS_OF = "as_of"
ZONE = "zone"


def field(window: str, service_class: str, per: str, identity: str) -> str:
    """Return the name of one counter.

    `window` is `Window.name` (2026-11-20 or 2026-11), `per` is key, person or group, `identity`
    the key id, the flow's user id (`12`, or `12/somebody` behind an application key) or group id.
    """
    return f"{window}|{service_class}|{per}|{identity}"
