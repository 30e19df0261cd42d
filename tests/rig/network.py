"""Keeps tests on this machine: every connection that leaves it is refused and remembered."""

from __future__ import annotations

import ipaddress
import socket
import sys
from typing import Any

_refused: list[str] = []
_allowed: set[object] = set()
_blocked = False


class Refused(OSError):
    """A test tried to reach another machine."""


def _is_local(host: str) -> bool:
    if host in {"", "localhost"}:
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    # Audit hooks see every socket of this interpreter, whichever library opened it.
    if event != "socket.connect":
        return
    address = arguments[1]
    if isinstance(address, tuple) and not _is_local(str(address[0])):
        if address[0] in _allowed:
            return
        _refused.append(f"{address[0]}:{address[1]}")
        raise Refused(f"tests talk to this machine only, not to {address[0]}")


def block() -> None:
    """Refuse such connections from now on; an audit hook cannot be taken out again."""
    global _blocked
    if not _blocked:
        _blocked = True
        sys.addaudithook(_watch)


def allow(host: str) -> None:
    """Let tests reach one more host: an engine that somebody named for a run of its own."""
    _allowed.update(entry[4][0] for entry in socket.getaddrinfo(host, None))


def forget() -> None:
    """Start a new list."""
    _refused.clear()


def refused() -> list[str]:
    """Return the addresses refused since `forget`."""
    return list(_refused)


def free_port() -> int:
    """Return a port nobody listens on."""
    with socket.socket() as link:
        link.bind(("127.0.0.1", 0))
        port: int = link.getsockname()[1]
        return port
