"""A small server of a test, answering from a thread."""

from __future__ import annotations

from socketserver import BaseServer
from threading import Thread


def serve(server: BaseServer) -> Thread:
    """Let it answer until its `shutdown`, which the usual poll would hold up for half a second."""
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    return thread
