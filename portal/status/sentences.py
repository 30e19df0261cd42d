"""What the readings say in words: why something waits, when a newcomer starts, the strip.

No I/O, no clock, no HTML; sentences say what happens and when, in the reader's words.
"""

from __future__ import annotations

from portal import words
from portal.status.shapes import PoolReading
from quotas.snapshots.live import Live, QueuedLive

CLASSES = ("interactive", "batch")
BLOCKERS = {
    "own_cap": "your own cap: one of your requests has to end first",
    "batch_pool": "batch holds all the slots it may have now",
    "reserved": "the free slots are reserved for a group",
    "slots": "all slots are held",
    "prefill": "long prompts are being read; the next is let in when they are through",
    "kv": "the card's memory is full",
    "no_replica": "no engine of this model is up",
    "scheduler": "it starts in a moment",
}
CAUSES = {
    "own_cap": "people's own caps",
    "batch_pool": "the part of the slots batch may have",
    "reserved": "slots reserved for a group",
    "slots": "too few slots",
    "prefill": "long prompts being read",
    "kv": "card memory",
    "no_replica": "no engine up",
}


def why(ticket: QueuedLive) -> str:
    """Return in words what a waiting request waits for."""
    text = BLOCKERS.get(ticket.blocker, ticket.blocker)
    if ticket.service_class == "batch" and ticket.blocker == "slots":
        aged = ticket.effective_priority_s >= 0
        text += (
            "; ahead of new chat because it waited over 10 min"
            if aged
            else "; behind every chat message until it has waited 10 min"
        )
    return text


def card_line(live: Live, pools: tuple[PoolReading, ...], front: PoolReading | None) -> str:
    """Return the sentence of the card line, on every page."""
    if not live.queue_known:
        return "Who runs and who waits is unknown: the scheduler's Redis does not answer."
    if not live.open:
        return "New starts pause for a few seconds while the gateway counts what is running."
    if front is None:
        return "No engine is registered yet."
    of = f"{front.name}: " if len(pools) > 1 else ""
    if front.state == "down":
        return f"{of}no engine is up. New requests wait and keep their place."
    if front.is_measured:
        return _capital(
            f"{of}the capacity is being measured. New requests are told when to come back."
        )
    if front.state == "unknown":
        return f"{of}the engine has not answered lately. New requests wait and keep their place."
    slots = words.plural(front.slots or 0, "slot", "slots")
    held = f"{front.held_all} of {slots} held"
    if front.slots and front.held_all >= front.slots:
        held = f"all {slots} held"
    return _capital(f"{of}{held}; a {newcomers(front)}.")


def newcomers(pool: PoolReading) -> str:
    """Return when a new request of each class would start, for the middle of a sentence."""
    chat, batch = (pool.wait_s[kind] for kind in CLASSES)
    if chat is not None and chat < 1 and batch is not None and batch < 1:
        return "new request of either class starts at once"
    tail = words.starts(batch)
    if batch is not None and batch >= 1 and chat is not None and chat >= 1:
        tail = f"in about {words.about(batch)}"
    return f"new chat message {words.starts(chat)}, a new batch request {tail}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def headline(sentence: str, front: PoolReading | None, *, is_open: bool) -> str:
    """Return the status page's one sentence: the waits when they are known."""
    if front is None or not is_open or front.slots is None:
        return sentence
    return f"A {newcomers(front)}."


def strip_text(pool: PoolReading) -> str:
    """Say the strip's picture in words, for those who do not see it."""
    yours = [lane.number for lane in pool.lanes if lane.yours]
    own = [place.position for place in pool.places if place.yours]
    parts = []
    if yours:
        parts.append(f"You hold {words.plural(len(yours), 'slot', 'slots')}.")
    if own:
        parts.append(f"Your first request is at place {own[0]}.")
    if pool.is_measured:
        parts.append("Slots kept free: the capacity is being measured.")
    elif pool.slots is None:
        parts.append("Slots unknown: the engine has not answered lately.")
    else:
        parts.append(
            f"{pool.held_all} of {pool.slots} slots held: {pool.held['interactive']} interactive, "
            f"{pool.held['batch']} batch."
        )
    waiting = pool.waiting
    if not pool.queue_known:
        return "Slots and queue unknown: the scheduler's Redis does not answer."
    parts.append(f"Waiting: {waiting['interactive']} interactive, {waiting['batch']} batch.")
    if pool.places:
        article = "an interactive" if pool.places[0].service_class == "interactive" else "a batch"
        parts.append(f"Next is {article} request.")
    return " ".join(parts)
