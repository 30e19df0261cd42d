"""Asks engines for pages while streams run: bounded in time and size, no redirects.

`engines/fetch.py` does the same for commands. A page costs it milliseconds in one go, and so long
every event of a gateway would wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from gateway.core.headers import Headers
from gateway.engines.base import PAGE_LIMIT, Page
from gateway.upstream import Call, Receiver, Target, Upstream, UpstreamError, target_at


class _Reply(Receiver):
    """Takes one page."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.call: Call | None = None
        self.over: asyncio.Future[Page] = loop.create_future()
        self._status = 0
        self._headers: Headers = []
        self._chunks: list[bytes] = []
        self._size = 0

    def head(self, status: int, headers: Headers) -> None:
        self._status, self._headers = status, headers

    def body(self, data: bytes) -> None:
        self._chunks.append(data)
        self._size += len(data)
        if self._size > PAGE_LIMIT and self.call is not None:
            self.call.close()

    def end(self) -> None:
        self._tell(self._page())

    def lost(self, error: UpstreamError) -> None:
        self._tell(self._page() if self._size > PAGE_LIMIT else Page(status=0))

    def turn(self) -> None:
        pass

    def _page(self) -> Page:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self._headers}
        body = b"".join(self._chunks)[:PAGE_LIMIT]
        return Page(self._status, body, headers, cut=self._size > PAGE_LIMIT)

    def _tell(self, page: Page) -> None:
        if not self.over.done():
            self.over.set_result(page)


async def page(upstream: Upstream, url: str, path: str, timeout_s: float, api_key: str) -> Page:
    """Return one page, whatever goes wrong on the way; `api_key` is the engine's own.

    Engines close idle connections after 5 s and llama.cpp without saying so, so none is kept.
    """
    try:
        target = target_at(url, reuse=False)
    except ValueError:
        return Page(status=0)
    reply = _Reply(upstream.loop)
    call = reply.call = upstream.send(target, _request(target, path, api_key), reply)
    try:
        async with asyncio.timeout(timeout_s):
            return await reply.over
    except TimeoutError:
        return Page(status=0, timed_out=True)
    finally:
        call.close()


def _request(target: Target, path: str, api_key: str) -> bytes:
    key = f"authorization: Bearer {api_key}\r\n" if api_key else ""
    return (
        f"GET {target.prefix}{path} HTTP/1.1\r\nhost: {target.authority}\r\naccept: */*\r\n"
        f"{key}connection: close\r\n\r\n"
    ).encode()


async def pages(
    upstream: Upstream, url: str, paths: Iterable[str], timeout_s: float, api_key: str
) -> dict[str, Page]:
    """Return several pages, asked at the same time."""
    wanted = tuple(paths)
    asked = [page(upstream, url, path, timeout_s, api_key) for path in wanted]
    return dict(zip(wanted, await asyncio.gather(*asked), strict=True))
