"""Says when a batch would start and end, and what it would cost, before and while it runs.

The arithmetic is `project`, pure and tested; `of_file` and `of_job` read what it needs: how long
lines of this model took lately, how much a person's lines may hold at once, what is ahead.
An estimate from too little is None and shown as unknown, never as a guess in fine clothes.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Count, Sum
from django.utils import timezone

from portal.batches.models import BatchItem, BatchJob
from portal.batches.states import SENDING
from portal.batches.submission import limits_of, pool_of
from portal.files.models import FileLine, StoredFile
from portal.status import source
from quotas.models import ApiKey, Replica, UsageEvent
from quotas.snapshots.live import Live

LATELY = dt.timedelta(days=7)
SAMPLE = 400
BATCH = "batch"
OUTPUT_GUESS = 256  # tokens of an answer when nothing like it was ever seen
SPREAD = (0.75, 1.4)  # how much sooner or later than said it may well be
OWN_RATE_FROM_LINES = 8
OWN_RATE_S = 600.0


@dataclass(frozen=True, slots=True)
class Pace:
    """How long one line takes: a part for its prompt, a part for each token of its answer."""

    prompt_token_s: float
    output_token_s: float
    output_tokens: float  # of an average answer


@dataclass(frozen=True, slots=True)
class Projection:
    """Seconds from now; the two ends of `end` are what is likely."""

    start_s: float
    end_s: float
    soonest_s: float
    latest_s: float


def line_seconds(pace: Pace, prompt_tokens: float, output_tokens: float) -> float:
    """Return how long a line holds a slot."""
    return prompt_tokens * pace.prompt_token_s + output_tokens * pace.output_token_s


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


def pace_of(model: str, owner_id: int) -> Pace | None:
    """Read from the books how long requests of this model took; None: there are none yet."""
    since = timezone.now() - LATELY
    lately = UsageEvent.objects.filter(
        model=model, arrived_at__gt=since, outcome="served", completion_tokens__gt=0
    ).order_by("-arrived_at")
    rows = lately.values_list(
        "user_id", "service_class", "completion_tokens", "duration_ms", "queue_wait_ms",
        "ttft_ms", "prompt_tokens", "cached_tokens", "stream",
    )[:SAMPLE]  # fmt: skip
    return pace_from([Sample(*row) for row in rows], owner_id)


@dataclass(frozen=True, slots=True)
class Sample:
    """One served request of the books."""

    user_id: int
    service_class: str
    completion_tokens: int
    duration_ms: int
    queue_wait_ms: int | None
    ttft_ms: int | None
    prompt_tokens: int
    cached_tokens: int | None
    stream: bool

    @property
    def held_s(self) -> float:
        """Return how long it held its slot."""
        return max(0.0, self.duration_ms - (self.queue_wait_ms or 0)) / 1000

    @property
    def reading_s(self) -> float:
        """Return how long its prompt was read; only a stream shows when that was over."""
        if not self.stream or self.ttft_ms is None:
            return 0.0
        return min(self.held_s, max(0.0, self.ttft_ms - (self.queue_wait_ms or 0)) / 1000)

    @property
    def read_tokens(self) -> int:
        """Return the prompt tokens that no cache held."""
        return max(1, self.prompt_tokens - (self.cached_tokens or 0))


def pace_from(samples: Sequence[Sample], owner_id: int) -> Pace | None:
    """Return the pace of these requests; what is not reading is writing."""
    if not samples:
        return None
    own = [
        s.completion_tokens for s in samples if (s.user_id, s.service_class) == (owner_id, BATCH)
    ]
    lengths = own if len(own) >= OWN_RATE_FROM_LINES else [s.completion_tokens for s in samples]
    streams = [s for s in samples if s.stream and s.ttft_ms is not None]
    prompt_s = sum(s.reading_s for s in streams) / max(1, sum(s.read_tokens for s in streams))
    held = sum(s.held_s for s in samples)
    reading = prompt_s * sum(s.read_tokens for s in samples)
    written = sum(s.completion_tokens for s in samples)
    return Pace(
        prompt_token_s=prompt_s,
        output_token_s=max(0.0, held - reading) / max(1, written),
        output_tokens=sum(lengths) / len(lengths),
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


def of_file(file: StoredFile, key: ApiKey, window: dt.timedelta) -> Estimate:
    """Estimate a batch that does not exist yet."""
    asked = FileLine.objects.filter(file=file).aggregate(
        capped=Sum("output_tokens"), with_cap=Count("output_tokens")
    )
    pool = pool_of(file.model)
    return _estimate(
        key=key,
        model=pool.name if pool else file.model,
        lines=file.lines,
        prompt_tokens=file.prompt_tokens,
        asked=(asked["capped"] or 0, asked["with_cap"]),
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
        asked=(0, 0), window_end=job.expires_at, but=job,
    )  # fmt: skip


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
    *, key: ApiKey, model: str, lines: int, prompt_tokens: int, asked: tuple[int, int],
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
        line_seconds(
            pace,
            job.prompt_tokens_estimated * (job.total - job.completed - job.failed) / job.total,
            pace.output_tokens * (job.total - job.completed - job.failed),
        )
        for job in BatchJob.objects.filter(owner=key.owner_id, state__in=SENDING, model=model)
        if but is None or job.pk != but.pk
    ]
    plan = project(
        line_seconds(pace, prompt_tokens, output), ahead, places_for(key, model, heard),
        waits.get("batch") or 0.0,
    )  # fmt: skip
    return _at(now, plan, lines, prompt_tokens, output, window_end)


def _output_tokens(pace: Pace, lines: int, asked: tuple[int, int]) -> int:
    """Return the tokens of all answers: as long as lately, but no longer than asked for."""
    capped, with_cap = asked
    usual = pace.output_tokens
    if not with_cap:
        return round(usual * lines)
    return round(min(usual, capped / with_cap) * with_cap + usual * (lines - with_cap))


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
