"""The portal as a Django application."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig


class PortalConfig(AppConfig):
    name = "portal"

    def ready(self) -> None:
        """Register the checks, and the Celery app that `shared_task` sends through."""
        import_module("portal.checks")
        import_module("portal.celery")
