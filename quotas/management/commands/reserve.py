"""`manage.py reserve`: keep slots of a model for a group, list reservations, cancel one."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils import timezone

from quotas import reserved
from quotas.management.durations import instant
from quotas.management.output import BooksCommand, plain_faults, write_json
from quotas.models import Group, Pool, Reservation
from quotas.services import reservations

NEEDED = ("group", "model", "slots", "until")


class Command(BooksCommand):
    help = "Reserves slots of a model for a group; without options, lists what is reserved."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--group", metavar="G")
        parser.add_argument("--model", metavar="M")
        parser.add_argument("--slots", type=int, metavar="N")
        parser.add_argument(
            "--from", dest="since", type=instant, metavar="TIME", help="default: now"
        )
        parser.add_argument(
            "--until", type=instant, metavar="TIME", help="2027-03-01T12:00, or 2h from now"
        )
        parser.add_argument(
            "--weeks", type=int, default=1, help="repeat weekly, so many weeks in all"
        )
        parser.add_argument("--note", default="", help="shown on the status page")
        parser.add_argument("--cancel", type=int, metavar="ID", help="give the slots back")

    def handle(self, **options: Any) -> None:
        if options["cancel"] is not None:
            with plain_faults():
                reservations.cancel(reservation=_found(Reservation, pk=options["cancel"]))
        elif any(options[name] is not None for name in NEEDED):
            missing = [f"--{name}" for name in NEEDED if options[name] is None]
            if missing:
                raise CommandError(f"Also name {' '.join(missing)}.")
            with plain_faults():
                reservations.reserve(
                    group=_found(Group, name=options["group"]),
                    pool=_found(Pool, name=options["model"]),
                    slots=options["slots"],
                    starts_at=options["since"] or timezone.now(),
                    ends_at=options["until"],
                    weeks=options["weeks"],
                    note=options["note"],
                )
        self._list(as_json=options["json"])

    def _list(self, *, as_json: bool) -> None:
        rows = [
            {
                "id": one.reservation.pk,
                "group": one.reservation.group.name,
                "model": one.reservation.pool.name,
                "slots": one.reservation.slots,
                "from": timezone.localtime(one.occurrence.starts_at),
                "until": timezone.localtime(one.occurrence.ends_at),
                "weeks": one.reservation.weeks,
                "state": "running" if one.is_running else "to come",
            }
            for one in reserved.running_and_coming(timezone.now())
        ]
        if as_json:
            write_json(self.stdout, {"reservations": rows})
        elif rows:
            self.show_rows(list(rows[0]), rows, title="Reserved slots")
        else:
            self.stdout.write("Nothing is reserved.\n")


def _found(model: Any, **by: Any) -> Any:
    try:
        return model.objects.get(**by)
    except model.DoesNotExist as error:
        raise CommandError(f"{model.__name__} {next(iter(by.values()))} does not exist.") from error
