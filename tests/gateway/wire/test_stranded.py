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
    Of three replicas one is frozen and one has just died: as soon as they are seen to be down all
    are answered by the third, those too that met both, each sent twice at most and long before any
    time limit.
    """
    stage = make_gateway(Script(slots=8))
    caps = {"in_flight": 12, "queued": 12}
    secret = stage.books.key(**caps, person=caps)
    other = Witness(stage.witness.folder / "second", Script(slots=12)).start()
    dying = Witness(stage.witness.folder / "third", Script(slots=8)).start()
    try:
        stage.books.engine(other.url, slots=12)
        stage.books.engine(dying.url, slots=8)
        stage.gateway.wait_up(3)
        dying.kill()
        stage.witness.kill(signal.SIGSTOP)
        began_s = time.monotonic()
        with ThreadPoolExecutor(12) as crowd:
            texts = [f"[mark:frozen/{number}] talk {number}" for number in range(12)]
            answers = list(crowd.map(lambda text: stage.ask(secret, text=text), texts))
        assert [answer.status_code for answer in answers] == [200] * 12
        assert len(other.records("frozen")) == 12
        assert time.monotonic() - began_s < 28
    finally:
        stage.witness.kill(signal.SIGCONT)
        other.stop()
        dying.stop()
