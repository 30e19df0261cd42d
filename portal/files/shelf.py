"""Where file contents lie: Django's storage, entered whole or not at all.

A draft grows under a temporary name beside its place; `keep` makes it durable and moves it there
in one step. A storage without local paths (S3) is given the finished draft, which it takes whole.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import tempfile
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO

from asgiref.sync import sync_to_async
from django.core.files.base import File
from django.core.files.storage import FileSystemStorage, default_storage

from portal.failpoints import failpoint
from portal.openai_api.errors import OutOfSpace

CHUNK = 256 * 1024
INCOMING = "incoming"  # drafts of a local storage; swept when old
FOLDER_LENGTH = 2
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def is_local() -> bool:
    """Tell whether stored files have a path on this machine."""
    return isinstance(default_storage, FileSystemStorage)


def place(public_id: str) -> str:
    """Return the storage name of a file; two letters of folder keep folders small."""
    return f"{public_id[-FOLDER_LENGTH:]}/{public_id}.jsonl"


class Draft:
    """A file being written. Leaving the block without `keep` leaves nothing behind."""

    def __init__(self) -> None:
        folder = Path(default_storage.path(INCOMING)) if is_local() else tempfile.gettempdir()
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103  (folder may be either type)
        self.path = Path(folder) / f"{uuid.uuid4().hex}.part"
        self.size = 0
        self.kept = False
        self._hash = hashlib.sha256()
        self._file: IO[bytes] = self.path.open("xb")

    def __enter__(self) -> Draft:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.discard()

    def write(self, chunk: bytes) -> None:
        """Append; a full disk is 507 and nothing is kept."""
        try:
            self._file.write(chunk)
        except OSError as full:
            raise _no_room(full) from full
        self._hash.update(chunk)
        self.size += len(chunk)

    @property
    def sha256(self) -> str:
        """Return the hash of what was written so far."""
        return self._hash.hexdigest()

    def keep(self, name: str) -> None:
        """Put the finished file in its place, durably; an older one of this name is replaced."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            if is_local():
                self._move(Path(default_storage.path(name)))
            else:
                with contextlib.suppress(FileNotFoundError):
                    default_storage.delete(name)
                with self.path.open("rb") as whole:
                    default_storage.save(name, File(whole))
        except OSError as full:
            raise _no_room(full) from full
        self.kept = True
        failpoint("file_in_place")

    def _move(self, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        failpoint("file_before_rename")
        self.path.replace(target)
        folder = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def discard(self) -> None:
        """Close and remove the temporary file, if it is still there."""
        with contextlib.suppress(OSError):
            self._file.close()
        self.path.unlink(missing_ok=True)


def _no_room(error: OSError) -> Exception:
    if error.errno in NO_ROOM:
        return OutOfSpace("No room is left on this server for the file; nothing of it was kept.")
    return error


def remove(name: str) -> None:
    """Delete the contents; it is no error when they are gone already."""
    with contextlib.suppress(FileNotFoundError):
        default_storage.delete(name)


def chunks(name: str) -> Iterator[bytes]:
    """Read a whole file piece by piece."""
    with default_storage.open(name, "rb") as file:
        while piece := file.read(CHUNK):
            yield piece


async def achunks(name: str) -> AsyncIterator[bytes]:
    """Read a whole file piece by piece without holding up the event loop.

    Django would read a plain iterator to its end before it sends the first byte.
    """
    file = await sync_to_async(default_storage.open)(name, "rb")
    try:
        while piece := await sync_to_async(file.read)(CHUNK):
            yield piece
    finally:
        await sync_to_async(file.close)()


class LineSource:
    """Reads single lines by their place; a storage without paths is fetched once."""

    def __init__(self, name: str) -> None:
        if is_local():
            self._file: IO[bytes] = Path(default_storage.path(name)).open("rb")  # noqa: SIM115
            return
        self._file = tempfile.TemporaryFile()  # noqa: SIM115  (both are closed by `close`)
        for piece in chunks(name):
            self._file.write(piece)
        self._file.flush()

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes of one line."""
        return os.pread(self._file.fileno(), length, offset)

    def close(self) -> None:
        """Give the file back."""
        self._file.close()
