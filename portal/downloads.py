"""Files made while they are sent, in flat memory under ASGI and in tests alike."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse

LINES_A_PIECE = 500
TYPES = {"csv": "text/csv; charset=utf-8", "json": "application/json"}


def pieces(lines: Iterable[str]) -> Iterator[str]:
    """Join lines into pieces of some hundred."""
    rest = iter(lines)
    while piece := "".join(islice(rest, LINES_A_PIECE)):
        yield piece


async def _later(made: Iterator[str]) -> AsyncIterator[str]:
    """Make each piece in the request's own thread when the client has taken the one before."""
    following = sync_to_async(lambda: next(made, None))
    while (piece := await following()) is not None:
        yield piece


def answer(
    request: HttpRequest, name: str, kind: str, lines: Iterable[str]
) -> StreamingHttpResponse:
    """Return a download; `kind` is csv or json."""
    made = pieces(lines)
    content = _later(made) if isinstance(request, ASGIRequest) else made
    response = StreamingHttpResponse(content, content_type=TYPES[kind])
    response["Content-Disposition"] = f'attachment; filename="{name}.{kind}"'
    return response
