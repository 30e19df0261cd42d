"""What a request and an event cost, held against nginx on the same core."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest

from tests.rig.seeding import ROOT

# The goals are 6 and 2.2, measured alone, and not reached (docs/benchmarks.md). On a machine that
# does other work Python loses more than nginx does; this much it never lost.
MOST_PER_REQUEST = 40.0
MOST_PER_EVENT = 6.0


@pytest.mark.skipif(shutil.which("nginx") is None, reason="needs nginx, which .ci/run installs")
def test_a_request_and_an_event_cost_no_more_than_they_did() -> None:
    """
    CPU per plain request and per streamed event with everything on, in multiples of nginx's in the
    same run, stay below what was last measured with a margin for a busy machine.
    """
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench", "ratio"], capture_output=True, text=True, cwd=ROOT
    )

    found = re.search(r"([\d.]+) x nginx per request, ([\d.]+) x per event", done.stdout)
    assert found, done.stdout + done.stderr
    assert float(found[1]) <= MOST_PER_REQUEST, done.stdout
    assert float(found[2]) <= MOST_PER_EVENT, done.stdout
