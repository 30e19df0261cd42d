"""/v1/batches: create, retrieve, list, cancel; and our own: estimate, output so far, retry."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from django.http.response import HttpResponseBase
from rest_framework.request import Request
from rest_framework.response import Response

from portal.batches import estimate, partial, services, submission, webhooks
from portal.batches.models import BatchJob
from portal.batches.shapes import batch_object, estimate_object
from portal.openai_api.errors import BadRequest, NotFound
from portal.openai_api.paging import page
from portal.openai_api.views import OpenAIView
from quotas.models import ApiKey, User

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
        if wanted.dry_run:
            return Response(_estimated(wanted, key))
        job = None
        if not given and request.headers.get("x-stainless-retry-count", "0") not in {"", "0"}:
            job = services.repeated(key=key, request=wanted)
        if job is None:
            job = services.submit(key=key, request=wanted, idempotency_key=given)
        return Response(batch_object(job))


def _estimated(wanted: submission.Submission, key: ApiKey) -> dict[str, Any]:
    file = submission.find_input(key.owner_id, wanted.input_file_id)
    refusals = submission.check(file, wanted.endpoint, key)
    return estimate_object(estimate.of_file(file, key, wanted.window), refusals)


class EstimateView(OpenAIView):
    """What a batch would be, without making it: the same body as create."""

    def post(self, request: Request) -> Response:
        """Estimate."""
        return Response(_estimated(submission.read(request.data), self.caller.key))


class WebhookSecret(OpenAIView):
    """By what the holder of this key knows our messages."""

    def get(self, request: Request) -> Response:
        """Return the secret; a new key has another."""
        return Response(
            {"object": "webhook.secret", "secret": webhooks.secret_of(self.caller.key),
             "hosts": settings.WEBHOOK_HOSTS}
        )  # fmt: skip


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


class Output(OpenAIView):
    """The results there are so far, also while the batch runs."""

    def get(self, request: Request, batch_id: str) -> HttpResponseBase:
        """Send the output lines, or with ?errors=1 the error lines."""
        job = find(self.caller.user, batch_id)
        return partial.download(job, errors=request.query_params.get("errors") == "1")


class Retry(OpenAIView):
    """The lines that did not end well, as a new batch."""

    def post(self, request: Request, batch_id: str) -> Response:
        """Submit them again under the key that asks."""
        job = find(self.caller.user, batch_id)
        return Response(batch_object(services.run_failed_again(job=job, key=self.caller.key)))
