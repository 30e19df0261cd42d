"""Reads and judges a request to create a batch; what is known to fail is refused here.

Nothing in this file writes. What depends only on the file was decided when it was uploaded.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson
from django.db.models import Q
from django.utils import timezone

from portal.batches import webhooks
from portal.files import config
from portal.files.lines import ENDPOINTS, MOST_PROBLEMS
from portal.files.models import FileLine, StoredFile
from portal.files.services import unexpired
from portal.openai_api.errors import BadRequest
from quotas import resolve
from quotas.models import ApiKey, Pool
from quotas.services import limits
from quotas.snapshots import directory

WINDOW = re.compile(r"([1-9][0-9]{0,3})([hd])\Z")
WINDOW_LEAST = dt.timedelta(hours=1)
WINDOW_MOST = dt.timedelta(days=7)
METADATA_PAIRS, METADATA_KEY, METADATA_VALUE = 16, 64, 512


@dataclass(frozen=True, slots=True)
class Submission:
    """A well-formed request; whether it may run is `check`'s business."""

    input_file_id: str
    endpoint: str
    completion_window: str
    window: dt.timedelta
    metadata: dict[str, str] | None
    output_expires_s: int | None
    webhook_url: str
    dry_run: bool
    digest: str  # tells a repeated request from a different one


def read(body: Any) -> Submission:
    """Read the body of POST /v1/batches, or raise 400 naming the parameter."""
    if not isinstance(body, Mapping):
        raise BadRequest("The body must be a JSON object.")
    for name in ("input_file_id", "endpoint", "completion_window"):
        if not isinstance(body.get(name), str):
            raise BadRequest(f"{name} is required and must be a text.", param=name)
    if body["endpoint"] not in ENDPOINTS:
        raise BadRequest(f"endpoint must be one of {', '.join(ENDPOINTS)}.", param="endpoint")
    relevant = {name: value for name, value in body.items() if name != "dry_run"}
    canonical = orjson.dumps(relevant, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    return Submission(
        input_file_id=body["input_file_id"],
        endpoint=body["endpoint"],
        completion_window=body["completion_window"],
        window=window(body["completion_window"]),
        metadata=_metadata(body.get("metadata")),
        output_expires_s=_output_expiry(body.get("output_expires_after")),
        webhook_url=webhooks.check(body.get("webhook_url")),
        dry_run=body.get("dry_run") is True,
        digest=hashlib.sha256(canonical).hexdigest(),
    )


def window(text: str) -> dt.timedelta:
    """Read a completion window such as 24h or 7d."""
    match = WINDOW.match(text)
    if match:
        hours = int(match[1]) * (24 if match[2] == "d" else 1)
        length = dt.timedelta(hours=hours)
        if WINDOW_LEAST <= length <= WINDOW_MOST:
            return length
    raise BadRequest(
        "completion_window must be from 1h to 7d, such as 24h.",
        code="invalid_completion_window",
        param="completion_window",
    )


def _metadata(value: object) -> dict[str, str] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or len(value) > METADATA_PAIRS:
        raise BadRequest(f"metadata holds at most {METADATA_PAIRS} pairs.", param="metadata")
    for key, text in value.items():
        if not isinstance(text, str) or len(key) > METADATA_KEY or len(text) > METADATA_VALUE:
            raise BadRequest(
                f"metadata keys are texts of at most {METADATA_KEY} characters and values of "
                f"at most {METADATA_VALUE}.",
                param="metadata",
            )
        if "\x00" in key or "\x00" in text:
            raise BadRequest("metadata holds a NUL character.", param="metadata")
    return value


def _output_expiry(value: object) -> int | None:
    if value is None:
        return None
    if not isinstance(value, dict) or value.get("anchor") != "created_at":
        raise BadRequest(
            "output_expires_after needs the anchor created_at.", param="output_expires_after"
        )
    seconds = value.get("seconds")
    least, most = config.EXPIRY_LEAST_S, config.EXPIRY_MOST_S
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not least <= seconds <= most:
        raise BadRequest(
            f"output_expires_after.seconds must be from {least} to {most}.",
            param="output_expires_after",
        )
    return seconds


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why lines cannot run, in the form of OpenAI's `errors.data[]`."""

    code: str
    line: int | None
    message: str
    param: str | None

    def as_detail(self) -> dict[str, object]:
        """Return the entry of the list."""
        return {
            "code": self.code,
            "line": self.line,
            "message": self.message,
            "param": self.param,
        }


def find_input(owner_id: int, file_id: str) -> StoredFile:
    """Return the person's own input file."""
    row = StoredFile.objects.filter(
        unexpired(timezone.now()), owner=owner_id, public_id=file_id.replace("\x00", "")[:80]
    ).first()
    if row is None:
        raise BadRequest(
            f"No such file: {file_id[:80]!r}.", code="file_not_found", param="input_file_id"
        )
    if row.purpose != StoredFile.Purpose.BATCH:
        raise BadRequest("This file is not a batch input.", param="input_file_id")
    return row


def check(file: StoredFile, endpoint: str, key: ApiKey) -> list[Refusal]:
    """Return what would be refused of this file under this key; empty: all may run."""
    refusals: list[Refusal] = []
    first = file.line_rows.order_by("line_no").values_list("line_no", flat=True).first()
    if file.endpoint != endpoint:
        refusals.append(
            Refusal(
                "url_mismatch",
                first,
                f"the lines are for {file.endpoint}, the batch is for {endpoint}",
                "endpoint",
            )
        )
    binding = limits_of(key)
    pool = pool_of(file.model)
    if pool is None:
        served = ", ".join(Pool.objects.values_list("name", flat=True)[:10]) or "none yet"
        refusals.append(
            Refusal(
                "model_not_found",
                first,
                f"model {file.model!r} is not served here; served: {served}",
                "body.model",
            )
        )
    elif binding.allowed_models is not None and pool.name not in binding.allowed_models:
        refusals.append(
            Refusal(
                "model_not_allowed",
                first,
                f"this key may not use {file.model!r}; it may use "
                f"{', '.join(binding.allowed_models) or 'none'}",
                "body.model",
            )
        )
    return refusals + _too_long_answers(file, pool, binding.key.get("max_output_tokens"))


def pool_of(model: str) -> Pool | None:
    """Return the pool that serves a model, whichever of its names was used."""
    return Pool.objects.filter(Q(name=model) | Q(aliases__contains=[model])).first()


def _too_long_answers(file: StoredFile, pool: Pool | None, limit: int | None) -> list[Refusal]:
    bounds = [limit, pool.max_output_tokens if pool else None]
    known = [bound for bound in bounds if bound is not None]
    if not known:
        return []
    most = min(known)
    rows = FileLine.objects.filter(file=file, output_tokens__gt=most).order_by("line_no")
    return [
        Refusal(
            "max_tokens_too_large",
            line_no,
            f"asks for {wanted:,} tokens; the limit is {most:,}",
            "body.max_tokens",
        )
        for line_no, wanted in rows.values_list("line_no", "output_tokens")[:MOST_PROBLEMS]
    ]


def limits_of(key: ApiKey) -> directory.Limits:
    """Return the batch limits that bind this key: lines always run as batch."""
    return resolve.for_gateway(limits.effective(key=key, service_class="batch"))
