"""Whose requests run and wait now, row by row in words; no I/O.

Behind an application key each end user is a flow of its own, named `owner/end user` by the gateway.
All of them are the owner's requests here: the owner sees them, and may stop them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from portal.status import sentences
from portal.status.reading import is_owner, owner_of
from quotas.snapshots.live import Live, QueuedLive, RunningLive

GONE = "a key of yours that is gone"  # deleted since the request came
ANYBODYS_GONE = "a key that is gone"
MOST_SHOWN = 50


@dataclass(frozen=True, slots=True)
class Row:
    """One request now, in the words of its row."""

    request_id: str
    owner_id: str
    state: str
    is_running: bool
    service_class: str
    key: str
    end_user: str
    happens: str
    wait_s: float | None
    age_s: float
    model: str


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows shown, and how many there are in all."""

    shown: tuple[Row, ...]
    count: int

    @property
    def hidden(self) -> int:
        """Return how many are not shown."""
        return self.count - len(self.shown)


def of_person(user_id: str, live: Live | None, names: Mapping[str, str]) -> Rows:
    """Return what a person runs and waits for, what runs first."""
    return _rows(live, names, lambda ticket: is_owner(ticket, user_id))


def of_everybody(live: Live | None, names: Mapping[str, str]) -> Rows:
    """Return what everybody runs and waits for."""
    return _rows(live, names, lambda ticket: True, ANYBODYS_GONE)


def _rows(
    live: Live | None,
    names: Mapping[str, str],
    shows: Callable[[QueuedLive | RunningLive], bool],
    gone: str = GONE,
) -> Rows:
    if live is None:
        return Rows((), 0)
    waiting = Counter(ticket.pool for ticket in live.queued)
    running = [
        _running(ticket, names.get(ticket.key_id, gone)) for ticket in live.running if shows(ticket)
    ]
    queued = [
        _queued(ticket, names.get(ticket.key_id, gone), waiting)
        for ticket in live.queued
        if shows(ticket)
    ]
    rows = sorted(running, key=lambda row: -row.age_s) + queued
    return Rows(tuple(rows[:MOST_SHOWN]), len(rows))


def _running(ticket: RunningLive, key: str) -> Row:
    return Row(
        request_id=ticket.ticket_id,
        owner_id=owner_of(ticket.user_id),
        state="Running",
        is_running=True,
        service_class=ticket.service_class,
        key=key,
        end_user=ticket.user_id.partition("/")[2],
        happens=f"on {ticket.pool}",
        wait_s=None,
        age_s=ticket.running_s,
        model=ticket.pool,
    )


def _queued(ticket: QueuedLive, key: str, waiting: Mapping[str, int]) -> Row:
    return Row(
        request_id=ticket.ticket_id,
        owner_id=owner_of(ticket.user_id),
        state=f"Place {ticket.position} of {waiting[ticket.pool]}",
        is_running=False,
        service_class=ticket.service_class,
        key=key,
        end_user=ticket.user_id.partition("/")[2],
        happens=sentences.why(ticket),
        wait_s=ticket.expected_wait_s,
        age_s=ticket.queued_s,
        model=ticket.pool,
    )
