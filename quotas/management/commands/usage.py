"""`manage.py usage`: the same report as the usage page, as a table."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from quotas import exports, reports
from quotas.limits import CLASSES
from quotas.management.output import BooksCommand, write_json
from quotas.models import Group, User

_SHOWN = ("requests", "failed", "prompt_tokens", "cached_tokens", "completion_tokens", "tokens")


class Command(BooksCommand):
    help = "Prints usage by day, model, key, user, group, class or batch."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--by", nargs="+", default=["day"], choices=list(reports.DIMENSIONS), metavar="WHAT",
            help=", ".join(reports.DIMENSIONS),
        )  # fmt: skip
        parser.add_argument("--days", type=int, default=30, help="today and the days before it")
        parser.add_argument("--from", dest="first", type=dt.date.fromisoformat, metavar="DATE")
        parser.add_argument("--to", dest="last", type=dt.date.fromisoformat, metavar="DATE")
        parser.add_argument("--user", metavar="U")
        parser.add_argument("--group", metavar="G")
        parser.add_argument("--key", metavar="ID")
        parser.add_argument("--model")
        parser.add_argument("--class", dest="service_class", choices=CLASSES)
        parser.add_argument("--batch", metavar="ID")
        parser.add_argument("--csv", action="store_true", help="print CSV")

    def handle(self, **options: Any) -> None:
        by = options["by"]
        period = _period(options)
        header, rows = exports.report_table(by, reports.lines(by, period, _only(options)))
        if options["csv"]:
            for text in exports.csv_lines(header, rows):
                self.stdout.write(text, ending="")
            return
        found = [dict(zip(header, row, strict=True)) for row in rows]
        if options["json"]:
            write_json(
                self.stdout, {"from": period.first, "to": period.last, "by": by, "usage": found}
            )
            return
        title = f"Usage from {period.first} to {period.last}"
        self.show_rows([*by, *_SHOWN], found, title=title)


def _period(options: dict[str, Any]) -> reports.Period:
    recent = reports.Period.last_days(options["days"], now=timezone.now())
    period = reports.Period(options["first"] or recent.first, options["last"] or recent.last)
    if period.first > period.last:
        raise CommandError("The first day is after the last.")
    return period


def _only(options: dict[str, Any]) -> reports.Only:
    try:
        user = User.objects.get(username=options["user"]) if options["user"] else None
        group = Group.objects.get(name=options["group"]) if options["group"] else None
    except (User.DoesNotExist, Group.DoesNotExist) as error:
        raise CommandError(str(error)) from error
    return reports.Only(
        user_id=user.pk if user else None,
        group_id=group.pk if group else None,
        key_id=options["key"],
        model=options["model"],
        service_class=options["service_class"],
        batch_id=options["batch"],
    )
