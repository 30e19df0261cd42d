"""Removes what nobody needs any more: expired files, and strays of uploads that broke off."""

from __future__ import annotations

import datetime as dt

from django.core.files.storage import default_storage
from django.utils import timezone

from portal.files import services, shelf
from portal.files.models import StoredFile
from portal.openai_api.errors import BadRequest

STRAY_AFTER = dt.timedelta(hours=6)


def delete_expired() -> int:
    """Delete files past their end, unless a running batch reads them; return how many."""
    deleted = 0
    for row in StoredFile.objects.filter(expires_at__lte=timezone.now())[:1000]:
        try:
            services.delete(row)
        except BadRequest:
            continue  # it goes with the next round after the batch has ended
        deleted += 1
    return deleted


def sweep_strays() -> int:
    """Delete contents without a row, once they are too old to be an upload in progress."""
    before = timezone.now() - STRAY_AFTER
    removed = 0
    if not shelf.is_local():
        return removed
    folders, _ = default_storage.listdir("")
    for folder in folders:
        if folder != shelf.INCOMING and len(folder) != shelf.FOLDER_LENGTH:
            continue
        _, names = default_storage.listdir(folder)
        paths = {f"{folder}/{name}" for name in names}
        known = set(StoredFile.objects.filter(name__in=paths).values_list("name", flat=True))
        for path in paths - known:
            if default_storage.get_modified_time(path) < before:
                shelf.remove(path)
                removed += 1
    return removed
