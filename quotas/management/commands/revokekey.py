"""`manage.py revokekey`: end a key for good."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from quotas.management.output import BooksCommand, plain_faults
from quotas.models import ApiKey
from quotas.services import keys
from quotas.snapshots import keyformat


class Command(BooksCommand):
    help = "Revokes a key; every gateway refuses it within 5 seconds, and nothing brings it back."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("key", help="the key's id (key_…) or, after a leak, the secret itself")

    def handle(self, **options: Any) -> None:
        key = _find(options["key"])
        with plain_faults():
            key = keys.revoke(key=key)
        fields = {"key_id": key.public_id, "name": key.name, "revoked_at": key.revoked_at}
        self.show(fields, as_json=options["json"], title="Revoked")


def _find(text: str) -> ApiKey:
    if keyformat.is_well_formed(text):
        wanted = ApiKey.objects.filter(digest=keyformat.digest(text))
    else:
        wanted = ApiKey.objects.filter(public_id=text)
    key = wanted.first()
    if key is None:
        raise CommandError("There is no such key.")
    return key
