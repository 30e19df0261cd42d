"""The gateway as `gateway.asgi:application`, for servers that import an application."""

from __future__ import annotations

from gateway import wiring
from gateway.app import App
from gateway.config import Config

application = App(lambda: wiring.services(Config.from_environment()))
