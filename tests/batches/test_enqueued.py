"""The limit on enqueued batch tokens."""

from __future__ import annotations

from threading import Barrier, Thread

import pytest
from django.db import connection

from portal.batches import enqueued, services, submission
from portal.batches.models import BatchJob
from portal.files.models import StoredFile
from portal.openai_api.errors import BadRequest
from quotas.models import Pool, User
from quotas.services import limits
from quotas.services.limits import Holder
from tests.batches.helpers import ENDPOINT, MODEL, ApiClient, lines


def limit(value: int, per: str, **holder: object) -> None:
    limits.set_limit(
        holder=Holder(**holder), service_class="batch", name=enqueued.NAME, value=value, per=per
    )


@pytest.mark.django_db
@pytest.mark.parametrize("per", ["person", "group"])
def test_a_batch_that_does_not_fit_is_refused_until_lines_have_ended(
    per: str, api: ApiClient, alice: User
) -> None:
    """Two files of a size, room for one: the second waits until half of the first is done."""
    first, second = (api.upload(lines(4)).json()["id"] for _ in range(2))
    size = StoredFile.objects.get(public_id=first).prompt_tokens
    limit(size + size // 2, per, **{"user": alice} if per == "person" else {"group": alice.group})

    assert api.create(first).status_code == 200
    refused = api.create(second)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "token_limit_exceeded")
    assert enqueued.of_person(alice) == size
    BatchJob.objects.update(completed=2)
    assert api.create(second).status_code == 200


@pytest.mark.django_db(transaction=True)
def test_submissions_at_one_instant_do_not_pass_it_together(redis_url: str, alice: User) -> None:
    """Four at once with room for one: one is stored."""
    Pool.objects.create(name=MODEL)
    api = ApiClient(alice)
    files = [api.upload(lines(4)).json()["id"] for _ in range(4)]
    limit(StoredFile.objects.get(public_id=files[0]).prompt_tokens, "person", user=alice)
    barrier, refused = Barrier(4), []

    def submit(file_id: str) -> None:
        wanted = {"input_file_id": file_id, "endpoint": ENDPOINT, "completion_window": "24h"}
        barrier.wait()
        try:
            services.submit(key=api.key, request=submission.read(wanted))
        except BadRequest as error:
            refused.append(error.code)
        finally:
            connection.close()

    threads = [Thread(target=submit, args=[file_id]) for file_id in files]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert refused == ["token_limit_exceeded"] * 3
    assert BatchJob.objects.count() == 1
