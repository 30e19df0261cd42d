"""Sends chats through the gateway and remembers exactly what came back."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass, field
from typing import Any

import httpx


@dataclass
class Call:
    """One call of a client; `status` 0 means that the connection broke."""

    mark: str
    invoked_s: float
    status: int = 0
    headers: httpx.Headers = field(default_factory=httpx.Headers)
    body: bytes = b""
    first_s: float | None = None  # first byte of the body
    ended_s: float = 0.0
    broke: str = ""  # how the connection ended, if it did not end well

    @property
    def sha256(self) -> str:
        """Return the hash of the body."""
        return hashlib.sha256(self.body).hexdigest()

    @property
    def code(self) -> str:
        """Return the stable code of an error, also of one that came inside a stream."""
        for part in [self.body, *self.events]:
            try:
                found = json.loads(part)
            except ValueError:
                continue
            if isinstance(found, dict) and isinstance(found.get("error"), dict):
                return str(found["error"].get("code"))
        return ""

    @property
    def events(self) -> list[bytes]:
        """Return the data of each server-sent event."""
        lines = self.body.split(b"\n")
        return [line[6:] for line in lines if line.startswith(b"data: ") and b"[DONE]" not in line]

    @property
    def whole(self) -> bool:
        """Answer whether this is a complete good answer."""
        if self.status != 200 or self.broke or self.code:
            return False
        return b"[DONE]" in self.body if b"data: " in self.body else self.body.endswith(b"}")

    @property
    def text(self) -> str:
        """Return the generated text."""
        found = []
        for part in self.events or [self.body]:
            for choice in json.loads(part).get("choices", []):
                message = choice.get("delta") or choice.get("message") or {}
                found.append(message.get("content") or choice.get("text") or "")
        return "".join(found)


def chat(model: str, mark: str, *, stream: bool = True, **fields: Any) -> dict[str, Any]:
    """Return the body of a chat that carries a mark for the witness engine."""
    message = {"role": "user", "content": f"Please answer [mark:{mark}]"}
    return {"model": model, "messages": [message], "stream": stream, **fields}


class Caller:
    """A client of one gateway; its connections are pooled like any client's."""

    def __init__(self, url: str, timeout_s: float = 60) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=50)
        self._client = httpx.AsyncClient(
            base_url=url, verify=False, trust_env=False, timeout=timeout_s, limits=limits
        )

    async def __aenter__(self) -> Caller:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._client.aclose()

    async def ask(
        self, key: str, body: dict[str, Any], *, leave_after: int = -1,
        path: str = "chat/completions", headers: dict[str, str] | None = None,
    ) -> Call:  # fmt: skip
        """Send one request; with `leave_after` hang up after that many lines with data."""
        mark = json.dumps(body).partition("[mark:")[2].partition("]")[0]
        call = Call(mark, time.monotonic())
        # The client's own request id is kept in the usage row, so a row can be found by mark.
        sent = {"Authorization": f"Bearer {key}", "X-Request-Id": mark, **(headers or {})}
        try:
            async with self._client.stream(
                "POST", f"/v1/{path}", json=body, headers=sent
            ) as answer:
                call.status, call.headers = answer.status_code, answer.headers
                async for piece in answer.aiter_raw():
                    call.first_s = call.first_s or time.monotonic()
                    call.body += piece
                    if 0 <= leave_after <= len(call.events):
                        call.broke = "left"
                        break
        except httpx.HTTPError as error:
            call.broke = type(error).__name__
        call.ended_s = time.monotonic()
        return call

    async def get(self, path: str, key: str = "") -> httpx.Response:
        """Send a GET."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return await self._client.get(path, headers=headers)
