"""A replica that freezes keeps nobody who has seen nothing of an answer yet."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.gateway.wire.conftest import Stage
from tests.rig.engine_script import Script
from tests.rig.witness import Witness


def test_requests_leave_a_frozen_replica_for_one_that_lives(
    make_gateway: Callable[..., Stage],
) -> None:
    """
    Of two replicas one is frozen with requests on it: as soon as it is seen to be down they are
    answered by the other, each sent twice at most, long before any time limit.
    """
    stage = make_gateway(Script(slots=8))
    caps = {"in_flight": 8, "queued": 8}
    secret = stage.books.key(**caps, person=caps)
    other = Witness(stage.witness.folder / "second", Script(slots=8)).start()
    try:
        stage.books.engine(other.url, slots=8)
        stage.gateway.wait_up(2)
        stage.witness.kill(signal.SIGSTOP)
        began_s = time.monotonic()
        with ThreadPoolExecutor(6) as crowd:
            texts = [f"[mark:frozen/{number}] talk {number}" for number in range(6)]
            answers = list(crowd.map(lambda text: stage.ask(secret, text=text), texts))
        assert [answer.status_code for answer in answers] == [200] * 6
        assert len(other.records("frozen")) == 6
        assert time.monotonic() - began_s < 28
    finally:
        stage.witness.kill(signal.SIGCONT)
        other.stop()
