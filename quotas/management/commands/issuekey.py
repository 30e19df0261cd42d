"""`manage.py issuekey`: make a key and print its secret once."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.core.management.base import CommandParser
from django.db import transaction

from quotas.management.durations import lifetime
from quotas.management.output import BooksCommand, plain_faults
from quotas.models import ServiceClass
from quotas.services import keys, people


class Command(BooksCommand):
    help = "Issues a key and prints its secret, which is stored nowhere; makes the user if missing."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--user", required=True, metavar="NAME")
        parser.add_argument(
            "--class",
            dest="service_class",
            choices=ServiceClass.values,
            required=True,
            help="interactive goes first; batch stands as if it had arrived ten minutes later",
        )
        parser.add_argument("--group", metavar="G", help="made if missing")
        parser.add_argument("--name", metavar="N", help="default: made from class and date")
        parser.add_argument(
            "--expires", type=lifetime, default=keys.DEFAULT_LIFETIME, metavar="90d|never"
        )
        parser.add_argument(
            "--application",
            dest="header",
            metavar="HEADER",
            default="",
            help="make an application key; this request header names the end user",
        )

        parser.add_argument(
            "--may-manage",
            action="store_true",
            help="it may write in the portal's API what its owner may, not only read",
        )

    def handle(self, **options: Any) -> None:
        with plain_faults(), transaction.atomic():
            group = people.ensure_group(name=options["group"]) if options["group"] else None
            owner = people.ensure_user(username=options["user"], group=group)
            name = options["name"] or (
                f"{options['service_class']} {dt.datetime.now(dt.UTC):%Y-%m-%d %H:%M:%S.%f}"
            )
            issued = keys.issue(
                owner=owner,
                name=name,
                service_class=options["service_class"],
                lifetime=options["expires"],
                kind="application" if options["header"] else "ordinary",
                end_user_header=options["header"],
                may_manage=options["may_manage"],
            )
        key = issued.key
        fields = {
            "key_id": key.public_id,
            "secret": issued.secret,
            "user": owner.username,
            "user_id": str(owner.pk),
            "group": owner.group.name if owner.group else None,
            "name": key.name,
            "service_class": key.service_class,
            "masked": key.masked,
            "expires_at": key.expires_at,
        }
        self.show(fields, as_json=options["json"], title="Shown once: copy the secret now")
