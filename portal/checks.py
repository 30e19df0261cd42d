"""Settings that are each fine and do not go together; every finding says what to do."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, register

STORES_HINT = (
    "Set DATABASE_URL and REDIS_URL to servers that are backed up and watched, or say that the "
    "embedded ones are meant with ALLOW_EMBEDDED_STORES=1."
)


@register("fairway")
def embedded_stores(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """Production runs on embedded stores only when somebody said so."""
    if not settings.PRODUCTION or settings.ALLOW_EMBEDDED_STORES:
        return []
    embedded = {
        "DATABASE_URL": settings.EMBEDDED_DATABASE,
        "REDIS_URL": settings.EMBEDDED_REDIS,
    }
    return [
        Error(f"{name} is not set in production.", hint=STORES_HINT, id=f"fairway.E00{number}")
        for number, (name, missing) in enumerate(embedded.items(), 1)
        if missing
    ]


@register("fairway")
def shared_ledger(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """Several gateways that each count for themselves would let everybody have several caps."""
    if settings.GATEWAY_PROCESSES > 1 and os.environ.get("LEDGER") == "memory":
        return [
            Error(
                "Several gateways cannot share a ledger that lives in one of them.",
                hint="Leave LEDGER unset or set it to redis, or set GATEWAY_PROCESSES=1.",
                id="fairway.E003",
            )
        ]
    return []


@register("fairway")
def switches_of_tests(
    app_configs: Sequence[AppConfig] | None = None, **_: Any
) -> list[CheckMessage]:
    """What tests use to break things must not be within reach of an installation."""
    if not settings.PRODUCTION:
        return []
    return [
        Error(
            f"{name} is set in production.",
            hint="It is for tests only: unset it.",
            id=f"fairway.E00{number}",
        )
        for number, name in enumerate(("FAILPOINTS", "TEST_CLOCK"), 5)
        if os.environ.get(name)
    ]


@register("fairway")
def engine_kind(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """An unknown kind would only be noticed when the engine is registered."""
    from quotas.models import Replica  # models exist only once the apps are loaded

    if settings.ENGINE_KIND and settings.ENGINE_KIND not in Replica.Kind.values:
        return [
            Error(
                f"ENGINE_KIND is {settings.ENGINE_KIND!r}, which is no engine we know.",
                hint=f"Use one of {', '.join(Replica.Kind.values)}, or leave it unset.",
                id="fairway.E004",
            )
        ]
    return []
