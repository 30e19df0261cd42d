"""Logs as one JSON object a line, in UTC, with the request id and without secrets."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog

from quotas.snapshots import credentials, keyformat

SECRET = re.compile(
    rf"{keyformat.PATTERN}"
    rf"|{credentials.PREFIX}[\w.=-]+"
    r"|(?i:bearer\s+[^\s\"']+)"
    r"|(?<=://)[^/@\s:]*:[^/@\s]+(?=@)"
)
HIDDEN_FIELDS = frozenset({"password", "secret", "authorization", "cookie", "api_key", "token"})


def without_secrets(text: str) -> str:
    """Return the text with keys, credentials and passwords in addresses blotted out."""
    return SECRET.sub("[hidden]", text)


def hide_secrets(
    _logger: object, _method: str, event: MutableMapping[str, Any]
) -> Mapping[str, Any]:
    """Blot out secrets in every text of a log entry, the traceback included."""
    return {
        name: "[hidden]"
        if name.lower() in HIDDEN_FIELDS
        else without_secrets(value)
        if isinstance(value, str)
        else value
        for name, value in event.items()
    }


SHARED: list[structlog.typing.Processor] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.stdlib.PositionalArgumentsFormatter(),
    structlog.processors.TimeStamper(fmt="iso", utc=True),
    structlog.processors.format_exc_info,
]


def config(*, level: str) -> dict[str, Any]:
    """Return Django's LOGGING; every record, structlog's or not, takes the same road."""
    structlog.configure(
        processors=[*SHARED, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {
            "json": {
                "()": structlog.stdlib.ProcessorFormatter,
                "foreign_pre_chain": SHARED,
                "processors": [
                    structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                    hide_secrets,
                    structlog.processors.JSONRenderer(),
                ],
            }
        },
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
        "root": {"handlers": ["stderr"], "level": level},
        "loggers": {
            "django.server": {"handlers": ["stderr"], "propagate": False},
            "httpx": {"level": logging.WARNING},
            "uvicorn.access": {"level": logging.WARNING},
        },
    }
