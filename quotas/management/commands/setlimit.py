"""`manage.py setlimit`: set or clear limits at one level; one flag for each limit there is."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import transaction

from quotas.counts import read_count
from quotas.limits import CLASSES, LimitSpec, offered
from quotas.management.durations import instant
from quotas.management.output import BooksCommand, plain_faults, write_json
from quotas.models import ApiKey, Group, Per, User
from quotas.services import limits

CLEAR = "default"
UNLIMITED = "unlimited"


class Command(BooksCommand):
    help = "Sets limits for everyone, a group, a user or a key. In force within 5 seconds."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        level = parser.add_mutually_exclusive_group(required=True)
        level.add_argument("--everyone", action="store_true")
        level.add_argument("--group", metavar="G")
        level.add_argument("--user", metavar="U")
        level.add_argument("--key", metavar="ID")
        parser.add_argument(
            "--class", dest="service_class", choices=CLASSES, help="default: both classes"
        )
        parser.add_argument("--per", choices=Per.values, help="what it is counted over")
        parser.add_argument(
            "--until", type=instant, help="2027-03-01 or 7d: ends by itself, then the old one holds"
        )
        parser.add_argument("--note", default="")
        for spec in offered():
            metavar = "MODEL,…" if spec.is_list else f"N|{UNLIMITED}|{CLEAR}"
            parser.add_argument(spec.flag, dest=spec.name, metavar=metavar, help=spec.help)

    def handle(self, **options: Any) -> None:
        wanted = [(spec, options[spec.name]) for spec in offered() if options[spec.name]]
        if not wanted:
            flags = " ".join(spec.flag for spec in offered())
            raise CommandError(f"Name at least one limit: {flags}")
        holder = _holder(options)
        chosen = options["service_class"]
        rows = []
        with plain_faults(), transaction.atomic():
            for spec, text in wanted:
                for service_class in [chosen] if chosen else spec.classes:
                    rows.append(_apply(holder, service_class, spec, text, options))
        if options["json"]:
            write_json(self.stdout, {"limits": rows})
        else:
            self.show_rows(list(rows[0]), rows, title="In force within 5 seconds")


def _holder(options: dict[str, Any]) -> limits.Holder:
    try:
        if options["group"]:
            return limits.Holder(group=Group.objects.get(name=options["group"]))
        if options["user"]:
            return limits.Holder(user=User.objects.get(username=options["user"]))
        if options["key"]:
            return limits.Holder(key=ApiKey.objects.get(public_id=options["key"]))
    except (Group.DoesNotExist, User.DoesNotExist, ApiKey.DoesNotExist) as error:
        raise CommandError(str(error)) from error
    return limits.EVERYONE


def _apply(
    holder: limits.Holder, service_class: str, spec: LimitSpec, text: str, options: dict[str, Any]
) -> dict[str, Any]:
    per = options["per"] or spec.usual_per(holder.level)
    shown: int | str | None = text
    if text == CLEAR:
        limits.clear_limit(holder=holder, service_class=service_class, name=spec.name, per=per)
    else:
        row = limits.set_limit(
            holder=holder,
            service_class=service_class,
            name=spec.name,
            per=per,
            value=None if spec.is_list else _number(spec, text),
            names=[name.strip() for name in text.split(",")] if spec.is_list else None,
            ends_at=options["until"],
            note=options["note"],
        )
        shown = ", ".join(row.names or ()) if spec.is_list else row.value
    return {
        "level": holder.level,
        "class": service_class,
        "limit": spec.name,
        "per": per,
        "value": shown,
        "until": options["until"],
    }


def _number(spec: LimitSpec, text: str) -> int | None:
    if text == UNLIMITED:
        return None
    try:
        return read_count(text)
    except ValueError as error:
        raise CommandError(f"{spec.flag}: {error}") from None
