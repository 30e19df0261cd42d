"""Puts into words where a running batch stands and why it waits."""

from __future__ import annotations

from dataclasses import dataclass

from portal import words
from portal.batches import estimate
from portal.batches.estimate import Estimate
from portal.batches.models import BatchJob
from portal.batches.states import SENDING, ItemState
from portal.status import source
from quotas.snapshots.live import Live, QueuedLive

HANDICAP_S = 600
WORTH_A_WORD_S = 10.0  # a line that starts sooner does not wait, it takes its turn
BLOCKERS = {
    "own_cap": "your batch places are taken by other lines of yours",
    "batch_pool": "the slots batch may hold now are taken; people who chat go first",
    "reserved": "the free slots are reserved for a group",
    "slots": "all slots are held and people who chat go first",
    "prefill": "other long prompts are being read",
    "kv": "the card's memory is full for the moment",
    "no_replica": "no engine for this model is up",
    "scheduler": "the scheduler is away for a moment",
}


@dataclass(frozen=True, slots=True)
class Insight:
    """What a running batch looks like now; None is unknown."""

    lines_waiting: int  # not at the gateway yet, or queued there
    lines_running: int  # sent: in flight or queued at the gateway
    queued: int | None  # of those sent, how many still wait for a slot
    position: int | None  # of the first of them
    why_code: str
    why: str  # one sentence; empty when nothing waits
    estimate: Estimate | None


def of(job: BatchJob, *, with_estimate: bool = True) -> Insight | None:
    """Return where the job stands; None when it has ended."""
    if job.state not in BatchJob.LIVE:
        return None
    heard = source.read().live
    mine = _mine(job, heard)
    code, why = _why(job, mine)
    return Insight(
        lines_waiting=job.items.filter(state=ItemState.QUEUED).count(),
        lines_running=job.items.filter(state=ItemState.RUNNING).count(),
        queued=None if heard is None else len(mine),
        position=min((ticket.position for ticket in mine), default=None),
        why_code=code,
        why=why,
        estimate=estimate.of_job(job) if with_estimate and job.state in SENDING else None,
    )


def _mine(job: BatchJob, heard: Live | None) -> list[QueuedLive]:
    return [
        ticket
        for ticket in (heard.queued if heard else ())
        if ticket.key_id == job.key.public_id
        and ticket.service_class == "batch"
        and ticket.pool == job.model
    ]


def _why(job: BatchJob, mine: list[QueuedLive]) -> tuple[str, str]:
    if job.wait_code:
        return job.wait_code, job.wait_message
    if not mine:
        return "", ""
    head = min(mine, key=lambda ticket: ticket.position)
    if head.queued_s < WORTH_A_WORD_S:
        return "", ""
    text = BLOCKERS.get(head.blocker, "it waits for its turn")
    waited = f"Its next line has waited {words.span(head.queued_s)}"
    rest = HANDICAP_S - head.queued_s
    if head.effective_priority_s >= 0:
        ahead = "and goes ahead of every new chat message"
    elif rest > 0:
        ahead = f"and in {words.span(rest)} goes ahead of every new chat message"
    else:
        ahead = "and does not gain age yet: two lines of a person do at a time"
    return head.blocker, f"{text[0].upper()}{text[1:]}. {waited} {ahead}."
