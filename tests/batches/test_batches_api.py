"""Rules of /v1/batches, as a client meets them."""

from __future__ import annotations

import json

import pytest

from portal.batches.models import BatchJob
from tests.batches.helpers import ApiClient, lines

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_new_batch_has_every_field_the_client_reads(api: ApiClient) -> None:
    """A created batch waits as `validating`, with counts, times and our extras."""
    file_id = api.upload(lines(3)).json()["id"]

    batch = api.create(file_id, metadata={"who": "alice"}).json()

    assert (batch["object"], batch["status"], batch["input_file_id"]) == (
        "batch", "validating", file_id,
    )  # fmt: skip
    assert batch["request_counts"] == {"total": 3, "completed": 0, "failed": 0}
    assert batch["expires_at"] - batch["created_at"] == 86400
    assert batch["metadata"] == {"who": "alice"}
    assert batch["lines_waiting"] == 3


def test_the_same_idempotency_key_makes_one_batch(api: ApiClient) -> None:
    """A repeated create returns the first batch; with another body it is refused."""
    file_id = api.upload(lines(2)).json()["id"]
    first = api.create(file_id, headers={"idempotency-key": "k1"}).json()

    again = api.create(file_id, headers={"idempotency-key": "k1"}).json()
    other = api.create(file_id, headers={"idempotency-key": "k1"}, completion_window="1h")

    assert again["id"] == first["id"]
    assert other.status_code == 422
    assert BatchJob.objects.count() == 1


def test_a_retry_of_the_client_after_a_lost_answer_makes_no_second_batch(api: ApiClient) -> None:
    """The unmodified client sends no Idempotency-Key but says that it tries again."""
    file_id = api.upload(lines(2)).json()["id"]
    first = api.create(file_id, headers={"x-stainless-retry-count": "0"}).json()

    second = api.create(file_id, headers={"x-stainless-retry-count": "1"}).json()

    assert second["id"] == first["id"]


def test_lists_end(api: ApiClient) -> None:
    """Paging by `after` visits each batch once, and the last page says so."""
    file_id = api.upload(lines(1)).json()["id"]
    made = [api.create(file_id, metadata={"n": str(n)}).json()["id"] for n in range(5)]
    seen: list[str] = []
    more, after = True, ""
    while more:
        page = api.get(f"/v1/batches?limit=2{after}").json()
        seen += [row["id"] for row in page["data"]]
        more, after = page["has_more"], f"&after={page['last_id']}"

    assert seen == made[::-1]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"endpoint": "/v1/embeddings"}, "url_mismatch"),
        ({"completion_window": "30m"}, "invalid_completion_window"),
        ({"completion_window": "8d"}, "invalid_completion_window"),
        ({"input_file_id": "file-none"}, "file_not_found"),
        ({"metadata": {"a": 1}}, "invalid_request"),
    ],
)
def test_what_is_known_to_fail_is_refused_at_create(
    api: ApiClient, change: dict[str, object], code: str
) -> None:
    """Nothing that is known at create becomes a failed batch."""
    file_id = api.upload(lines(1)).json()["id"]

    answer = api.create(file_id, **change)

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    assert not BatchJob.objects.exists()


def test_an_unserved_model_is_refused_with_its_line(api: ApiClient) -> None:
    """The model is checked at create, and the line is named."""
    file_id = api.upload(b"\n" + lines(2, model="other")).json()["id"]

    answer = api.create(file_id)

    details = answer.json()["error"]["errors"]["data"]
    assert answer.status_code == 400
    assert [(d["line"], d["code"]) for d in details] == [(2, "model_not_found")]


def test_cancel_takes_an_empty_body_and_never_runs_the_rest(api: ApiClient) -> None:
    """Cancelling a waiting batch is `cancelling` at once; a second cancel is no error."""
    batch_id = api.submit(lines(3))

    first, second = (
        api.post(f"/v1/batches/{batch_id}/cancel"),
        api.post(f"/v1/batches/{batch_id}/cancel"),
    )

    assert first.json()["status"] == second.json()["status"] == "cancelling"
    assert first.json()["lines_waiting"] == 0


def test_a_dry_run_makes_nothing(api: ApiClient) -> None:
    """`dry_run` answers with an estimate and what would be refused."""
    file_id = api.upload(lines(4)).json()["id"]

    answer = api.create(file_id, dry_run=True).json()

    assert (answer["object"], answer["lines"], answer["known"]) == ("batch.estimate", 4, False)
    assert answer["would_be_refused"]["data"] == []
    assert not BatchJob.objects.exists()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("get", "/v1/files/{file}"),
        ("get", "/v1/files/{file}/content"),
        ("delete", "/v1/files/{file}"),
        ("get", "/v1/batches/{batch}"),
        ("get", "/v1/batches/{batch}/output"),
        ("post", "/v1/batches/{batch}/cancel"),
        ("post", "/v1/batches/{batch}/retry"),
        ("get", "/v1/batches?after={batch}"),
        ("get", "/v1/files?after={file}"),
    ],
)
def test_another_persons_objects_are_not_there(
    api: ApiClient, stranger: ApiClient, method: str, path: str
) -> None:
    """To anybody else a file or batch is 404 on every route, also as a cursor."""
    file_id = api.upload(lines(1)).json()["id"]
    batch_id = api.create(file_id).json()["id"]

    answer = getattr(stranger, method)(path.format(file=file_id, batch=batch_id))

    assert answer.status_code == 404
    assert set(answer.json()["error"]) >= {"message", "type", "param", "code"}


def test_another_persons_file_cannot_become_a_batch(api: ApiClient, stranger: ApiClient) -> None:
    """A file id alone opens nothing."""
    file_id = api.upload(lines(1)).json()["id"]

    assert stranger.create(file_id).json()["error"]["code"] == "file_not_found"
    assert stranger.get("/v1/files").json()["data"] == []
    assert stranger.get("/v1/batches").json()["data"] == []


def test_a_file_in_use_cannot_be_deleted(api: ApiClient) -> None:
    """A running batch keeps its input; afterwards it goes at once."""
    file_id = api.upload(lines(1)).json()["id"]
    batch_id = api.create(file_id).json()["id"]

    refused = api.delete(f"/v1/files/{file_id}")
    BatchJob.objects.filter(public_id=batch_id).update(
        state="failed", failed_at="2026-01-01T00:00Z"
    )
    deleted = api.delete(f"/v1/files/{file_id}")

    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "file_in_use")
    assert deleted.json() == {"id": file_id, "object": "file", "deleted": True}
    assert api.get(f"/v1/batches/{batch_id}").json()["input_file_id"] == file_id


@pytest.mark.parametrize("path", ["/v1/batches/", "/v1/files/", "/v1/files/x/content/"])
def test_a_slash_at_the_end_is_404_in_json_and_never_a_redirect(api: ApiClient, path: str) -> None:
    """A redirect would turn the client's POST into a GET without a word."""
    answer = api.client.post(path, json.dumps({}), "application/json")

    assert answer.status_code == 404
    assert answer.json()["error"]["code"]


def test_no_key_and_a_wrong_key_are_401(api: ApiClient) -> None:
    """Without a key that opens there is nothing, in the envelope."""
    api.client.defaults.pop("HTTP_AUTHORIZATION", None)
    for given in ("", "Bearer nonsense", f"Bearer {api.secret[:-1]}x", f"Basic {api.secret}"):
        answer = api.client.get("/v1/files", headers={"authorization": given})
        assert answer.status_code == 401
        assert answer.json()["error"]["type"] == "authentication_error"
