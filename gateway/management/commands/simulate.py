"""Plays the scheduler forward under a virtual clock, to try a policy before anybody feels it."""

from __future__ import annotations

import dataclasses
import json
import statistics
from argparse import ArgumentTypeError
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from rich.console import Console
from rich.table import Table

from gateway.ledger import scenarios
from gateway.ledger.simulation import Policy, Result, Simulation, spread
from gateway.ledger.state import BATCH, INTERACTIVE
from gateway.management import replay

CHANGEABLE = {
    f.name: f.type for f in dataclasses.fields(Policy) if f.name not in ("feeds", "accrual_window")
}
Row = tuple[str, Result]
#: Seconds of waiting for which the JSON says which part waited no longer.
MARKS_S = (0, 1, 2, 5, 10, 30, 60, 300, 600, 1800, 3600)


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
        parser.add_argument(
            "--slots", type=int, help="with --days: slots of the card (default: what is registered)"
        )
        parser.add_argument(
            "--judge",
            action="store_true",
            help="say for each seed whether the rules are worth what docs/scheduler.md says",
        )
        parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the waits")
        parser.add_argument("--json", action="store_true", help="print the numbers as JSON")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run what was asked for, print it, and draw it."""
        if options["judge"]:
            self._judge(range(1, options["seeds"] + 1), options["hours"] * 3600)
            return
        if (options["changes"] or options["model"]) and not options["days"]:
            raise CommandError("--try and --model play real arrivals: say how many with --days N.")
        rows = self._replayed(options) if options["days"] else self._table(options)
        if options["json"]:
            self.stdout.write(json.dumps([_numbers(name, result) for name, result in rows]))
        else:
            table = _printed(rows, with_jobs=bool(options["days"]))
            Console(file=self.stdout, width=110).print(table)  # type: ignore[arg-type]
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

    def _judge(self, seeds: Iterable[int], seconds: float) -> None:
        """Print each statement of docs/scheduler.md §9 seed by seed, and the median."""
        found = [scenarios.judge(seed, seconds) for seed in seeds]
        for name in found[0]:
            numbers = [one[name] for one in found]
            by_seed = "  ".join(f"{n:.2f}" for n in numbers)
            self.stdout.write(f"{name}: {by_seed}  median {statistics.median(numbers):.2f}")

    def _replayed(self, options: dict[str, Any]) -> list[Row]:
        """Play the same real arrivals under the policy that is and the one to try."""
        came = replay.trace(options["days"], options["model"])
        now = replay.policy_of(came.model)
        if options["slots"]:
            now = dataclasses.replace(now, slots=options["slots"])
        self.stderr.write(
            f"{came.requests} requests for {came.model} in {options['days']} days, "
            f"played on {now.slots} slots."
        )

        def play(policy: Policy) -> Result:
            return Simulation(came.arrivals, came.backlogs, policy).run(came.seconds)

        rows = [("as it is", play(now))]
        if options["changes"]:
            rows.append(("as tried", play(dataclasses.replace(now, **dict(options["changes"])))))
        return rows


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
        "jobs_done": len(result.jobs),
        "jobs_s": dict(
            zip(("median", "p95", "max"), spread(ms for _, ms in result.jobs), strict=True)
        ),
        "marks_s": MARKS_S,
        "waited": {  # for each mark the part that waited no longer
            service_class.value: _shares(result.waits[service_class])
            for service_class in (INTERACTIVE, BATCH)
        },
        "batch_by_age": result.aged,
        "refused": result.refused,
        "timed_out": result.timed_out,
    }


def _shares(waits_ms: Sequence[int]) -> list[float] | None:
    """Return the part that waited no longer than each of MARKS_S; None when nobody came."""
    ordered = sorted(waits_ms)
    if not ordered:
        return None
    return [bisect_right(ordered, mark * 1000) / len(ordered) for mark in MARKS_S]


def _printed(rows: Sequence[Row], *, with_jobs: bool) -> Table:
    table = Table(
        title="waits, and how long jobs took, in seconds: median / 95th percentile / longest"
    )
    with_hog = any(scenarios.HOG in result.waits_of for _, result in rows)
    others = ["all but the one who queues 300"] if with_hog else []
    jobs = ["jobs took"] if with_jobs else []
    for heading in ("", "interactive", *others, "batch", "batch done", "by age", *jobs):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, result in rows:
        has_hog = scenarios.HOG in result.waits_of
        of_others = [_spread(result.others(scenarios.HOG)) if has_hog else ""] if with_hog else []
        table.add_row(
            name, _spread(result.line(INTERACTIVE)), *of_others, _spread(result.line(BATCH)),
            str(result.done[BATCH]), str(result.aged),
            *[_spread(spread(ms for _, ms in result.jobs)) for _ in jobs],
        )  # fmt: skip
    return table


def _spread(numbers: tuple[float, float, float]) -> str:
    return " / ".join(f"{n:.1f}" for n in numbers)


def _plot(rows: Sequence[Row], path: Path) -> None:
    """Draw for each class which part of the requests waited no longer than so many seconds."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise CommandError(
            "Drawing needs matplotlib: pip install -r requirements-dev.txt"
        ) from None
    figure = Figure(figsize=(12, 5.5), layout="constrained")
    longest = max((w for _, r in rows for waits in r.waits.values() for w in waits), default=0)
    for service_class, axes in zip(
        (INTERACTIVE, BATCH), figure.subplots(1, 2, sharey=True), strict=True
    ):
        for n, (name, result) in enumerate(rows):
            waits = sorted(result.waits[service_class])
            parts = [(i + 1) / len(waits) for i in range(len(waits))]
            style = "-" if n < 10 else "--"  # matplotlib has ten colours
            seconds = [max(w / 1000, 0.1) for w in waits]
            axes.plot([*seconds, max(10, longest / 1000)], [*parts, 1.0], style, label=name)
        axes.set_xscale("log")
        axes.set_xlim(0.1, max(10, longest / 1000))
        axes.set_ylim(0, 1.01)
        axes.set_title(f"{service_class.value} requests")
        axes.set_xlabel("wait in seconds (the left edge stands for none)")
        axes.grid(visible=True, alpha=0.3)
    figure.axes[0].set_ylabel("part that waited no longer")
    figure.axes[0].legend(fontsize=8, frameon=False, loc="lower right")
    figure.savefig(path, dpi=120)
