"""The few calls the commands need, over plain HTTP, with errors in plain words."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import httpx

RETRIES = 4
RETRIED = frozenset({429, 502, 503, 504})
LONGEST_WAIT_S = 30.0


class ApiProblem(Exception):
    """The server said no."""

    def __init__(self, status: int, message: str, code: str = "", details: object = None) -> None:
        super().__init__(message)
        self.status, self.code, self.details = status, code, details


class Unreachable(Exception):
    """Nobody answers at this address."""


@dataclass
class Api:
    """One server and one key."""

    base_url: str
    key: str

    def __post_init__(self) -> None:
        self._client = httpx.Client(
            base_url=self.base_url.rstrip("/") + "/",
            headers={"Authorization": f"Bearer {self.key}", "User-Agent": "fairway-cli"},
            timeout=httpx.Timeout(60.0, write=600.0, read=300.0),
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def upload(self, name: str, file: BinaryIO) -> dict[str, Any]:
        """Send a file; it is streamed from the disk."""
        form = {"data": {"purpose": "batch"}, "files": {"file": (name, file)}}
        return _json(self._once("POST", "files", **form))

    def create(self, file_id: str, endpoint: str, window: str, webhook: str = "") -> dict[str, Any]:
        """Create a batch; trying again makes no second one where the server knows how."""
        body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": window}
        if webhook:
            body["webhook_url"] = webhook
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        return _json(self._patiently("POST", "batches", json=body, headers=headers))

    def estimate(self, file_id: str, endpoint: str, window: str) -> dict[str, Any]:
        """Ask what a batch would be."""
        body = {"input_file_id": file_id, "endpoint": endpoint, "completion_window": window}
        return _json(self._patiently("POST", "batches/estimate", json=body))

    def batch(self, batch_id: str) -> dict[str, Any]:
        """Return one batch."""
        return _json(self._patiently("GET", f"batches/{batch_id}"))

    def batches(self, limit: int) -> list[dict[str, Any]]:
        """Return the newest batches."""
        found: list[dict[str, Any]] = _json(
            self._patiently("GET", "batches", params={"limit": limit})
        )["data"]
        return found

    def cancel(self, batch_id: str) -> dict[str, Any]:
        """Cancel one batch."""
        return _json(self._patiently("POST", f"batches/{batch_id}/cancel"))

    def delete_file(self, file_id: str) -> None:
        """Delete a file."""
        self._patiently("DELETE", f"files/{file_id}")

    def content(self, path: str) -> Iterator[bytes]:
        """Yield the bytes at a path, piece by piece."""
        try:
            with self._client.stream("GET", path) as answer:
                if answer.status_code != 200:
                    answer.read()
                    raise _problem(answer)
                yield from answer.iter_bytes()
        except httpx.HTTPError as error:
            raise Unreachable(f"the download broke off: {error}") from error

    def _once(self, method: str, path: str, **options: Any) -> httpx.Response:
        try:
            answer = self._client.request(method, path, **options)
        except httpx.HTTPError as error:
            raise Unreachable(f"{self.base_url} does not answer: {error}") from error
        if answer.status_code >= 300:
            raise _problem(answer)
        return answer

    def _patiently(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Try again what is only not possible now."""
        for attempt in range(RETRIES + 1):
            try:
                return self._once(method, path, **options)
            except (ApiProblem, Unreachable) as error:
                final = isinstance(error, ApiProblem) and error.status not in RETRIED
                if final or attempt == RETRIES:
                    raise
            time.sleep(min(2.0**attempt * 0.5, LONGEST_WAIT_S))
        raise AssertionError("unreachable")


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        body = answer.json()
    except ValueError as error:
        raise ApiProblem(answer.status_code, "the answer is not JSON; is the address right?") from (
            error
        )
    if not isinstance(body, dict):
        raise ApiProblem(answer.status_code, "the answer is not what this API sends")
    return body


def _problem(answer: httpx.Response) -> ApiProblem:
    try:
        error = answer.json()["error"]
        details = error.get("errors", {}).get("data")
        return ApiProblem(
            answer.status_code, str(error["message"]), str(error.get("code") or ""), details
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        return ApiProblem(answer.status_code, f"the server answered {answer.status_code}")
