"""Accounts as a Django application: it remembers which passwords are good for one sign-in."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "portal.accounts"

    def ready(self) -> None:
        """Hear of sign-ins and of changed passwords."""
        import_module("portal.accounts.first_password")
