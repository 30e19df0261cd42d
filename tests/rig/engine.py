"""The witness engine: an OpenAI-compatible server that does as it is told and keeps exact books.

It shares no HTTP code with the product, so that a fault in a library cannot hide itself on both
sides. It runs as a process of its own (`python -m tests.rig.engine`), takes its behaviour from a
control socket, one JSON object a line, and appends what happens to a log that outlives its death:

    in     a request's last byte has arrived: mark, route, headers, body
    slot   it was given one of the engine's slots
    first  the first byte of the answer's body left
    end    the last byte left, or the caller did: outcome, tokens, hash of the body sent
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import hashlib
import json
import random
import re
import socket
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from tests.rig import engine_script as pages
from tests.rig.engine_answer import NO_KEY, Answer, Cut, Request
from tests.rig.engine_script import Counters, Script

MARK = re.compile(r"\[mark:([^\]]+)\]")
GENERATING = {"/v1/chat/completions", "/v1/completions", "/v1/embeddings"}
KEPT_BODY = 65_536


class Slots:
    """First come, first served, over a number that may change."""

    def __init__(self, counters: Counters) -> None:
        self.size = 0
        self._counters = counters
        self._queue: deque[asyncio.Future[None]] = deque()

    def full(self) -> bool:
        """Answer whether a newcomer would have to wait."""
        return self._counters.running >= self.size or bool(self._queue)

    def resize(self, size: int) -> None:
        """Change how many run at once."""
        self.size = size
        self._fill()

    async def take(self) -> None:
        """Wait for a slot."""
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        self._counters.waiting += 1
        self._fill()
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._queue:
                self._queue.remove(turn)
                self._counters.waiting -= 1
            else:
                self.give()
            raise

    def give(self) -> None:
        """Hand a slot back."""
        self._counters.running -= 1
        self._fill()

    def _fill(self) -> None:
        while self._queue and self._counters.running < self.size:
            turn = self._queue.popleft()
            self._counters.waiting -= 1
            self._counters.running += 1
            if not turn.done():
                turn.set_result(None)


class Engine:
    """The engine's state; one per process."""

    def __init__(self, script: Script, log: IO[str]) -> None:
        self.script = script
        self.counters = Counters()
        self.slots = Slots(self.counters)
        self.slots.resize(script.slots)
        self._log = log
        self._numbers = 0
        self._failed = 0
        self._dice = random.Random(7)

    def change(self, changes: dict[str, Any]) -> None:
        """Apply a message of the control socket."""
        self.script = dataclasses.replace(self.script, **changes)
        self.slots.resize(self.script.slots)
        self._failed = 0

    def note(self, event: str, request: Request, **facts: Any) -> None:
        """Append to the books; flushed at once, so a kill loses nothing."""
        line = {"t": time.monotonic(), "e": event, "n": request.number, **facts}
        self._log.write(json.dumps(line) + "\n")
        self._log.flush()

    def refuses(self, script: Script) -> bool:
        """Throw the dice for a scripted failure."""
        if not script.fail_status or self._failed == script.fail_first:
            return False
        if self._dice.random() >= script.fail_share:
            return False
        self._failed += 1
        return True

    async def connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the requests of one connection."""
        link: socket.socket = writer.get_extra_info("socket")
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ahead = b""  # the first byte of the next request, when it came early
        used = False
        try:
            while request := await self._read(reader, ahead, is_kept=used):
                if used and self._dice.random() < self.script.closes_on_reuse:
                    break
                used = True
                keep, ahead = await self._serve(request, reader, writer)
                if not keep:
                    break
        except (ConnectionError, asyncio.IncompleteReadError, Cut):
            pass
        finally:
            writer.close()

    async def _read(
        self, reader: asyncio.StreamReader, ahead: bytes, *, is_kept: bool
    ) -> Request | None:
        # As engines do: who has just connected may take its time.
        limit_s = self.script.idle_close_s or None if is_kept else None
        try:
            head = ahead + await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), limit_s)
        except (TimeoutError, asyncio.IncompleteReadError):
            return None
        first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = [(n.lower(), v.strip()) for n, _, v in (line.partition(":") for line in lines)]
        named = dict(headers)
        if "chunked" in named.get("transfer-encoding", "").lower():
            raw = await self._chunked(reader)
        else:
            raw = await reader.readexactly(int(named.get("content-length", "0")))
        self._numbers += 1
        return Request(self._numbers, method, path.partition("?")[0], headers, raw)

    async def _chunked(self, reader: asyncio.StreamReader) -> bytes:
        body = b""
        while size := int((await reader.readline()).split(b";")[0], 16):
            body += await reader.readexactly(size)
            await reader.readexactly(2)
        await reader.readline()
        return body

    async def _serve(
        self, request: Request, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[bool, bytes]:
        """Answer one request; say whether the connection goes on, and with which byte."""
        if request.path not in GENERATING:
            await self._page(request, writer)
            return True, b""
        with suppress(ValueError):
            found = json.loads(request.raw)
            request.body = found if isinstance(found, dict) else {}
        marks = MARK.findall(pages.prompt_text(request.body))
        request.mark = marks[-1] if marks else ""
        self.note(
            "in", request, mark=request.mark, path=request.path, headers=request.headers,
            body=request.raw[:KEPT_BODY].decode("utf-8", "replace"),
            sha256=hashlib.sha256(request.raw).hexdigest(),
        )  # fmt: skip
        script = self.script.for_mark(request.mark)
        work = asyncio.create_task(Answer(self, request, writer, script).give())
        caller = asyncio.create_task(reader.read(1))
        await asyncio.wait({work, caller}, return_when=asyncio.FIRST_COMPLETED)
        if caller.done() and not caller.exception() and caller.result():
            await asyncio.wait({work})  # an early next request is no hang-up
        return await self._settle(request, work, caller)

    async def _settle(
        self, request: Request, work: asyncio.Task[bool], caller: asyncio.Task[bytes]
    ) -> tuple[bool, bytes]:
        """Close the books on a request: it is answered, or its caller has gone."""
        outcome = "done" if work.done() else "aborted"
        work.cancel()
        caller.cancel()
        keep = False
        try:
            keep = await work
        except Cut:
            outcome = "cut"
            raise
        except (asyncio.CancelledError, ConnectionError):
            outcome = "aborted"
        finally:
            self.counters.aborted += outcome == "aborted"
            # A good answer has left with its last byte: on a busy loop this line comes later than
            # the next request of a caller that was quick.
            ended_s = request.last_sent_s if outcome == "done" else time.monotonic()
            self.note(
                "end", request, t=ended_s or time.monotonic(), outcome=outcome,
                tokens=request.tokens, sha256=request.sent.hexdigest(), bytes=request.sent_bytes,
            )  # fmt: skip
        with suppress(asyncio.CancelledError, ConnectionError):
            return keep, await caller
        return keep, b""

    async def _page(self, request: Request, writer: asyncio.StreamWriter) -> None:
        script, llama, path = self.script, self.script.kind == "llamacpp", request.path
        status, kind, body = 404, "application/json", b'{"detail":"Not Found"}'
        if not (pages.is_open(script, path) or request.shows(script.api_key)):
            status, body = 401, NO_KEY
        elif path == "/health":
            status, body = await self._health(llama)
        elif path == "/metrics" and script.metrics != "missing":
            if script.metrics == "hang":
                await asyncio.sleep(3600)
            status = 200
            kind, body = pages.metrics_page(script, self.counters)
        elif path == "/v1/models":
            status, body = 200, json.dumps(pages.models_page(script)).encode()
        elif path == "/version" and not llama:
            status, body = 200, b'{"version":"0.32.0"}'
        elif path == "/props" and llama:
            status, body = 200, json.dumps(pages.props_page(script)).encode()
        elif path == "/slots" and llama:
            status, body = 200, json.dumps(pages.slots_page(script, self.counters)).encode()
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {kind}\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()

    async def _health(self, llama: bool) -> tuple[int, bytes]:
        await asyncio.sleep(self.script.health_delay_s)
        match self.script.health:
            case "hang":
                await asyncio.sleep(3600)
            case "loading":
                return 503, b'{"error":{"code":503,"message":"Loading model"}}'
            case "error":
                return 500, b"engine core is dead"
        return 200, b'{"status":"ok"}' if llama else b""

    async def control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take changes of behaviour, one JSON object a line; answer with the counters."""
        with suppress(ConnectionError):
            while line := await reader.readline():
                self.change(json.loads(line))
                writer.write(json.dumps(dataclasses.asdict(self.counters)).encode() + b"\n")
                await writer.drain()
        writer.close()


async def main(port: int, control: Path, log: Path, script: Script) -> None:
    """Serve until killed; the control socket appears when everything is ready."""
    with log.open("a") as books:
        engine = Engine(script, books)
        server = await asyncio.start_server(
            engine.connection, "127.0.0.1", port, limit=16 * 2**20, backlog=1024
        )
        await asyncio.start_unix_server(engine.control, control, limit=64 * 2**20)
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--control", type=Path, required=True)
    parser.add_argument("--log", type=Path, required=True)
    given = parser.parse_args()
    told = json.loads(input())  # the first script comes on standard input: it may be long
    asyncio.run(main(given.port, given.control, given.log, Script(**told)))
