"""Turns what the gateway said into what the pages show; no I/O, no clock, no HTML.

Rule 1: what was not heard is unknown and says since when; an old number never stands as current.
Rule 2: people are letters here, except the one who reads the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

from portal.status import drawing, sentences
from portal.status.sentences import CLASSES
from portal.status.shapes import (
    HANDICAP_S,
    VERDICTS,
    Engine,
    Lane,
    Place,
    PoolReading,
    Reading,
    Verdict,
)
from portal.status.source import Heard
from quotas.snapshots.live import EngineLive, Live, QueuedLive, RunningLive

WORKER_SILENT_S = 25.0  # it reports every ten seconds
STALE_S = 15.0  # an engine not heard for longer is unknown
UP = frozenset({"up", "busy", "draining"})
LANES_SHOWN = 16
QUEUE_SHOWN = 50

ENGINE_LAMPS = {
    "up": "ok", "busy": "busy", "loading": "busy", "draining": "busy", "asleep": "unknown",
    "suspect": "unknown", "unknown": "unknown", "down": "overloaded",
}  # fmt: skip


def owner_of(flow: str) -> str:
    """Return the person behind a flow; behind an application key it is `owner/end user`."""
    return flow.partition("/")[0]


def is_owner(ticket: QueuedLive | RunningLive, reader_id: str) -> bool:
    """Tell whether the one who reads the page owns the request's key."""
    return bool(reader_id) and owner_of(ticket.user_id) == reader_id


def moment(seconds: float | None) -> datetime | None:
    """Return a moment from Unix seconds."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def read(heard: Heard, *, reader_id: str, secret: str) -> Reading:
    """Return the reading of what was heard, for one reader ("" for everybody)."""
    live = heard.live or heard.partial
    if live is None:
        return _unheard(heard)
    hour = int(live.at // 3600)
    people = [q.user_id for q in live.queued] + [r.user_id for r in live.running]
    letters = drawing.letters(people, secret, hour)
    names = dict.fromkeys([e.pool for e in live.engines] + [q.pool for q in live.queued])
    found = tuple(_pool(live, name, letters, reader_id) for name in names)
    front = front_pool(found)
    pools = tuple(sorted(found, key=lambda pool: pool is not front))
    state = front.state if front else "unknown"
    strip, text = _strip(front) if front else (None, "No engine is registered")
    sentence = sentences.card_line(live, pools, front)
    return Reading(
        state=state if live.open and live.queue_known else "unknown",
        sentence=sentence,
        headline=sentences.headline(sentence, front, is_open=live.open and live.queue_known),
        at=moment(live.at),
        last_at=moment(heard.last_at),
        pools=pools,
        engines=tuple(_engine(live, engine) for engine in live.engines),
        strip=strip,
        strip_text=text,
        queue_store=live.ledger,
        queue_known=live.queue_known,
        queue_at=moment(live.at if live.queue_known else live.queue_at),
        worker_silent_since=_worker_silent_since(live),
    )


def _worker_silent_since(live: Live) -> datetime | None:
    """Return since when the worker has not reported, if that is too long ago."""
    if live.worker_at is None or live.at - live.worker_at <= WORKER_SILENT_S:
        return None
    return moment(live.worker_at)


def _unheard(heard: Heard) -> Reading:
    silence = "The gateway does not answer."
    return Reading(
        "unknown", silence, silence, None, moment(heard.last_at),
        (), (), None, "Slots and queue unknown: the gateway does not answer", "unknown",
        False, moment(heard.last_at), None,
    )  # fmt: skip


def front_pool(pools: Iterable[PoolReading]) -> PoolReading | None:
    """Return the pool the card line speaks of: the longest queue, else the most slots."""
    return max(pools, key=lambda pool: (pool.waiting_all, pool.slots or 0), default=None)


def _pool(live: Live, name: str, letters: dict[str, str], reader_id: str) -> PoolReading:
    engines = [engine for engine in live.engines if engine.pool == name]
    queued = [ticket for ticket in live.queued if ticket.pool == name]
    running = [ticket for ticket in live.running if ticket.pool == name]
    heard = [engine for engine in engines if is_current(engine, live.at)]
    lanes = _lanes(engines, running, letters, reader_id, live.at, queue_known=live.queue_known)
    silent = [] if heard else [engine.seen_at for engine in engines]
    waits = live.expected_wait_s.get(name, {})
    verdicts = _verdicts(live, name)
    return PoolReading(
        name=name,
        engines=tuple(engine.name for engine in engines),
        state=_state(live, engines, queued, running, verdicts),
        slots=sum(engine.slots for engine in heard) if heard and live.queue_known else None,
        held={kind: sum(r.weight for r in running if r.service_class == kind) for kind in CLASSES},
        running=len(running),
        oldest_s={
            kind: max((q.queued_s for q in queued if q.service_class == kind), default=0.0)
            for kind in CLASSES
        },
        waiting={kind: sum(q.service_class == kind for q in queued) for kind in CLASSES},
        wait_s={kind: waits.get(kind) for kind in CLASSES},
        people=len({ticket.user_id for ticket in running}),
        lanes=lanes[:LANES_SHOWN],
        lanes_more=max(len(lanes) - LANES_SHOWN, 0),
        places=tuple(_place(q, letters, reader_id) for q in queued[:QUEUE_SHOWN]),
        places_more=max(len(queued) - QUEUE_SHOWN, 0),
        marks=drawing.marks([_waiting(q, letters, reader_id) for q in queued], HANDICAP_S),
        batch_limit=live.batch_limit.get(name),
        borrowed=live.borrowed.get(name, False),
        verdicts=verdicts,
        blockers=dict(Counter(ticket.blocker for ticket in queued)),
        reasons=tuple(
            (sentences.CAUSES.get(blocker, "the scheduler's next turn"), count)
            for blocker, count in Counter(ticket.blocker for ticket in queued).most_common()
        ),
        silent_since=moment(max((at for at in silent if at), default=None)) if silent else None,
        queue_known=live.queue_known,
        is_measured=bool(engines) and all(engine.state == "measuring" for engine in engines),
    )


def is_current(engine: EngineLive, at: float) -> bool:
    """Tell whether the engine's numbers may be shown as current."""
    fresh = engine.seen_at is not None and at - engine.seen_at <= STALE_S
    return fresh and engine.state in UP


def _verdicts(live: Live, name: str) -> dict[str, Verdict]:
    return {
        verdict.service_class: Verdict(
            state=verdict.word if verdict.word in VERDICTS else "unknown",
            since=moment(verdict.since or None),
            cause=sentences.CAUSES.get(verdict.cause or "", ""),
            ratio=verdict.ratio,
        )
        for verdict in live.verdicts
        if verdict.pool == name
    }


def _state(
    live: Live,
    engines: list[EngineLive],
    queued: list[QueuedLive],
    running: list[RunningLive],
    verdicts: dict[str, Verdict],
) -> str:
    """Return the pool's state: the gateway's verdict for chat, else what this moment tells.

    Saturated and overloaded need half an hour and more of samples; a moment cannot tell. Own
    caps are nobody's overload.
    """
    if not live.queue_known:
        return "unknown"
    if not any(is_current(engine, live.at) for engine in engines):
        down = engines and all(engine.state == "down" for engine in engines)
        return "down" if down else "unknown"
    judged = verdicts.get("interactive")
    if judged is not None and judged.state != "unknown":
        return judged.state
    slots_wanted = sum(q.blocker in {"slots", "prefill", "kv"} for q in queued)
    return "busy" if slots_wanted / max(len(running), 1) >= 0.25 else "ok"


def _lanes(
    engines: list[EngineLive],
    running: list[RunningLive],
    letters: dict[str, str],
    reader_id: str,
    at: float,
    *,
    queue_known: bool,
) -> tuple[Lane, ...]:
    """Return the slots, engine by engine: interactive, then batch, the longest first."""
    lanes: list[Lane] = []
    for engine in engines:
        holders = sorted(
            (r for r in running if r.replica_id == engine.replica_id),
            key=lambda r: (r.service_class == "batch", -r.running_s),
        )
        held = [ticket for ticket in holders for _ in range(ticket.weight)]
        lanes += [
            Lane(
                number=len(lanes) + place + 1,
                holder=ticket.service_class,
                letter=letters[ticket.user_id],
                yours=is_owner(ticket, reader_id),
                running_s=ticket.running_s,
                width=drawing.lane_width(ticket.running_s),
            )
            for place, ticket in enumerate(held)
        ]
        rest = "free" if is_current(engine, at) and queue_known else "unknown"
        lanes += [Lane(len(lanes) + place + 1, rest) for place in range(engine.slots - len(held))]
    return tuple(lanes)


def _waiting(ticket: QueuedLive, letters: dict[str, str], reader_id: str) -> drawing.Waiting:
    return drawing.Waiting(
        ticket.service_class,
        letters[ticket.user_id],
        ticket.effective_priority_s,
        ticket.queued_s,
        yours=is_owner(ticket, reader_id),
    )


def _place(ticket: QueuedLive, letters: dict[str, str], reader_id: str) -> Place:
    return Place(
        position=ticket.position,
        service_class=ticket.service_class,
        letter=letters[ticket.user_id],
        yours=is_owner(ticket, reader_id),
        key_id=ticket.key_id,
        ticket_id=ticket.ticket_id,
        queued_s=ticket.queued_s,
        head_start_s=ticket.effective_priority_s,
        why=sentences.why(ticket),
        wait_s=ticket.expected_wait_s,
    )


def _engine(live: Live, engine: EngineLive) -> Engine:
    current = is_current(engine, live.at)
    lamp = ENGINE_LAMPS.get(engine.state, "unknown")
    is_known = current and live.queue_known
    return Engine(
        live=engine,
        lamp=lamp if current or engine.state in {"down", "loading"} else "unknown",
        running=engine.held_interactive + engine.held_batch if is_known else None,
        queued=sum(q.pool == engine.pool for q in live.queued) if live.queue_known else None,
        seen_at=moment(engine.seen_at),
        current=current,
    )


def _strip(pool: PoolReading) -> tuple[drawing.Strip, str]:
    waiting = [
        drawing.Waiting(p.service_class, p.letter, p.head_start_s, p.queued_s, p.yours)
        for p in pool.places
    ]
    strip = drawing.strip(waiting, [drawing.Slot(lane.holder, lane.yours) for lane in pool.lanes])
    return replace(strip, more=strip.more + pool.places_more), sentences.strip_text(pool)
