"""The portal's ASGI application."""

from __future__ import annotations

import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
django.setup(set_prefix=False)

from portal.files.streaming import StreamingUploads  # noqa: E402  (needs the settings)

application = StreamingUploads()
