"""Decides how much each class and each user may hold, and what a user has had.

Rule 1: whole numbers only (slots, milli-tokens), rounded down; the Redis ledger's script computes
the same.
Rule 2: a number nobody set has its default here and nowhere else.
"""

from __future__ import annotations

from typing import Final

from gateway.core.types import Ticket

#: Output counts twice: a token written occupies the card about as long as two tokens read.
OUTPUT_PRICE: Final = 2
#: Longest answer charged in advance; what is really written is settled at the end.
OUTPUT_ESTIMATE_CAP: Final = 512
#: Every minute of ledger time service shrinks to 933/1000: it halves in ten minutes.
HALF_LIFE_STEP_MS: Final = 60_000
DECAY_NUMERATOR, DECAY_DENOMINATOR = 933, 1000
#: After this many steps (over three hours) even the largest sum has become nothing that counts.
MOST_DECAY_STEPS: Final = 200

BATCH_USER_CAP: Final = 2


def user_cap(cap: int | None, is_batch: bool, slots_total: int) -> int:
    """Return how many slots a user may hold in a class, over all their keys."""
    if cap is not None:
        return cap
    if is_batch:
        return BATCH_USER_CAP
    return max(1, min(4, (slots_total + 1) // 2))


def batch_slots(busy: int | None, idle: int | None, slots_total: int, lent: bool) -> int:
    """Return B, the slots of a pool that batch may hold now.

    `lent` says that nobody chats, so all but one slot may be borrowed. One slot always stays
    free for a fresh interactive ticket, whatever an admin wrote, unless the pool has only one.
    """
    if slots_total <= 0:
        return 0
    if lent:
        wanted = max(1, slots_total - 1) if idle is None else idle
    else:
        wanted = max(1, slots_total // 4) if busy is None else busy
    return min(wanted, slots_total - 1) if slots_total > 1 else min(wanted, 1)


def charge(prompt_tokens: int, output_tokens: int, share: int) -> int:
    """Return the service of a request in milli-tokens, divided by its user's share."""
    milli = (prompt_tokens + OUTPUT_PRICE * output_tokens) * 1000
    return milli // share if share > 1 else milli


def output_estimate(asked: int, average: int | None) -> int:
    """Return the completion tokens to charge at the start: the least of what we know."""
    most = asked if asked < OUTPUT_ESTIMATE_CAP else OUTPUT_ESTIMATE_CAP
    return most if average is None or most < average else average


def estimated_tokens(ticket: Ticket) -> int:
    """Return the tokens a ticket is thought to have used when nobody can say any more."""
    return ticket.prefill_tokens + min(ticket.output_tokens, OUTPUT_ESTIMATE_CAP)


def moving_average(average: int | None, sample: int, weight: int = 8) -> int:
    """Return the average after one more sample; the first sample is the average."""
    if average is None:
        return sample
    return (average * (weight - 1) + sample) // weight


def decay(service: int, steps: int) -> int:
    """Return the service after `steps` minutes; last night's big job must not spoil the morning."""
    for _ in range(min(steps, MOST_DECAY_STEPS)):
        service = service * DECAY_NUMERATOR // DECAY_DENOMINATOR
    return service
