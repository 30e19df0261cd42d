"""Files may lie in a storage without paths: the same rules hold there."""

from __future__ import annotations

import datetime as dt
import io
import os
import time
from pathlib import Path
from typing import Any

import pytest
from django.core.files.storage import default_storage
from django.utils import timezone

from portal.files import cleaning, shelf
from portal.files.models import StoredFile
from tests.batches.helpers import ApiClient, lines
from tests.batches.test_files_api import content_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def elsewhere(settings: Any) -> None:
    """Keep files in a storage that has no paths, as S3 has none."""
    settings.STORAGES = settings.STORAGES | {
        "default": {"BACKEND": "django.core.files.storage.InMemoryStorage"}
    }


@pytest.mark.usefixtures("elsewhere")
def test_a_storage_without_paths_holds_files_as_well(api: ApiClient) -> None:
    """Upload, download, single lines and deletion work through the storage alone."""
    stored = api.upload(lines(3)).json()
    row = StoredFile.objects.get()

    assert not shelf.is_local()
    assert content_of(api.get(f"/v1/files/{stored['id']}/content")) == lines(3)
    source = shelf.LineSource(row.name)
    second = row.line_rows.get(line_no=2)
    assert source.read(second.offset, second.length) == lines(3).splitlines()[1]
    source.close()
    api.delete(f"/v1/files/{stored['id']}")
    assert not default_storage.exists(row.name)


def test_a_full_disk_keeps_nothing_and_says_507(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch, files_folder: Path
) -> None:
    """No half file is ever taken for a whole one."""

    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(28, os.strerror(28))

    real = shelf.Draft.__init__

    def filling(self: shelf.Draft) -> None:
        real(self)
        self._file.close()
        self._file = Full()

    monkeypatch.setattr(shelf.Draft, "__init__", filling)

    answer = api.upload(lines(3))

    assert (answer.status_code, answer.json()["error"]["code"]) == (507, "storage_full")
    assert not StoredFile.objects.exists()
    assert not [path for path in files_folder.rglob("*") if path.is_file()]


def test_expired_files_are_not_there_and_then_gone(api: ApiClient, files_folder: Path) -> None:
    """Expiry counts at once; the cleaner frees the room."""
    stored = api.upload(lines(1)).json()
    StoredFile.objects.update(expires_at=timezone.now() - dt.timedelta(seconds=1))

    assert api.get(f"/v1/files/{stored['id']}").status_code == 404
    assert cleaning.delete_expired() == 1
    assert not [path for path in files_folder.rglob("*") if path.is_file()]


def test_strays_go_and_whole_files_stay(api: ApiClient, files_folder: Path) -> None:
    """Contents without a row are removed once they are too old to be an upload in progress."""
    api.upload(lines(1))
    old = time.time() - 7 * 3600
    strays = [files_folder / "incoming" / "x.part", files_folder / "ab" / "file-lost.jsonl"]
    for stray in strays:
        stray.parent.mkdir(exist_ok=True)
        stray.write_text("x")
        os.utime(stray, (old, old))
    (files_folder / "incoming" / "fresh.part").write_text("x")
    kept = files_folder / StoredFile.objects.get().name
    os.utime(kept, (old, old))

    assert cleaning.sweep_strays() == 2
    assert kept.exists()
    assert (files_folder / "incoming" / "fresh.part").exists()


def test_a_file_says_how_long_it_is_kept(api: ApiClient) -> None:
    """`expires_after` comes as bracketed form fields and is bounded."""
    given = {"expires_after[anchor]": "created_at", "expires_after[seconds]": "7200"}
    stored = api.upload(lines(1), **given).json()

    assert stored["expires_at"] - stored["created_at"] == 7200
    for wrong in ("59", "99999999", "x", ""):
        answer = api.upload(lines(1), **{**given, "expires_after[seconds]": wrong})
        assert answer.status_code == 400
