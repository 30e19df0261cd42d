"""/v1/files: create, list, retrieve, content, delete."""

from __future__ import annotations

from typing import cast
from urllib.parse import quote

from django.db.models import QuerySet
from django.http import QueryDict, StreamingHttpResponse
from django.utils import timezone
from rest_framework.parsers import FormParser, MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response

from portal.files import config, services, shelf
from portal.files.models import StoredFile
from portal.files.shapes import file_object
from portal.files.uploads import StraightToShelf
from portal.openai_api import connections
from portal.openai_api.errors import BadRequest, NotFound
from portal.openai_api.paging import page
from portal.openai_api.views import OpenAIView
from quotas.models import User

LIST_MOST = 10_000


def files_of(owner: User) -> QuerySet[StoredFile]:
    """Return what a person sees: own files that have not expired."""
    return StoredFile.objects.filter(services.unexpired(timezone.now()), owner=owner)


def find(owner: User, public_id: str) -> StoredFile:
    """Return one of the person's own files; another's looks like none."""
    row = files_of(owner).filter(public_id=public_id).first()
    if row is None:
        raise NotFound(f"No such file: {public_id[:80]}", code="file_not_found", param="file_id")
    return row


class Files(OpenAIView):
    """The collection."""

    parser_classes = [MultiPartParser, FormParser]

    def get(self, request: Request) -> Response:
        """List own files."""
        rows = files_of(self.caller.user)
        purpose = request.query_params.get("purpose", "")
        if purpose:
            rows = rows.filter(purpose=purpose.replace("\x00", "")[:40])
        return Response(page(request, rows, file_object, default=LIST_MOST, most=LIST_MOST))

    def post(self, request: Request) -> Response:
        """Receive a batch input; whole and correct, or not at all."""
        if not request.content_type.startswith("multipart/form-data"):
            raise BadRequest("Send the file as multipart/form-data.", param="file")
        # A chunked body tells no length; Django's parser only asks whether there is a body.
        request.META.setdefault("CONTENT_LENGTH", "1")
        # A slow upload must not hold one of the few connections to the database meanwhile.
        connections.give_back()
        with services.Receipt() as receipt:
            handler = StraightToShelf(receipt)
            request._request.upload_handlers = [handler]
            fields = cast("QueryDict", request.data)
            if handler.filename is None:
                raise BadRequest("No file in the form field `file`.", param="file")
            if fields.get("purpose") != "batch":
                raise BadRequest('purpose must be "batch".', param="purpose")
            row = receipt.accept(
                owner=self.caller.user,
                key=self.caller.key,
                filename=handler.filename,
                expires_after_s=_expiry(
                    fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
                ),
            )
        return Response(file_object(row))


def _expiry(anchor: str | None, seconds: str | None) -> int | None:
    """Read `expires_after`, which a form carries as two flat bracketed fields."""
    if anchor is None and seconds is None:
        return None
    if anchor != "created_at":
        raise BadRequest("expires_after.anchor must be created_at.", param="expires_after[anchor]")
    return checked_expiry(seconds, "expires_after[seconds]")


def checked_expiry(seconds: object, param: str) -> int:
    """Return the seconds as a number in OpenAI's bounds."""
    least, most = config.EXPIRY_LEAST_S, config.EXPIRY_MOST_S
    text = str(seconds)
    if not (text.isascii() and text.isdigit() and least <= int(text[:12]) <= most):
        raise BadRequest(f"expires_after.seconds must be from {least} to {most}.", param=param)
    return int(text)


class File(OpenAIView):
    """One file."""

    def get(self, request: Request, file_id: str) -> Response:
        """Return the File object."""
        return Response(file_object(find(self.caller.user, file_id)))

    def delete(self, request: Request, file_id: str) -> Response:
        """Delete it now."""
        row = find(self.caller.user, file_id)
        services.delete(row)
        return Response({"id": row.public_id, "object": "file", "deleted": True})


class Content(OpenAIView):
    """The bytes of one file."""

    def get(self, request: Request, file_id: str) -> StreamingHttpResponse:
        """Send the file, piece by piece."""
        return as_download(find(self.caller.user, file_id))


def as_download(row: StoredFile) -> StreamingHttpResponse:
    """Return the file as an attachment; browsers must never show it as a page."""
    connections.give_back()  # a slow reader holds none
    response = StreamingHttpResponse(
        shelf.achunks(row.name), content_type="application/octet-stream"
    )
    response["Content-Length"] = str(row.size)
    response["Content-Disposition"] = f"attachment; filename*=UTF-8''{quote(row.filename)}"
    return response
