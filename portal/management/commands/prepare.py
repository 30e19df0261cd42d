"""`manage.py prepare`: tables, static files, first admin, engine of ENGINE_URL, directory."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from portal import preparation
from portal.stores.errors import StoreError
from quotas import directory

PATIENCE_S = 60.0


class Command(BaseCommand):
    help = "Prepares a new or upgraded installation; safe to run again and from several hosts."

    def handle(self, **options: Any) -> None:
        try:
            preparation.await_stores(PATIENCE_S)
        except StoreError as error:
            raise CommandError(str(error)) from None
        preparation.migrate()
        preparation.collect_static()
        admin = preparation.ensure_admin()
        if admin.password:
            self.stdout.write(
                f"Sign in as {admin.username} with the password {admin.password}; "
                "it is shown this once, and replaced at the first sign-in."
            )
        if settings.ENGINE_URL:
            preparation.register_own_engine()
        # Gateways that start before the usage writer find the directory as the books have it.
        directory.ensure_published()
