"""The ledger's no; in a file of its own, for classes of errors are not compiled (compiled.py)."""

from __future__ import annotations

from gateway.core.types import Outcome, QuotaState


class Refused(Exception):
    """The ticket was turned away at the door or left the queue unserved.

    `code` is the stable code of the answer: queue_full_key, queue_full, queue_timeout,
    no_replica, revoked, scheduler_unavailable, directory_unavailable, weight_too_large, over_quota
    (then `quota` names the counter, what it holds, its limit and when there is room) …
    """

    def __init__(
        self,
        code: str,
        message: str = "",
        *,
        outcome: Outcome | None = None,  # None: rejected before it ever waited
        retry_after_ms: int | None = None,
        place: str = "",
        limit: int | None = None,
        quota: QuotaState | None = None,
    ) -> None:
        super().__init__(message or code)
        self.code = code
        self.outcome = outcome
        self.retry_after_ms = retry_after_ms
        self.place = place
        self.limit = limit
        self.quota = quota
