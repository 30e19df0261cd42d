"""Starts one gateway process: hands it its settings and gets out of its way.

The gateway must not carry Django around, so this command replaces itself by `python -m gateway`.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand


class Command(BaseCommand):
    help = "Runs one gateway process in the place of this one."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        """Become the gateway."""
        environment = {
            **os.environ,
            "REDIS_URL": settings.REDIS_URL,
            "SECRET_KEY": settings.SECRET_KEY,
            "DATA_DIR": str(settings.DATA_DIR),
            "PORTAL_SOCKET": settings.PORTAL_SOCKET,
            "HOST": settings.HOST,
            "PORT": str(settings.PORT),
            "PORTAL_ENV": settings.PORTAL_ENV,
        }
        if settings.GATEWAY_PROCESSES > 1 and "PROMETHEUS_MULTIPROC_DIR" not in environment:
            # Prometheus asks whichever process answers; it is to hear the sum of all.
            folder = settings.DATA_DIR / "metrics"
            folder.mkdir(parents=True, exist_ok=True)
            environment["PROMETHEUS_MULTIPROC_DIR"] = str(folder)
        os.chdir(settings.BASE_DIR)
        os.execve(sys.executable, [sys.executable, "-m", "gateway"], environment)  # noqa: S606
