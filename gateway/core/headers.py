"""Which headers pass in which direction: lists of what may, nothing else does.

Rule 1: hop-by-hop headers and those the Connection header names end at each hop.
Rule 2: a client's credentials and cookies never reach an engine, an engine's never a client.
Rule 3: no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

Headers = list[tuple[bytes, bytes]]

HEAD_LIMIT: Final = 64 * 1024  # bytes
HEADER_COUNT: Final = 128

_HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
# Headers by which a proxy tells whom it speaks for: set by us, never taken from a stranger.
FORWARDED = frozenset(
    (
        b"forwarded",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-port",
        b"x-forwarded-proto",
        b"x-forwarded-prefix",
        b"x-forwarded-server",
        b"x-real-ip",
    )
)
TO_ENGINE: Final = frozenset(
    (b"traceparent", b"tracestate", b"anthropic-version", b"anthropic-beta", b"accept-language")
)
# Content-Encoding is not among them: what an engine compresses is decoded on the way.
_FROM_ENGINE: Final = frozenset((b"content-type", b"content-language", b"openai-processing-ms"))


def first(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """Return the first value of a header (names are lower case)."""
    for key, value in headers:
        if key == name:
            return value
    return None


def to_engine(headers: Headers) -> Headers:
    """Return the client's headers that an engine may see."""
    return [(name, value) for name, value in headers if name in TO_ENGINE]


def from_engine(headers: Headers) -> Headers:
    """Return the engine's headers that a client may see."""
    return [(name, value) for name, value in headers if name in _FROM_ENGINE]


def end_to_end(headers: Headers) -> Headers:
    """Drop what belongs to one hop only."""
    named = {
        token.strip().lower()
        for name, value in headers
        if name == b"connection"
        for token in value.split(b",")
    }
    return [
        (name, value) for name, value in headers if name not in _HOP_BY_HOP and name not in named
    ]


def client_address(headers: Headers, peer: str, trusted: frozenset[str]) -> str:
    """Return who really calls: the peer, or whom a trusted proxy says it speaks for.

    The chain is read from its right end, as far as the hops are ours; "*" trusts every peer.
    """
    if peer not in trusted and "*" not in trusted:
        return peer
    chain = [
        hop.strip().decode("latin-1")
        for name, value in headers
        if name == b"x-forwarded-for"
        for hop in value.split(b",")
    ]
    for hop in reversed(chain):
        if hop not in trusted:
            return hop
    return chain[0] if chain else peer


def to_portal(headers: Headers, *, peer: str, scheme: str, trusted: frozenset[str]) -> Headers:
    """Return the headers for the portal: the client's own, with our word on where it came from."""
    from_proxy = peer in trusted or "*" in trusted
    proto = first(headers, b"x-forwarded-proto") if from_proxy else None
    host = first(headers, b"x-forwarded-host") if from_proxy else None
    kept = [
        (name, value)
        for name, value in end_to_end(headers)
        if name not in FORWARDED and name != b"expect"
    ]
    address = client_address(headers, peer, trusted).encode("latin-1", "replace")
    kept.append((b"x-forwarded-for", address))
    kept.append((b"x-forwarded-proto", proto if proto in (b"http", b"https") else scheme.encode()))
    kept.append((b"x-forwarded-host", host or first(headers, b"host") or b""))
    return kept


def is_ambiguous(target: bytes, headers: Headers, version: str) -> bool:
    """Is it a head that another party might read differently, or that is too long?"""
    hosts = lengths = size = 0
    coding = None
    for name, value in headers:
        size += len(name) + len(value)
        if name == b"host":
            hosts += 1
        elif name == b"content-length":
            lengths += 1
        elif name == b"transfer-encoding":
            if coding is not None or value.lower() != b"chunked":
                return True
            coding = value
    return (
        hosts > 1
        or (version != "1.0" and hosts == 0)
        or lengths > 1
        or (coding is not None and lengths > 0)
        or not target.startswith(b"/")
        or size > HEAD_LIMIT
        or len(headers) > HEADER_COUNT
    )
