"""Remembers which replica served each session last: there its prompt is in the cache.

Rule 1: a session is bound for a while after its last success; a success elsewhere moves it.
Rule 2: a replica that restarted has lost its cache, and with it the sessions bound to it.
Rule 3: at least `KEPT` sessions are remembered, those served last, and at most twice as many: no
cache holds the others any more, and nobody may fill the memory with conversations of one turn.
"""

from __future__ import annotations

from typing import Final

KEPT: Final = 10_000  # twice of them take 6 MiB


class Homes:
    """The sessions of one ledger, in two dictionaries: when one is full, the older is dropped."""

    def __init__(self) -> None:
        self.incarnations: dict[str, str] = {}  # replica -> what changes when it restarts
        #: session -> replica, incarnation, end
        self._latest: dict[str, tuple[str, str, int]] = {}
        self._before: dict[str, tuple[str, str, int]] = {}

    def of(self, session: str, now_ms: int) -> str:
        """Return the replica a session is bound to, "" when it is bound to none."""
        bound = self._latest.get(session) or self._before.get(session)
        if bound is None:
            return ""
        replica_id, incarnation, end_ms = bound
        if end_ms <= now_ms or self.incarnations.get(replica_id, "") != incarnation:
            return ""
        return replica_id

    def bind(self, session: str, replica_id: str, end_ms: int) -> None:
        """Remember until then where a session's cache is."""
        if len(self._latest) >= KEPT:
            self._latest, self._before = {}, self._latest
        self._latest[session] = (replica_id, self.incarnations.get(replica_id, ""), end_ms)
