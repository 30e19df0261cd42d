"""Numbers of the books that the gateway's metrics page shows for them.

In Redis: string `fairway:exports`, JSON `{"at": Unix seconds, "gauges": [[name, labels, value]]}`,
written every ten seconds by a task and gone after 25: what is not heard is not shown. Its time is
also the worker's sign of life.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

EXPORTS = "fairway:exports"
LIFE_S = 25

# Every name with its help text; the gateway shows no other.
GAUGES = {
    "fairway_batch_jobs": "Batch jobs, by state.",
    "fairway_batch_lines": "Lines of batch jobs that are not ended, by state.",
    "fairway_batch_oldest_line_seconds": "Since the job that finished a line longest ago did.",
    "fairway_celery_queue_length": "Messages that wait for a Celery worker.",
    "fairway_usage_stream_records": "Usage records in Redis that the books do not hold yet.",
    "fairway_live_keys": "Keys that may be used.",
}


@dataclass(frozen=True, slots=True)
class Gauge:
    """One number with its labels."""

    name: str
    labels: dict[str, str]
    value: float


def to_json(at: float, gauges: list[Gauge]) -> str:
    """Serialise for Redis."""
    rows = [[gauge.name, gauge.labels, gauge.value] for gauge in gauges]
    return json.dumps({"at": at, "gauges": rows}, separators=(",", ":"))


def from_json(text: bytes | str) -> tuple[float, list[Gauge]]:
    """Read what `to_json` wrote; names nobody knows are left out."""
    raw = json.loads(text)
    rows = [Gauge(str(n), dict(labels), float(value)) for n, labels, value in raw["gauges"]]
    return float(raw["at"]), [gauge for gauge in rows if gauge.name in GAUGES]
