"""Says when a batch would start and end, and what it would cost, before and while it runs.

The arithmetic is `project`, pure and tested; `of_file` and `of_job` read what it needs: how long
lines of this model take (`pace`), how much a person's lines may hold at once, what is ahead.
An estimate from too little is None and shown as unknown, never as a guess in fine clothes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Count
from django.utils import timezone

from portal.batches.models import BatchItem, BatchJob
from portal.batches.pace import Pace, pace_of
from portal.batches.states import SENDING
from portal.batches.submission import limits_of, pool_of
from portal.files.models import FileLine, StoredFile
from portal.status import source
from quotas.models import ApiKey, Replica
from quotas.snapshots.live import Live

SPREAD = (0.75, 1.4)  # how much sooner or later than said it may well be
OWN_RATE_FROM_LINES = 8
OWN_RATE_S = 600.0
SHORT_S = 600.0
Asked = Sequence[tuple[int | None, int]]  # the longest answer lines ask for, and how many do


@dataclass(frozen=True, slots=True)
class Projection:
    """Seconds from now; the two ends of `end` are what is likely."""

    start_s: float
    end_s: float
    soonest_s: float
    latest_s: float


def project(work_s: float, ahead: Sequence[float], places: float, start_s: float) -> Projection:
    """Return when `work_s` seconds of lines end on `places` slots shared with the jobs ahead.

    A person's jobs take turns line by line, so each one ahead costs at most as much as our own
    work, and at most what it has left.
    """
    shared = work_s + sum(min(work_s, other) for other in ahead)
    length = shared / max(places, 0.1)
    soonest, latest = SPREAD
    return Projection(
        start_s=start_s,
        end_s=start_s + length,
        soonest_s=start_s + length * soonest,
        latest_s=start_s + length * latest,
    )


def places_for(key: ApiKey, model: str, live: Live | None) -> float:
    """Return how many of this person's lines may run at once, on average."""
    binding = limits_of(key)
    caps = [scope["in_flight"] for scope in (binding.key, binding.person) if "in_flight" in scope]
    slots = sum(
        Replica.objects.filter(pool__name=model, state="active").values_list("slots", flat=True)
    )
    others = (
        BatchJob.objects.filter(state__in=SENDING, model=model)
        .exclude(owner=key.owner_id)
        .values("owner")
        .distinct()
        .count()
    )
    if live is None or model not in live.batch_limit:
        room = max(1.0, slots / 4)
    else:
        room = float(live.batch_limit[model])
        if live.borrowed.get(model):
            # While nobody chats, batch may hold more than a person's own cap.
            return max(1.0, room / (others + 1))
        chatting = sum(
            held.weight
            for held in live.running
            if held.pool == model and held.service_class == "interactive"
        )
        room = min(room, max(0.5, slots - chatting)) if slots else room
    return max(0.25, min([*map(float, caps), room / (others + 1)]))


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a batch would be: shown before it starts and while it runs."""

    lines: int
    start_at: dt.datetime | None
    end_at: dt.datetime | None
    soonest_at: dt.datetime | None
    latest_at: dt.datetime | None
    prompt_tokens: int
    output_tokens: int | None
    fits_window: bool | None

    @property
    def is_short(self) -> bool:
        """Tell whether it takes so little that clock times of start and end look the same."""
        return self.takes_s is not None and self.takes_s < SHORT_S

    @property
    def takes_s(self) -> float | None:
        """Return how long it takes from its start."""
        if self.start_at is None or self.end_at is None:
            return None
        return (self.end_at - self.start_at).total_seconds()


def of_file(file: StoredFile, key: ApiKey, window: dt.timedelta) -> Estimate:
    """Estimate a batch that does not exist yet."""
    pool = pool_of(file.model)
    return _estimate(
        key=key,
        model=pool.name if pool else file.model,
        lines=file.lines,
        prompt_tokens=file.prompt_tokens,
        asked=_asked(file),
        window_end=timezone.now() + window,
    )


def of_job(job: BatchJob) -> Estimate:
    """Estimate what is left of a running job: by its own rate once it has one."""
    left = job.total - job.completed - job.failed
    own = _by_own_rate(job, left)
    if own is not None:
        return own
    return _estimate(
        key=job.key, model=job.model, lines=left,
        prompt_tokens=job.prompt_tokens_estimated * left // max(1, job.total),
        asked=_asked(job.input_file), window_end=job.expires_at, but=job,
    )  # fmt: skip


def _asked(file: StoredFile | None) -> Asked:
    """Return how many lines of a file set which longest answer; None: none."""
    if file is None:
        return []
    lines = FileLine.objects.filter(file=file).values_list("output_tokens")
    return list(lines.annotate(Count("pk")))


def _by_own_rate(job: BatchJob, left: int) -> Estimate | None:
    now = timezone.now()
    since = max(now - dt.timedelta(seconds=OWN_RATE_S), job.in_progress_at or now)
    ended = BatchItem.objects.filter(job=job, finished_at__gt=since).count()
    seconds = (now - since).total_seconds()
    if ended < OWN_RATE_FROM_LINES or seconds < 1:
        return None
    plan = project(left * seconds / ended, (), 1.0, 0.0)
    done = max(1, job.completed)
    return _at(
        now, plan, left, job.prompt_tokens_estimated * left // max(1, job.total),
        job.output_tokens * left // done, job.expires_at, started=True,
    )  # fmt: skip


def _estimate(
    *, key: ApiKey, model: str, lines: int, prompt_tokens: int, asked: Asked,
    window_end: dt.datetime, but: BatchJob | None = None,
) -> Estimate:  # fmt: skip
    now = timezone.now()
    pace = pace_of(model, key.owner_id)
    if pace is None:
        return Estimate(lines, None, None, None, None, prompt_tokens, None, None)
    heard = source.read().live
    output = _output_tokens(pace, lines, asked)
    waits = heard.expected_wait_s.get(model, {}) if heard else {}
    ahead = [
        pace.seconds(
            left := job.total - job.completed - job.failed,
            job.prompt_tokens_estimated * left / job.total,
            pace.lengths.mean() * left,
        )
        for job in BatchJob.objects.filter(owner=key.owner_id, state__in=SENDING, model=model)
        if but is None or job.pk != but.pk
    ]
    plan = project(
        pace.seconds(lines, prompt_tokens, output), ahead, places_for(key, model, heard),
        waits.get("batch") or 0.0,
    )  # fmt: skip
    return _at(now, plan, lines, prompt_tokens, output, window_end)


def _output_tokens(pace: Pace, lines: int, asked: Asked) -> int:
    """Return the tokens of all answers: as long as lately, and no longer than asked for."""
    said = sum(count for _, count in asked)
    mean = sum(pace.lengths.mean(most) * count for most, count in asked) / said if said else None
    return round((pace.lengths.mean() if mean is None else mean) * lines)


def _at(
    now: dt.datetime, plan: Projection, lines: int, prompt: int, output: int,
    window_end: dt.datetime, *, started: bool = False,
) -> Estimate:  # fmt: skip
    def when(seconds: float) -> dt.datetime:
        return now + dt.timedelta(seconds=min(seconds, 3650 * 86400))

    return Estimate(
        lines=lines,
        start_at=None if started else when(plan.start_s),
        end_at=when(plan.end_s),
        soonest_at=when(plan.soonest_s),
        latest_at=when(plan.latest_s),
        prompt_tokens=prompt,
        output_tokens=output,
        fits_window=when(plan.end_s) <= window_end,
    )
