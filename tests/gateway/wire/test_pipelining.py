"""Several requests on one connection before the first is answered: HTTP allows it, few do it."""

from __future__ import annotations

import json
import time

from tests.gateway.wire.conftest import Stage
from tests.gateway.wire.stage import chat
from tests.gateway.wire.test_leaving import connect, outcomes
from tests.rig.waiting import wait_until


def test_pipelined_requests_hear_of_a_hang_up_too(stage: Stage) -> None:
    """A second request waits behind the first on one connection; both end when that is closed."""
    secret = stage.books.key(in_flight=4)
    stage.witness.tell(first_delay_s=30)
    link = connect(stage, secret, chat("[mark:piped/1] x"))
    raw = json.dumps(chat("[mark:piped/2] x")).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {secret}\r\n"
    link.sendall(f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw)
    wait_until(lambda: stage.witness.counters()["running"] >= 1, 5, "the first is at the engine")
    time.sleep(0.2)
    link.close()

    wait_until(stage.witness.idle, 2, "the engine has stopped")
    stage.gateway.wait_settled(2)
    assert len(outcomes(stage, "piped/")) <= 2
