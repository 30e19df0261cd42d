"""Medians and 95th percentiles of a person's waits; sums by the hour cannot tell them.

Read from the single requests, the newest first and never more than `MOST`: what the page costs
does not grow with the books, and when there are more the page says of how many it speaks.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from django.db import connection

MOST = 10_000
_QUERY = """
    SELECT count(*),
        percentile_disc(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY queue_wait_ms),
        percentile_disc(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY ttft_ms),
        percentile_disc(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY duration_ms)
    FROM (
        SELECT queue_wait_ms, ttft_ms, duration_ms FROM usage_event
        WHERE user_id = %s AND arrived_at >= %s AND arrived_at < %s
        ORDER BY arrived_at DESC LIMIT %s
    ) AS newest
"""


@dataclass(frozen=True, slots=True)
class Middle:
    """One quantity: half of the requests stayed below the first, 19 of 20 below the second."""

    median_ms: int
    p95_ms: int


@dataclass(frozen=True, slots=True)
class Middles:
    """What half and what nearly all of a person's requests met; None: there was none."""

    requests: int
    wait: Middle | None
    first_word: Middle | None
    duration: Middle | None

    @property
    def is_cut(self) -> bool:
        """Tell whether there may be more requests than were looked at."""
        return self.requests >= MOST


def of_person(user_id: int, start: dt.datetime, end: dt.datetime, most: int = MOST) -> Middles:
    """Return the middles of a person's newest requests of a period."""
    with connection.cursor() as cursor:
        cursor.execute(_QUERY, [user_id, start, end, most])
        count, *found = cursor.fetchone()
    return Middles(count, *(_middle(one) for one in found))


def _middle(found: list[int | None] | None) -> Middle | None:
    if found is None or found[0] is None or found[1] is None:
        return None
    return Middle(found[0], found[1])
