"""What somebody who has nothing here yet is told about the wait."""

from __future__ import annotations

from gateway.core.types import ServiceClass, Ticket
from gateway.ledger import forecast
from gateway.ledger import operations as op
from gateway.ledger.interface import KeyPolicy, PoolPolicy, ReplicaPolicy, UserPolicy
from gateway.ledger.memory import MemoryStore

SLOTS = 4


def filled(tickets: int, average_ms: int | None = None) -> MemoryStore:
    """A pool of four slots in which as many chats of different people run or wait."""
    store = MemoryStore()
    operations: list[op.Operation] = [
        op.WritePool(PoolPolicy("m", 1, None, None, 60_000, 128, 256)),
        op.WriteReplica(ReplicaPolicy("r", 1, "m", SLOTS, 8_192)),
        op.Observe("r", accepts=True),
    ]
    for n in range(tickets):
        operations += [
            op.WriteKey(KeyPolicy(f"k{n}", 1, True, 2, 8, False)),
            op.WriteUser(UserPolicy(f"u{n}", ServiceClass.INTERACTIVE, 1, 2, 16)),
            op.Enqueue(Ticket(f"t{n}", f"k{n}", f"u{n}", ServiceClass.INTERACTIVE, "m")),
        ]
    store.call(op.Call("g", 0, 1, tuple(operations)))
    if average_ms is not None:
        store.state.hold_average[("m", ServiceClass.INTERACTIVE)] = average_ms
    return store


def wait(store: MemoryStore, service_class: ServiceClass) -> int | None:
    return forecast.view(store.state, {}, is_open=True).newcomer_wait_ms["m"][service_class]


def test_a_newcomer_starts_at_once_while_a_slot_is_free() -> None:
    """With a free slot the wait is nothing, for both classes, though no service time is known."""
    store = filled(SLOTS - 1)

    assert wait(store, ServiceClass.INTERACTIVE) == 0
    assert wait(store, ServiceClass.BATCH) == 0


def test_a_newcomer_waits_for_those_before_it() -> None:
    """With every slot held and one waiting, a chat that comes now starts after the second end."""
    store = filled(SLOTS + 1, average_ms=10_000)

    waited = wait(store, ServiceClass.INTERACTIVE)

    assert waited is not None
    assert 0 < waited <= 10_000


def test_a_full_card_of_unknown_speed_has_an_unknown_wait() -> None:
    """Before anything has ended nobody can say how long a full card stays full."""
    assert wait(filled(SLOTS), ServiceClass.INTERACTIVE) is None


def test_asking_changes_nothing() -> None:
    """The phantom of a newcomer never enters the real ledger."""
    store = filled(SLOTS + 1)
    before = (set(store.state.entries), set(store.state.keys), dict(store.state.user_tickets))

    forecast.view(store.state, {}, is_open=True)

    assert before == (
        set(store.state.entries),
        set(store.state.keys),
        dict(store.state.user_tickets),
    )
