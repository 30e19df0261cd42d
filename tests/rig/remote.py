"""A storage without paths, as S3 is one: whoever has the network has the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.files.base import ContentFile, File
from django.core.files.storage import Storage
from django.utils.deconstruct import deconstructible


@deconstructible
class RemoteStorage(Storage):
    """Keeps whole files under names; nothing of it can be opened by a path."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def _place(self, name: str) -> Path:
        return self._folder / name.replace("/", "__")

    def _open(self, name: str, mode: str = "rb") -> File[Any]:
        return ContentFile(self._place(name).read_bytes(), name=name)

    def _save(self, name: str, content: File[Any]) -> str:
        self._folder.mkdir(exist_ok=True)
        with self._place(name).open("wb") as whole:
            whole.writelines(content.chunks())
        return name

    def delete(self, name: str) -> None:
        """Remove a file; it is no error when it is gone already."""
        self._place(name).unlink(missing_ok=True)

    def exists(self, name: str) -> bool:
        """Tell whether there is one of this name."""
        return self._place(name).exists()

    def size(self, name: str) -> int:
        """Return its length."""
        return self._place(name).stat().st_size
