"""How evenly the card was shared: `manage.py fairness --days 7`."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from quotas import fairness
from quotas.management.output import BooksCommand, write_json
from quotas.reports import Period


class Command(BooksCommand):
    """Shares, waits, Jain's index, and who waited behind whom."""

    help = "Show how evenly the card was shared, who waited, and behind whom."

    def add_arguments(self, parser: CommandParser) -> None:
        """Take the period and the model."""
        super().add_arguments(parser)
        parser.add_argument("--days", type=int, default=7, help="today and the days before it (7)")
        parser.add_argument("--model", help="one model only")

    def handle(self, *args: Any, **options: Any) -> None:
        """Read the books and print."""
        period = Period.last_days(max(1, options["days"]), now=timezone.now())
        found = fairness.of_period(period, model=options["model"])
        if options["json"]:
            write_json(self.stdout, found.as_json())
            return
        if not found.requests:
            self.stdout.write("Nobody asked for anything in this period.")
            return
        self._tables(found)

    def _tables(self, found: fairness.Fairness) -> None:
        parts = [
            {
                "user": part.name,
                "class": part.service_class,
                "requests": part.requests,
                "never_ran": part.never_ran,
                "slots": f"{part.slot_share:.0%}",
                "tokens": f"{part.token_share:.0%}",
                "wait_p50": _seconds(part.wait_p50_s),
                "wait_p95": _seconds(part.wait_p95_s),
            }
            for part in found.parts
        ]
        self.show_rows(list(parts[0]), parts, title="Shares and waits")
        behind = [
            {
                "who": pair.waiter,
                "class": pair.service_class,
                "waited_behind": pair.holder,
                "for": _seconds(pair.seconds),
            }
            for pair in found.behind[:20]
        ]
        if behind:
            self.show_rows(list(behind[0]), behind, title="Who waited behind whom")
        for name, index in found.jain_slots.items():
            even = "unknown" if index is None else f"{index:.2f}"
            self.stdout.write(f"Evenness of slots, {name}: {even} (1 = all alike)")
        if found.cut:
            self.stdout.write(f"Only the newest {found.requests} requests were read.")


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f} s"
