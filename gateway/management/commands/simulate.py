"""Plays the scheduler forward under a virtual clock, to try a policy before anybody feels it."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
from argparse import ArgumentTypeError
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone
from rich.console import Console
from rich.table import Table

from gateway.core.types import ServiceClass
from gateway.ledger import scenarios
from gateway.ledger.simulation import Arrival, Policy, Result, Simulation
from gateway.ledger.state import BATCH, INTERACTIVE
from quotas.models import UsageEvent

CHANGEABLE = {
    f.name: f.type for f in dataclasses.fields(Policy) if f.name not in ("feeds", "accrual_window")
}
Row = tuple[str, Result]


def change(text: str) -> tuple[str, int]:
    """Read one `name=number` of a policy to try."""
    name, _, value = text.partition("=")
    name = name.strip().replace("-", "_")
    if name not in CHANGEABLE or not value.strip().isdigit():
        known = ", ".join(sorted(CHANGEABLE))
        raise ArgumentTypeError(f"{text!r} is not one of {known} with a whole number")
    return (name, int(value))


class Command(BaseCommand):
    help = "Simulates the scheduler: its own table, or a policy on the arrivals of the last days."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--seeds", type=int, default=1, help="runs of each row of the table")
        parser.add_argument("--hours", type=float, default=2.0, help="simulated time of a row")
        parser.add_argument(
            "--days", type=int, metavar="N", help="play the real arrivals of the last N days"
        )
        parser.add_argument("--model", help="with --days: only this model")
        parser.add_argument(
            "--try", dest="changes", action="append", type=change, default=[],
            metavar="NAME=NUMBER", help=f"with --days: a change to try ({', '.join(CHANGEABLE)})",
        )  # fmt: skip
        parser.add_argument("--slots", type=int, default=8, help="with --days: slots of the card")
        parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the waits")
        parser.add_argument("--json", action="store_true", help="print the numbers as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run what was asked for, print it, and draw it."""
        rows = self._replayed(options) if options["days"] else self._table(options)
        if options["json"]:
            self.stdout.write(json.dumps([_numbers(name, result) for name, result in rows]))
        else:
            Console(file=self.stdout, width=110).print(_printed(rows))  # type: ignore[arg-type]
        if options["plot"]:
            _plot(rows, options["plot"])
            self.stderr.write(f"The waits are drawn in {options['plot']}.")

    def _table(self, options: dict[str, Any]) -> list[Row]:
        rows: list[Row] = []
        for scenario in scenarios.table():
            for seed in range(1, options["seeds"] + 1):
                name = scenario.name if options["seeds"] == 1 else f"{scenario.name}, seed {seed}"
                rows.append((name, scenario.run(seed, options["hours"] * 3600)))
        return rows

    def _replayed(self, options: dict[str, Any]) -> list[Row]:
        """Play the same real arrivals under the policy that is and the one to try."""
        arrivals, seconds = _real_arrivals(options["days"], options["model"])
        if not arrivals:
            raise CommandError("There are no requests in that time to play again.")
        now = Policy(slots=options["slots"])
        rows = [("as it is", Simulation(arrivals, [], now).run(seconds))]
        if options["changes"]:
            tried = dataclasses.replace(now, **dict(options["changes"]))
            rows.append(("as tried", Simulation(arrivals, [], tried).run(seconds)))
        return rows


def _real_arrivals(days: int, model: str | None) -> tuple[list[Arrival], float]:
    """Read who asked when, and how long it ran, from the books; never what was asked."""
    since = timezone.now() - dt.timedelta(days=days)
    events = UsageEvent.objects.filter(arrived_at__gte=since).order_by("arrived_at")
    if model:
        events = events.filter(model=model)
    columns = (
        "arrived_at", "user_id", "service_class", "duration_ms", "queue_wait_ms",
        "prompt_tokens", "completion_tokens",
    )  # fmt: skip
    arrivals = [
        Arrival(
            at_ms=round((at - since).total_seconds() * 1000),
            user=str(user),
            service_class=ServiceClass(cls),
            service_ms=max(1, duration - (waited or 0)),
            prompt_tokens=prompt,
            output_tokens=completion,
        )
        for at, user, cls, duration, waited, prompt, completion in events.values_list(*columns)
    ]
    return arrivals, days * 86_400.0


def _numbers(name: str, result: Result) -> dict[str, Any]:
    median, p95, most = result.line(INTERACTIVE)
    batch_median, batch_p95, batch_most = result.line(BATCH)
    return {
        "name": name,
        "interactive_wait_s": {"median": median, "p95": p95, "max": most},
        "others_wait_s": dict(
            zip(("median", "p95", "max"), result.others(scenarios.HOG), strict=True)
        ),
        "batch_wait_s": {"median": batch_median, "p95": batch_p95, "max": batch_most},
        "interactive_done": result.done[INTERACTIVE],
        "batch_done": result.done[BATCH],
        "batch_by_age": result.aged,
        "refused": result.refused,
        "timed_out": result.timed_out,
    }


def _printed(rows: Iterable[Row]) -> Table:
    table = Table(title="waits in seconds: median / 95th percentile / longest")
    for heading in ("", "interactive", "all but the hog", "batch done", "of them by age"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, result in rows:
        chat, others = result.line(INTERACTIVE), result.others(scenarios.HOG)
        table.add_row(
            name,
            " / ".join(f"{n:.1f}" for n in chat),
            " / ".join(f"{n:.1f}" for n in others) if others != chat else "",
            str(result.done[BATCH]),
            str(result.aged),
        )
    return table


def _plot(rows: Iterable[Row], path: Path) -> None:
    """Draw which part of the interactive requests waited no longer than so many seconds."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise CommandError(
            "Drawing needs matplotlib: pip install -r requirements-dev.txt"
        ) from None
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.subplots()
    for n, (name, result) in enumerate(rows):
        waits = sorted(result.waits[INTERACTIVE])
        parts = [(i + 1) / len(waits) for i in range(len(waits))]
        style = "-" if n < 10 else "--"  # matplotlib has ten colours
        axes.plot([max(w / 1000, 0.1) for w in waits], parts, style, label=name, linewidth=1.3)
    axes.set_xscale("log")
    axes.set_xlabel("wait in seconds (0.1 stands for none)")
    axes.set_ylabel("part of the interactive requests")
    axes.set_ylim(0, 1.01)
    axes.grid(visible=True, alpha=0.3)
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    figure.savefig(path, dpi=120)
