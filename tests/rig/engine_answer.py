"""How the witness engine answers one request, from its place in the queue to its last byte."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import hashlib
import json
import os
import socket
import struct
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from tests.rig import engine_script as pages
from tests.rig.engine_script import Script

if TYPE_CHECKING:
    from tests.rig.engine import Engine

BUSY = b'{"error":{"message":"engine is currently busy","type":"Service Unavailable","code":503}}'
NO_KEY = b'{"error":{"message":"Invalid API Key","type":"authentication_error","code":401}}'
BROKEN = {"error": {"message": "told to break", "type": "InternalServerError", "code": 500}}


class Cut(Exception):
    """The script ends this connection without a word."""


@dataclasses.dataclass
class Request:
    """One request as it came off the wire, and what it was given so far."""

    number: int
    method: str
    path: str
    headers: list[tuple[str, str]]
    raw: bytes
    body: dict[str, Any] = dataclasses.field(default_factory=dict)
    mark: str = ""
    tokens: int = 0
    sent: Any = dataclasses.field(default_factory=hashlib.sha256)
    sent_bytes: int = 0
    last_sent_s: float = 0.0  # when the last bytes of the body so far were written

    def shows(self, api_key: str) -> bool:
        """Answer whether it carries the key, where one is asked for."""
        return not api_key or ("authorization", f"Bearer {api_key}") in self.headers


class Answer:
    """The answer to one request."""

    def __init__(
        self, engine: Engine, request: Request, writer: asyncio.StreamWriter, script: Script
    ) -> None:
        self.engine = engine
        self.request = request
        self.writer = writer
        self.script = script
        self.chat = request.path == "/v1/chat/completions"
        self.stream = request.body.get("stream") is True and request.path != "/v1/embeddings"
        self.prompt = pages.prompt_tokens(request.body)

    async def give(self) -> bool:
        """Do as the script says; True keeps the connection."""
        script, engine = self.script, self.engine
        if script.die:
            os._exit(9)
        if not self.request.shows(script.api_key):
            return await self._whole(401, NO_KEY)
        if engine.refuses(script):
            text = script.fail_body or json.dumps({"error": {"message": "told to fail"}})
            return await self._whole(script.fail_status, text.encode())
        if script.busy and engine.slots.full():
            engine.counters.rejected += 1
            return await self._whole(503, BUSY)
        if self.stream and script.headers_early:
            await self._open_stream()
        await engine.slots.take()
        try:
            engine.note("slot", self.request)
            prefill_s = self.prompt / script.prefill_tps if script.prefill_tps else 0.0
            await asyncio.sleep(prefill_s + script.first_delay_s)
            engine.counters.prompt += self.prompt
            engine.counters.cached += min(script.cached_tokens or 0, self.prompt)
            return await self._generate()
        finally:
            engine.slots.give()

    async def _generate(self) -> bool:
        if self.stream and not self.script.headers_early:
            await self._open_stream()
        if self.script.answer_b64:
            return await self._verbatim()
        if self.request.path == "/v1/embeddings":
            return await self._embeddings()
        try:
            return await (self._stream() if self.stream else self._plain())
        except Cut:
            if self.request.tokens != self.script.error_after:
                self._end_rudely()
                raise
        if not self.stream:
            return await self._whole(500, json.dumps(BROKEN).encode())
        await self._event(json.dumps(BROKEN))
        return await self._close_stream()

    # --- tokens ---------------------------------------------------------------------------

    @property
    def _asked(self) -> int | None:
        body = self.request.body
        asked = body.get("max_completion_tokens") or body.get("max_tokens")
        return asked if isinstance(asked, int) else None

    async def _tokens(self) -> AsyncIterator[str]:
        """Make the answer token by token, obeying the verbs that break it off."""
        script, request = self.script, self.request
        total = script.tokens if self._asked is None else min(self._asked, script.tokens)
        for number in range(total + 1):
            if number == script.hang_after:
                await self._hang()
            if number in (script.close_after, script.reset_after, script.error_after):
                raise Cut(str(number))
            if number == total:
                return
            await asyncio.sleep(1 / script.decode_tps if script.decode_tps else 0)
            request.tokens += 1
            self.engine.counters.generated += 1
            # Each answer says whose it is, so that an answer in the wrong hands is seen.
            yield f"{request.mark or 'answer'} " if number == 0 else f"w{number} "

    async def _hang(self) -> None:
        while True:
            await asyncio.sleep(self.script.ping_s or 3600)
            if self.stream:
                await self._send(b":\n\n", framed=True)

    def _reason(self) -> str:
        return "length" if self._asked is not None and self._asked <= self.script.tokens else "stop"

    def _frame(self, **fields: Any) -> dict[str, Any]:
        kind = "chat.completion" if self.chat else "text_completion"
        return {
            "id": f"cmpl-{self.request.number}",
            "object": f"{kind}.chunk" if self.chat and self.stream else kind,
            "created": 1_790_000_000,
            "model": self.script.model,
        } | fields

    def _usage(self) -> dict[str, Any]:
        return pages.usage(self.script, self.prompt, self.request.tokens)

    # --- shapes of answers ----------------------------------------------------------------

    async def _plain(self) -> bool:
        text = "".join([token async for token in self._tokens()])
        part = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        answer = self._frame(choices=[{"index": 0, "finish_reason": self._reason(), **part}])
        if self.script.usage != "none":
            answer["usage"] = self._usage()
        return await self._whole(200, json.dumps(answer).encode())

    async def _embeddings(self) -> bool:
        given = self.request.body.get("input", "")
        count = len(given) if isinstance(given, list) else 1
        data = [
            {"object": "embedding", "index": number, "embedding": [0.5, -0.5, float(number)]}
            for number in range(count)
        ]
        counted = {"prompt_tokens": self.prompt, "total_tokens": self.prompt}
        answer = {"object": "list", "model": self.script.model, "data": data, "usage": counted}
        return await self._whole(200, json.dumps(answer).encode())

    async def _stream(self) -> bool:
        if self.chat:
            await self._choice({"delta": {"role": "assistant", "content": ""}})
        packed = ""
        async for token in self._tokens():
            packed += token
            if self.request.tokens % self.script.packs == 0:
                await self._content(packed)
                packed = ""
        if packed:
            await self._content(packed)
        if self.script.finish:
            await self._choice({"delta": {}} if self.chat else {"text": ""}, self._reason())
        options = self.request.body.get("stream_options") or {}
        asked = self.script.usage == "asked" and options.get("include_usage") is True
        if asked or self.script.usage in ("last", "every"):
            await self._event(json.dumps(self._frame(choices=[], usage=self._usage())))
        return await self._close_stream()

    async def _content(self, text: str) -> None:
        await self._choice({"delta": {"content": text}} if self.chat else {"text": text})

    async def _choice(self, part: dict[str, Any], reason: str | None = None) -> None:
        data = self._frame(choices=[{"index": 0, "finish_reason": reason, **part}])
        options = self.request.body.get("stream_options") or {}
        along = self.script.counts_along and options.get("continuous_usage_stats") is True
        if along or self.script.usage == "every":
            data["usage"] = self._usage()
        await self._event(json.dumps(data, ensure_ascii=False))

    async def _verbatim(self) -> bool:
        body = base64.b64decode(self.script.answer_b64)
        if not self.stream:
            return await self._whole(200, body)
        await self._send(body, framed=True)
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()
        return True

    # --- bytes out ------------------------------------------------------------------------

    def _head(self, status: int, kind: str, framing: str) -> bytes:
        lines = [f"HTTP/1.1 {status} X", f"content-type: {self.script.answer_type or kind}"]
        if self.script.answer_encoding:
            lines.append(f"content-encoding: {self.script.answer_encoding}")
        return "\r\n".join([*lines, framing, "", ""]).encode()

    async def _open_stream(self) -> None:
        kind = "text/event-stream; charset=utf-8"
        self.writer.write(self._head(200, kind, "transfer-encoding: chunked"))
        await self.writer.drain()

    async def _event(self, data: str) -> None:
        await self._send(f"data: {data}\n\n".encode(), framed=True)

    async def _send(self, data: bytes, *, framed: bool) -> None:
        if not self.request.sent_bytes:
            self.engine.note("first", self.request)
        self.request.sent.update(data)
        self.request.sent_bytes += len(data)
        wire = b"%x\r\n%b\r\n" % (len(data), data) if framed else data
        for piece in pages.cuts(self.script.cut, wire):
            self.request.last_sent_s = time.monotonic()
            self.writer.write(piece)
            await self.writer.drain()
            if self.script.cut:
                await asyncio.sleep(self.script.cut_pause_s)

    async def _close_stream(self) -> bool:
        if self.script.done:
            await self._event("[DONE]")
        self.writer.write(b"0\r\n\r\n")
        await self.writer.drain()
        self.engine.counters.finished += 1
        return not self.script.close_after_stream

    async def _whole(self, status: int, body: bytes) -> bool:
        self.writer.write(self._head(status, "application/json", f"content-length: {len(body)}"))
        await self._send(body, framed=False)
        self.engine.counters.finished += status == 200
        return True

    def _end_rudely(self) -> None:
        if self.request.tokens == self.script.reset_after:
            link: socket.socket = self.writer.get_extra_info("socket")
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
