"""An emptied ledger stays closed until all that may run at the engines is counted again."""

from __future__ import annotations

import pytest

from gateway.ledger import operations as op
from gateway.ledger.batch import Batch
from gateway.ledger.redis import KEYS
from gateway.ledger.script import SCRIPT
from tests.gateway.ledger.stores import START_MS, Driver, LuaStore

EARLIEST_MS, LIMIT_MS = 1_500, 5_000


class Shared(LuaStore):
    """The script of an installation that does not say it has one process."""

    def call(self, call: op.Call, flags: str = "tf", run: str = "run") -> op.Reply:
        return super().call(call, flags, run)

    @property
    def is_open(self) -> bool:
        """Tell whether anything may start."""
        now, opens = self.client.hmget(KEYS + "meta", "now", "opens")
        return int(now or 0) >= int(opens or 0)


def emptied(store: Shared, *names: str) -> list[Driver]:
    """Return processes that have been at work when the ledger loses its data."""
    drivers = [Driver(store, name) for name in names]
    for driver in drivers:
        driver.send()
    drivers[0].send(op.Advance(LIMIT_MS))
    assert store.is_open
    store.client.flushdb()
    return drivers


def back(driver: Driver, *peers: str) -> None:
    """Let a process say what is true, and whom it knows of."""
    driver.send(*([op.Peers(peers)] if peers else []), adopts=True)


@pytest.fixture
def store(redis_url: str) -> Shared:
    return Shared(redis_url)


def test_it_opens_when_everybody_known_of_has_spoken(store: Shared) -> None:
    """All that one process named have come back: it opens, but never in the first moment."""
    one, two = emptied(store, "g1", "g2")
    back(one, "g2")
    back(two, "g1")
    one.send(op.Advance(EARLIEST_MS - 1))
    assert not store.is_open
    one.send(op.Advance(1))

    assert store.is_open


def test_one_that_is_missed_keeps_it_closed_for_the_limit(store: Shared) -> None:
    """A process that another knew of may be streaming unseen: it is waited for."""
    one, two, _ = emptied(store, "g1", "g2", "g3")
    back(one, "g2", "g3")
    back(two)
    one.send(op.Advance(LIMIT_MS - 1))
    assert not store.is_open
    one.send(op.Advance(1))

    assert store.is_open


def test_who_knows_of_nobody_cannot_open_it(store: Shared) -> None:
    """That nobody is named does not say that nobody is missing."""
    one, _ = emptied(store, "g1", "g2")
    back(one)
    one.send(op.Advance(LIMIT_MS - 1))

    assert not store.is_open


def test_a_rule_switched_off_opens_it_too_soon(redis_url: str) -> None:
    """Without the line that remembers who was named the missing one is not waited for."""
    line = "    call('HSETNX', K.AWAITED, name, '1')\n"
    script = SCRIPT.decode()
    assert script.count(line) == 1
    store = Shared(redis_url, script.replace(line, "").encode())

    with pytest.raises(AssertionError):
        test_one_that_is_missed_keeps_it_closed_for_the_limit(store)


def test_everybody_is_told_who_joins_and_who_is_reaped(store: Shared) -> None:
    """Each process knows the others by name, without asking."""
    one, two = Driver(store, "g1"), Driver(store, "g2")
    first = one.send()
    two.send()

    assert first == (op.Roster(("g1",)),)
    assert one.send() == (op.Roster(("g1", "g2")),)


def test_a_process_names_those_it_knows_and_forgets_them_only_while_it_is_open() -> None:
    """
    A ledger that is being told anew knows only of those that have come back: until it opens, who
    was known before is named as well.
    """
    batch = Batch("g1")

    def hear(*names: str, is_open: bool, must_adopt: bool = False) -> op.Call:
        call = batch.again() or batch.next_call()
        assert call is not None
        told = (op.Roster(names),) if names else ()
        batch.answer(op.Reply(call.sequence, START_MS, is_open, told, must_adopt))
        return call

    hear("g1", "g2", "g3", is_open=True)
    hear("g1", "g2", is_open=True)
    hear(is_open=False, must_adopt=True)
    adopted = hear("g1", is_open=False)

    assert op.Peers(("g2",)) in adopted.operations
    assert batch.peers == {"g2"}
