"""/v1/batches: create, retrieve, list, cancel; and our own: estimate, output so far, retry."""

from __future__ import annotations

from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response

from portal.batches import services, submission
from portal.batches.models import BatchJob
from portal.batches.shapes import batch_object
from portal.openai_api.errors import BadRequest, NotFound
from portal.openai_api.paging import page
from portal.openai_api.views import OpenAIView
from quotas.models import User

LIST_DEFAULT, LIST_MOST = 20, 100
IDEMPOTENCY_KEY_LENGTH = 255


def batches_of(owner: User) -> QuerySet[BatchJob]:
    """Return a person's own batches."""
    return BatchJob.objects.filter(owner=owner).select_related("retry_of", "input_file")


def find(owner: User, public_id: str) -> BatchJob:
    """Return one of the person's own batches; another's looks like none."""
    job = batches_of(owner).filter(public_id=public_id.replace("\x00", "")[:80]).first()
    if job is None:
        raise NotFound(f"No such batch: {public_id[:80]}", code="batch_not_found", param="batch_id")
    return job


class Batches(OpenAIView):
    """The collection."""

    def get(self, request: Request) -> Response:
        """List own batches."""
        rows = batches_of(self.caller.user)
        return Response(page(request, rows, batch_object, default=LIST_DEFAULT, most=LIST_MOST))

    def post(self, request: Request) -> Response:
        """Create a batch; the same request twice is one batch."""
        wanted = submission.read(request.data)
        given = request.headers.get("Idempotency-Key", "")
        if len(given) > IDEMPOTENCY_KEY_LENGTH:
            raise BadRequest("Idempotency-Key is too long.", param="Idempotency-Key")
        key = self.caller.key
        job = None
        if not given and request.headers.get("x-stainless-retry-count", "0") not in {"", "0"}:
            job = services.repeated(key=key, request=wanted)
        if job is None:
            job = services.submit(key=key, request=wanted, idempotency_key=given)
        return Response(batch_object(job))


class Batch(OpenAIView):
    """One batch."""

    def get(self, request: Request, batch_id: str) -> Response:
        """Return the Batch object."""
        return Response(batch_object(find(self.caller.user, batch_id)))


class Cancel(OpenAIView):
    """The end its owner asks for."""

    def post(self, request: Request, batch_id: str) -> Response:
        """Cancel; the body is empty or ignored."""
        job = services.cancel(job=find(self.caller.user, batch_id))
        return Response(batch_object(job))


class Retry(OpenAIView):
    """The lines that did not end well, as a new batch."""

    def post(self, request: Request, batch_id: str) -> Response:
        """Submit them again under the key that asks."""
        job = find(self.caller.user, batch_id)
        return Response(batch_object(services.run_failed_again(job=job, key=self.caller.key)))
