"""Hears from the gateway what is true now, at most once a second for all pages together.

An answer that does not come is remembered as such: the caller learns since when nothing was
heard and gets no old numbers to show by mistake.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import structlog
from django.conf import settings

from quotas.snapshots import credentials, live
from quotas.snapshots.live import Live

log = structlog.get_logger(__name__)

FRESH_S = 1.0
TIMEOUT_S = 1.5
CREDENTIAL_S = 60
SERVICE_UNAVAILABLE = 503
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Heard:
    """What came of asking the gateway."""

    asked_at: float  # Unix seconds
    live: Live | None  # None: nothing that may be called current
    last_at: float | None  # when it last answered this process; None: never yet
    problem: str = ""
    partial: Live | None = None  # what it still knows while the scheduler's store is away


def decode(raw: Mapping[str, Any]) -> live.Live:
    """Read the gateway's JSON; fields a newer gateway adds are left alone."""
    rows: dict[str, Any] = {
        "engines": tuple(_row(live.EngineLive, one) for one in raw["engines"]),
        "queued": tuple(_row(live.QueuedLive, one) for one in raw["queued"]),
        "running": tuple(_row(live.RunningLive, one) for one in raw["running"]),
        "verdicts": tuple(_row(live.VerdictLive, one) for one in raw.get("verdicts", ())),
    }
    return _row(live.Live, {**raw, **rows})


def _row(kind: type[Row], raw: Mapping[str, Any]) -> Row:
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    return kind(**{name: value for name, value in raw.items() if name in names})


class Source:
    """Asks one gateway and keeps its answer for a second."""

    def __init__(self, url: str, secret_key: str) -> None:
        self._url = f"{url}/internal/live"
        self._stop_url = f"{url}/internal/stop"
        self._quota_url = f"{url}/internal/quota"
        self._secret_key = secret_key
        self._client = httpx.Client(timeout=TIMEOUT_S, trust_env=False)
        self._lock = threading.Lock()
        self._heard: Heard | None = None

    def read(self) -> Heard:
        """Return an answer at most a second old; callers at the same moment share one."""
        with self._lock:
            now = time.time()
            if self._heard is None or not 0 <= now - self._heard.asked_at < FRESH_S:
                self._heard = self._ask(now)
            return self._heard

    def quotas(self, limits: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
        """Return where counted limits stand, in the order asked; None: nobody can say.

        The numbers are the gate's own: nothing is added up a second time here.
        """
        if not limits:
            return []
        try:
            answer = self._client.post(
                self._quota_url, headers=self._headers(time.time()), json={"limits": limits}
            )
            answer.raise_for_status()
            found: list[dict[str, Any]] = answer.json()["quotas"]
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            log.warning("quotas_not_heard", error=type(error).__name__, detail=str(error))
            return None
        return found if len(found) == len(limits) else None

    def stop(self, request_id: str, user_id: str | None) -> bool | None:
        """Ask the gateway to end a request; False: there is none of that person, None: unheard.

        Without a person it is an administrator who asks.
        """
        asked = {"request_id": request_id, "user_id": user_id}
        try:
            answer = self._client.post(
                self._stop_url, headers=self._headers(time.time()), json=asked
            )
        except httpx.HTTPError as error:
            log.warning("stop_not_heard", error=type(error).__name__, detail=str(error))
            return None
        return {202: True, 404: False}.get(answer.status_code)

    def _headers(self, now: float) -> dict[str, str]:
        credential = credentials.Credential("live", "", now + CREDENTIAL_S)
        return {"Authorization": f"Bearer {credentials.sign(self._secret_key, credential)}"}

    def _ask(self, now: float) -> Heard:
        last_at = self._heard.last_at if self._heard else None
        try:
            answer = self._client.get(self._url, headers=self._headers(now))
            if answer.status_code != SERVICE_UNAVAILABLE:
                answer.raise_for_status()
            heard = decode(answer.json())
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            if self._heard is None or self._heard.live is not None:
                log.warning("gateway_not_heard", error=type(error).__name__, detail=str(error))
            return Heard(time.time(), None, last_at, problem=type(error).__name__)
        if not heard.queue_known:
            return Heard(time.time(), None, last_at, "queue unknown", partial=heard)
        return Heard(time.time(), heard, heard.at)


_source: Source | None = None
_source_lock = threading.Lock()


def here() -> Source:
    """Return the gateway this installation is set up with."""
    global _source
    with _source_lock:
        if _source is None:
            _source = Source(settings.GATEWAY_URL, settings.SECRET_KEY)
    return _source


def read() -> Heard:
    """Ask the gateway this installation is set up with."""
    return here().read()
