"""Asks engines for pages: bounded in time and size, no redirects, off the hot path."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import httpx

from gateway.engines.base import PAGE_LIMIT, Engine, Page
from gateway.engines.detect import DETECT_PATHS, recognise

TIMEOUT_S = 2.0


def client() -> httpx.AsyncClient:
    """Make the client for pages of engines.

    Engines close idle connections after 5 s and llama.cpp without saying so, so none is kept.
    Proxies from the environment are not for engines.
    """
    return httpx.AsyncClient(
        follow_redirects=False,
        trust_env=False,
        timeout=TIMEOUT_S,
        limits=httpx.Limits(max_keepalive_connections=0),
    )


async def page(
    http: httpx.AsyncClient, url: str, path: str, timeout_s: float = TIMEOUT_S, *, api_key: str = ""
) -> Page:
    """Return one page, whatever goes wrong on the way; `api_key` is the engine's own."""
    try:
        async with asyncio.timeout(timeout_s):
            return await _read(http, url.rstrip("/") + path, bearer(api_key))
    except (TimeoutError, httpx.TimeoutException):
        return Page(status=0, timed_out=True)
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        return Page(status=0)


def bearer(api_key: str) -> dict[str, str]:
    """Return the header that shows an engine its own key."""
    return {"authorization": f"Bearer {api_key}"} if api_key else {}


async def _read(http: httpx.AsyncClient, url: str, headers: dict[str, str]) -> Page:
    async with http.stream("GET", url, headers=headers) as answer:
        body = bytearray()
        async for chunk in answer.aiter_bytes():
            body += chunk
            if len(body) > PAGE_LIMIT:
                break
        return Page(
            status=answer.status_code,
            body=bytes(body[:PAGE_LIMIT]),
            headers={name.lower(): value for name, value in answer.headers.items()},
            cut=len(body) > PAGE_LIMIT,
        )


async def pages(
    http: httpx.AsyncClient,
    url: str,
    paths: Iterable[str],
    timeout_s: float = TIMEOUT_S,
    *,
    api_key: str = "",
) -> dict[str, Page]:
    """Return several pages, asked at the same time."""
    wanted = tuple(paths)
    asked = [page(http, url, path, timeout_s, api_key=api_key) for path in wanted]
    answers = await asyncio.gather(*asked)
    return dict(zip(wanted, answers, strict=True))


async def detect(
    http: httpx.AsyncClient, url: str, timeout_s: float = 5.0, *, api_key: str = ""
) -> tuple[Engine, dict[str, Page]]:
    """Ask an engine for everything it may reveal and return its adapter with the pages."""
    found = await pages(http, url, DETECT_PATHS, timeout_s, api_key=api_key)
    return recognise(found), found
