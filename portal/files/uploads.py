"""Takes the file part of a form as it arrives, without a copy in memory or in a second place."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import FileUploadHandler

from portal.files.services import Receipt
from portal.openai_api.errors import BadRequest


class StraightToShelf(FileUploadHandler):
    """Feeds the part named `file` into a receipt; a second file part is refused."""

    chunk_size = 256 * 1024

    def __init__(self, receipt: Receipt) -> None:
        super().__init__()
        self.receipt = receipt
        self.filename: str | None = None

    def new_file(self, *args: Any, **kwargs: Any) -> None:
        """Begin; called once for each file part."""
        super().new_file(*args, **kwargs)
        if self.filename is not None:
            raise BadRequest("Send one file at a time.", param="file")
        if self.field_name != "file":
            raise BadRequest("The file belongs in the form field `file`.", param="file")
        self.filename = self.file_name or "upload"

    def receive_data_chunk(self, raw_data: bytes, start: int) -> None:
        """Take the next bytes; None tells Django that nobody else needs them."""
        self.receipt.feed(raw_data)

    def file_complete(self, file_size: int) -> UploadedFile[Any]:
        """Return a stand-in, so that the form knows of the part."""
        return UploadedFile(file=BytesIO(), name=self.filename, size=file_size)
