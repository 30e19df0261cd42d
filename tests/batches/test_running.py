"""Rules of the runner: what happens to lines between the table and the gateway."""

from __future__ import annotations

import base64
import datetime as dt
import json
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from portal.batches import ending, services
from portal.batches.models import BatchItem, BatchJob
from portal.batches.runner.body import request_body
from quotas.models import User
from quotas.services import keys
from tests.batches.helpers import ApiClient, jsonl, line
from tests.batches.stage import all_ended, job_of, outcome, run_room, write_all_results
from tests.rig.engine_script import Script
from tests.rig.witness import Witness

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module")
def running_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Witness]:
    """Yield one witness engine for the module."""
    witness = Witness(tmp_path_factory.mktemp("engine"), Script(slots=8, tokens=4)).start()
    yield witness
    witness.stop()


@pytest.fixture
def engine(running_engine: Witness, settings: Any) -> Witness:
    """Return the engine, behaving well; the runner takes it for the gateway."""
    running_engine.reset()
    settings.GATEWAY_URL = running_engine.url
    return running_engine


def marked(*marks: str, **body: Any) -> bytes:
    """Return lines whose custom_id is also their mark in the engine's books."""
    return jsonl(
        line(m, messages=[{"role": "user", "content": f"[mark:{m}] hi"}], **body) for m in marks
    )


def names(kind: str, count: int) -> list[str]:
    """Return so many different marks."""
    return [f"{kind}{number:03}" for number in range(count)]


def times_seen(engine: Witness, mark: str) -> int:
    """Return how often the engine was asked for this line."""
    return sum(record.mark == mark for record in engine.records())


def test_each_line_ends_once_in_one_of_the_two_files(api: ApiClient, engine: Witness) -> None:
    """Good lines are in the output file, refused ones in the error file, none twice."""
    engine.tell(rules={"refused": {"fail_status": 400, "fail_body": '{"error":{"code":"x"}}'}})
    batch_id = api.submit(marked(*names("good", 20), "refused-a"))

    run_room()

    batch, output, errors = outcome(api, batch_id)
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 21, "completed": 20, "failed": 1}
    assert batch["usage"]["output_tokens"] == 80
    assert [row["custom_id"] for row in output] == names("good", 20)
    assert [(row["custom_id"], row["response"]["status_code"]) for row in errors] == [
        ("refused-a", 400)
    ]
    assert times_seen(engine, "refused-a") == 1


def test_when_all_lines_fail_the_batch_completes_without_an_output_file(
    api: ApiClient, engine: Witness
) -> None:
    """Status completed, no output file, an error file with every line."""
    engine.tell(rules={"allbad": {"fail_status": 422}})
    batch_id = api.submit(marked("allbad1", "allbad2"))

    run_room()

    batch, output, errors = outcome(api, batch_id)
    assert (batch["status"], batch["output_file_id"], output) == ("completed", None, [])
    assert len(errors) == 2


def test_a_line_that_breaks_three_times_fails_and_the_rest_goes_on(
    api: ApiClient, engine: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poison line costs three attempts and nobody else's."""
    monkeypatch.setattr("portal.batches.runner.room.BACKOFF_S", (0.0,))
    engine.tell(rules={"poison": {"reset_after": 0}})
    batch_id = api.submit(marked("poison", *names("beside", 6)))

    run_room()

    batch, output, errors = outcome(api, batch_id)
    assert batch["request_counts"] == {"total": 7, "completed": 6, "failed": 1}
    assert [row["custom_id"] for row in output] == names("beside", 6)
    assert errors[0]["response"] is None
    assert errors[0]["error"]["code"] == "connection_lost"
    assert times_seen(engine, "poison") == 3


def test_a_line_its_runner_cannot_work_on_fails_and_the_rest_goes_on(
    api: ApiClient, engine: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory that runs out over one line is that line's, three times, and never leaves it open."""

    def body_of(raw: bytes) -> bytes:
        if b"vast" in raw:
            raise MemoryError
        return request_body(raw)

    monkeypatch.setattr("portal.batches.runner.room.BACKOFF_S", (0.0,))
    monkeypatch.setattr("portal.batches.runner.room.request_body", body_of)
    batch_id = api.submit(marked("vast", *names("small", 6)))

    run_room()

    batch, output, errors = outcome(api, batch_id)
    assert batch["request_counts"] == {"total": 7, "completed": 6, "failed": 1}
    assert [row["custom_id"] for row in output] == names("small", 6)
    assert "MemoryError" in errors[0]["error"]["message"]


@pytest.mark.parametrize("status", [429, 503])
def test_not_now_costs_a_line_nothing(
    api: ApiClient, engine: Witness, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often the answer is 429 or 503, the line waits and then runs."""
    monkeypatch.setattr("portal.batches.runner.verdict.DEFAULT_WAIT_S", 0.1)
    monkeypatch.setattr("portal.batches.runner.verdict.SHORTEST_WAIT_S", 0.1)
    body = '{"error":{"code":"no_replica","message":"No engine is up."}}'
    mark = f"later{status}"
    engine.tell(rules={mark: {"fail_status": status, "fail_first": 3, "fail_body": body}})
    batch_id = api.submit(marked(mark))
    seen: set[str] = set()

    def ended() -> bool:
        seen.add(job_of(batch_id).wait_code)
        return all_ended()

    run_room(ended)

    assert outcome(api, batch_id)[0]["request_counts"]["completed"] == 1
    assert times_seen(engine, mark) == 4
    assert "no_replica" in seen
    assert BatchItem.objects.get().failures == 0


def test_a_revoked_key_pauses_the_job_and_another_key_lets_it_go_on(
    api: ApiClient, engine: Witness, alice: User
) -> None:
    """Nothing fails with a revocation; the reason is shown, and the owner decides."""
    batch_id = api.submit(marked(*names("paused", 3)))
    keys.revoke(key=api.key)
    run_room(lambda: job_of(batch_id).wait_code == "key_unusable")
    paused = job_of(batch_id)
    assert (paused.state, paused.completed + paused.failed) == ("queued", 0)
    assert "revoked" in paused.wait_message

    other = keys.issue(owner=alice, name="other", service_class="interactive")
    services.move_to_key(job=paused, key=other.key)
    run_room()

    assert job_of(batch_id).completed == 3


def test_a_closed_window_keeps_what_is_done_and_expires_the_rest(
    api: ApiClient, engine: Witness
) -> None:
    """Finished lines stay in the output, the others are batch_expired in the error file."""
    engine.tell(slots=1, first_delay_s=0.15)
    batch_id = api.submit(marked(*names("window", 12)))

    def some_done() -> bool:
        return job_of(batch_id).completed >= 2

    run_room(some_done)
    BatchJob.objects.update(expires_at=timezone.now() - dt.timedelta(seconds=1))
    ending.close_windows()
    write_all_results()

    batch, output, errors = outcome(api, batch_id)
    assert batch["status"] == "expired"
    assert batch["expired_at"]
    assert 2 <= len(output) < 12
    assert len(output) + len(errors) == 12
    assert {row["error"]["code"] for row in errors} == {"batch_expired"}
    assert all(row["response"] is None for row in errors)


def test_a_cancelled_batch_keeps_what_is_done(api: ApiClient, engine: Witness) -> None:
    """Lines in flight may still end; those never sent are batch_cancelled; nothing runs after."""
    engine.tell(slots=1, first_delay_s=0.15)
    batch_id = api.submit(marked(*names("cancel", 12)))
    state = {"cancelled": False}

    def cancelled_and_ended() -> bool:
        if not state["cancelled"] and job_of(batch_id).completed >= 2:
            api.post(f"/v1/batches/{batch_id}/cancel")
            state["cancelled"] = True
        return all_ended()

    run_room(cancelled_and_ended)

    batch, output, errors = outcome(api, batch_id)
    assert batch["status"] == "cancelled"
    assert len(output) + len(errors) == 12
    assert {row["error"]["code"] for row in errors} == {"batch_cancelled"}
    assert batch["request_counts"]["completed"] == len(output)


def test_a_small_job_is_not_held_behind_a_large_one_of_the_same_owner(
    api: ApiClient, engine: Witness
) -> None:
    """Jobs of one person take turns line by line."""
    engine.tell(slots=2, first_delay_s=0.05)
    api.submit(marked(*names("large", 120)))
    small = api.submit(marked(*names("small", 5)))

    run_room(lambda: job_of(small).state == "completed")

    large = BatchJob.objects.exclude(public_id=small).get()
    assert large.completed <= 40


def test_two_owners_share_the_gateway(api: ApiClient, stranger: ApiClient, engine: Witness) -> None:
    """A short job ends while another person's long one runs."""
    engine.tell(slots=4, first_delay_s=0.05)
    api.submit(marked(*names("many", 200)))
    small = stranger.submit(marked(*names("few", 5)))

    run_room(lambda: job_of(small).state == "completed")

    assert BatchJob.objects.exclude(public_id=small).get().completed <= 60


def test_results_are_readable_while_the_batch_runs(api: ApiClient, engine: Witness) -> None:
    """The partial route has the lines that are done so far, and only those."""
    from tests.batches.test_files_api import content_of

    engine.tell(slots=1, first_delay_s=0.1)
    batch_id = api.submit(marked(*names("partial", 10)))

    run_room(lambda: job_of(batch_id).completed >= 3)

    so_far = content_of(api.get(f"/v1/batches/{batch_id}/output")).splitlines()
    assert len(so_far) == job_of(batch_id).completed


def test_failed_lines_run_again_as_a_new_batch(api: ApiClient, engine: Witness) -> None:
    """Only what did not end well is sent again, and the new batch names the old one."""
    engine.tell(rules={"again": {"fail_status": 400, "fail_first": 2}})
    batch_id = api.submit(marked("again1", "fine1", "again2"))
    run_room()

    new = api.post(f"/v1/batches/{batch_id}/retry").json()
    run_room()

    assert new["retry_of"] == batch_id
    _, output, errors = outcome(api, new["id"])
    assert [row["custom_id"] for row in output] == ["again1", "again2"]
    assert errors == []


def test_an_answer_keeps_every_character(api: ApiClient, engine: Witness) -> None:
    """Text beyond ASCII, escapes and NUL in an answer are stored as they came."""
    text = 'emoji 😀 \\u0000 \\ud83d\\ude00 "quoted" ünïcödé'
    answer = ('{"choices":[{"message":{"content":"' + text.replace('"', '\\"') + '"}}]}').encode()
    engine.tell(answer_b64=base64.b64encode(answer).decode(), answer_type="application/json")
    batch_id = api.submit(marked("text1"))

    run_room()

    _, output, _ = outcome(api, batch_id)
    content = output[0]["response"]["body"]["choices"][0]["message"]["content"]
    assert content == 'emoji 😀 \x00 😀 "quoted" ünïcödé'


def test_a_huge_error_of_one_line_is_shown_cut_and_kept_whole(
    alice: User, api: ApiClient, engine: Witness, client: Client
) -> None:
    """The page shows its head and how long it was; the error file has every byte."""
    message = "because " * 75_000
    body = json.dumps({"error": {"code": "x", "message": message}})
    engine.tell(rules={"huge": {"fail_status": 400, "fail_body": body}})
    batch_id = api.submit(marked("huge"))

    run_room(all_ended)
    write_all_results()
    client.force_login(alice)
    page = client.get(f"/batches/{batch_id}/").content.decode()

    assert "because because" in page
    assert "cut here, 600,000 characters in all" in page
    assert len(page) < 60_000
    _, _, errors = outcome(api, batch_id)
    assert errors[0]["response"]["body"]["error"]["message"] == message


def test_the_page_shows_how_the_results_begin(
    alice: User, api: ApiClient, engine: Witness, client: Client
) -> None:
    """Before and after the file is written: five answers, escaped, a long one cut with its size."""
    content = "<b>words</b> " * 100
    answer = json.dumps({"choices": [{"message": {"content": content}}]})
    engine.tell(answer_b64=base64.b64encode(answer.encode()).decode())
    batch_id = api.submit(marked(*names("shown", 7)))
    client.force_login(alice)

    run_room(lambda: job_of(batch_id).completed == 7)
    pages = [client.get(f"/batches/{batch_id}/").content.decode()]
    write_all_results()
    pages.append(client.get(f"/batches/{batch_id}/").content.decode())

    for page in pages:
        assert page.count("<code>shown") == 5
        assert page.count("cut here, 1,300 characters in all") == 5
        assert "<b>words" not in page
        assert "the first 5 of 7" in page


def test_huge_numbers_of_a_line_reach_the_engine_with_all_their_digits(
    api: ApiClient, engine: Witness
) -> None:
    """A body goes on byte for byte: nothing of it is read as a number and written again."""
    huge = b'"seed":123456789012345678901234567890, "temperature":1.10'
    raw = marked("digits").replace(b'"model"', huge + b', "model"')
    api.submit(raw)

    run_room()

    (sent,) = [record.body for record in engine.records() if record.mark == "digits"]
    assert huge.decode() in sent
