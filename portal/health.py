"""Asks a running program for a sign of life, with the standard library alone.

`python -m portal.health gateway` (or `portal`) ends with status 0 when it answers; containers run
it every few seconds, so it must be cheap. The supervisor asks the same questions.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

TIMEOUT_S = 3.0
PORTAL_PATH = "/accounts/login/"  # answers only with its database at hand


class SocketConnection(HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self.path = path

    def connect(self) -> None:
        """Connect to the socket instead of to a host."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self.path)


def gateway_answers(host: str, port: int, path: str) -> bool:
    """Answer whether the gateway (or an engine) says 200."""
    return _is_ok(HTTPConnection(host, port, timeout=TIMEOUT_S), path, {})


def portal_answers(path: str, public_url: str) -> bool:
    """Answer whether the portal says 200 to a request as the gateway would pass it on."""
    headers = {"Host": urlsplit(public_url).netloc, "X-Forwarded-Proto": "https"}
    return _is_ok(SocketConnection(path), PORTAL_PATH, headers)


def reachable(host: str) -> str:
    """Return the address under which this machine reaches a program that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104


def main(argv: list[str]) -> int:
    """Ask one program; everything needed is in the environment."""
    env = os.environ
    host, port = env.get("HOST", "127.0.0.1"), int(env.get("PORT", "8000"))
    if argv == ["gateway"]:
        return int(not gateway_answers(reachable(host), port, "/healthz"))
    if argv == ["portal"]:
        url = env.get("PUBLIC_URL", f"http://{host}:{port}")
        return int(not portal_answers(env["PORTAL_SOCKET"], url))
    sys.stderr.write("usage: python -m portal.health gateway|portal\n")
    return 2


def _is_ok(link: HTTPConnection, path: str, headers: Mapping[str, str]) -> bool:
    try:
        link.request("GET", path, headers=dict(headers))
        return link.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        link.close()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
