"""Counting: every request leaves one true row, however it ends."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from typing import Any

import httpx
import pytest

from tests.rig.chat import Caller, chat
from tests.rig.engine_script import prompt_tokens
from tests.rig.product import Product
from tests.rig.witness import Witness

pytestmark = pytest.mark.fault


@pytest.mark.parametrize("leave_after", [1, 5, 40])
async def test_who_leaves_early_still_pays(
    product: Product, client: Caller, witness: Witness, keys: dict[str, str], leave_after: int
) -> None:
    """A client that hangs up is counted: at least what it was sent, at most what was made."""
    witness.tell(tokens=60, decode_tps=100, cached_tokens=2)
    mark = f"early/{leave_after}"
    body = chat("witness", mark)
    call = await client.ask(keys["dora"], body, leave_after=leave_after)
    (row,) = product.usage(mark)
    made = next(r for r in witness.records() if r.mark == mark).tokens
    assert (row["outcome"], row["estimated"]) == ("aborted", True)
    # The first event holds the role and no token.
    assert len(call.events) - 1 <= row["completion_tokens"] <= made + 1
    assert row["prompt_tokens"] > 0
    assert row["model"] == "witness"
    assert row["replica_id"]
    assert row["key_id"]


@pytest.mark.parametrize("leave_after", [401, 403])
async def test_who_leaves_at_the_very_end_pays_all_of_it(
    product: Product, client: Caller, witness: Witness, keys: dict[str, str], leave_after: int
) -> None:
    """After the last token, or after the count and before its end: the row is the engine's own."""
    witness.tell(tokens=400, cached_tokens=4)
    mark = f"late/{leave_after}"
    body = chat("witness", mark, stream_options={"include_usage": True})
    await client.ask(keys["dora"], body, leave_after=leave_after)
    (row,) = product.usage(mark)
    assert row["outcome"] in ("aborted", "served")
    assert 400 - 2 <= row["completion_tokens"] <= 400
    if not row["estimated"]:
        assert (row["completion_tokens"], row["cached_tokens"]) == (400, 4)
        assert row["prompt_tokens"] == prompt_tokens(body)
    assert (row["model"], bool(row["replica_id"]), bool(row["key_id"])) == ("witness", True, True)


async def test_an_answer_that_breaks_off_uncounted_is_no_free_ride(
    product: Product, client: Caller, witness: Witness, keys: dict[str, str]
) -> None:
    """Without any count, closed after 200 tokens: the row has them, and calls itself estimated."""
    witness.tell(usage="none", tokens=400, close_after=200)
    call = await client.ask(keys["dora"], chat("witness", "uncounted/1"))
    (row,) = product.usage("uncounted/1")
    assert not call.whole
    assert (row["outcome"], row["completion_tokens"], row["estimated"]) == ("failed", 200, True)
    assert row["prompt_tokens"] > 0


GARBAGE = [b"{not json", b"[1, 2, 3]", b'{"choices": "\xff\xfe"}']


async def test_garbage_for_some_lines_of_a_batch_spoils_no_other(
    product: Product, witness: Witness, keys: dict[str, str]
) -> None:
    """Broken JSON, no object and no UTF-8 for three lines: three errors, the rest counted right."""
    rules = {
        f"rubbish/bad{number}": {"answer_b64": base64.b64encode(text).decode()}
        for number, text in enumerate(GARBAGE)
    }
    witness.tell(tokens=7, rules=rules)
    names = [f"good{number}" for number in range(27)] + [f"bad{n}" for n in range(len(GARBAGE))]
    lines = [
        {"custom_id": name, "method": "POST", "url": "/v1/chat/completions",
         "body": chat("witness", f"rubbish/{name}", stream=False)}
        for name in names
    ]  # fmt: skip
    content = "".join(json.dumps(line) + "\n" for line in lines).encode()
    headers = {"Authorization": f"Bearer {keys['fritz']}"}
    async with httpx.AsyncClient(
        base_url=product.url, headers=headers, timeout=30, verify=False
    ) as sender:
        form = {"data": {"purpose": "batch"}, "files": {"file": ("in.jsonl", content)}}
        stored = (await sender.post("/v1/files", **form)).json()
        body = {"input_file_id": stored["id"], "endpoint": "/v1/chat/completions",
                "completion_window": "24h"}  # fmt: skip
        batch = (await sender.post("/v1/batches", json=body)).json()
        give_up = time.monotonic() + 60
        while batch["status"] not in ("completed", "failed", "expired"):
            assert time.monotonic() < give_up, batch
            await asyncio.sleep(0.2)
            batch = (await sender.get(f"/v1/batches/{batch['id']}")).json()
        output = (await sender.get(f"/v1/files/{batch['output_file_id']}/content")).text
        errors = (await sender.get(f"/v1/files/{batch['error_file_id']}/content")).text
    counts = batch["request_counts"]
    assert (batch["status"], counts["completed"], counts["failed"]) == ("completed", 27, 3)
    assert {json.loads(row)["custom_id"] for row in errors.splitlines()} == {"bad0", "bad1", "bad2"}
    usages = [json.loads(row)["response"]["body"]["usage"] for row in output.splitlines()]
    assert [usage["completion_tokens"] for usage in usages] == [7] * 27
    if batch.get("usage"):
        assert batch["usage"]["output_tokens"] >= 7 * 27


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("told", "cached"), [(7, 7), (0, 0), (None, None)], ids=["some", "none", "unknown"]
)
async def test_parts_are_never_added_to_totals(
    product: Product, client: Caller, witness: Witness, keys: dict[str, str],
    stream: bool, told: int | None, cached: int | None,
) -> None:  # fmt: skip
    """Cached and reasoning tokens are shown as parts; what the engine does not say is unknown."""
    witness.tell(cached_tokens=told, reasoning_tokens=3, tokens=9)
    mark = f"parts/{stream}-{told}"
    body = chat("witness", mark, stream=stream)
    body["messages"].insert(0, {"role": "system", "content": "one two three four five six seven"})
    assert (await client.ask(keys["dora"], body)).whole
    (row,) = product.usage(mark)
    assert row["prompt_tokens"] == prompt_tokens(body)
    assert row["completion_tokens"] == 9
    assert row["cached_tokens"] == cached
    assert row["reasoning_tokens"] == 3
    assert (row["outcome"], row["estimated"]) == ("served", False)


@pytest.mark.parametrize("style", ["none", "last", "every", "asked"])
async def test_every_style_of_usage_gives_the_same_row(
    product: Product, client: Caller, witness: Witness, keys: dict[str, str], style: str
) -> None:
    """Usage in no chunk, the last or every one: the row is exact, or marked as estimated."""
    witness.tell(usage=style, tokens=12)
    mark = f"style/{style}"
    body = chat("witness", mark)
    call = await client.ask(keys["dora"], body)
    assert call.whole
    (row,) = product.usage(mark)
    assert row["estimated"] is (style == "none")
    if style == "none":
        assert 10 <= row["completion_tokens"] <= 14
    else:
        assert (row["prompt_tokens"], row["completion_tokens"]) == (prompt_tokens(body), 12)


@pytest.mark.parametrize("verb", ["error_after", "close_after", "reset_after"])
async def test_a_broken_answer_counts_what_was_made(
    product: Product, client: Caller, witness: Witness, keys: dict[str, str], verb: str
) -> None:
    """An engine that breaks after ten tokens leaves a failed row of ten, the error not counted."""
    witness.tell(**{verb: 10}, tokens=50)
    mark = f"broken/{verb}"
    call = await client.ask(keys["dora"], chat("witness", mark))
    (row,) = product.usage(mark)
    assert row["outcome"] == "failed"
    assert row["completion_tokens"] == 10
    assert not call.whole
    assert call.code or call.broke, "the client must be able to see that its answer is not whole"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("chat/completions", chat("witness", "fields/chat", stream=False)),
        ("completions", {"model": "witness", "prompt": "x [mark:fields/completions]"}),
        ("embeddings", {"model": "witness", "input": "x [mark:fields/embeddings]"}),
    ],
)
async def test_stream_options_go_only_where_they_are_known(
    product: Product, client: Caller, witness: Witness, keys: dict[str, str],
    path: str, body: dict[str, Any],
) -> None:  # fmt: skip
    """A plain request is answered, counted, and never carries a field only streams have."""
    mark = f"fields/{path.rpartition('/')[2] if path == 'embeddings' else path.split('/')[0]}"
    call = await client.ask(keys["dora"], body, path=path)
    assert call.whole
    assert call.headers["content-type"].startswith("application/json")
    (row,) = product.usage(mark)
    assert row["prompt_tokens"] == prompt_tokens(body)
    sent = next(r for r in witness.records() if r.mark == mark).json
    assert ("stream_options" in sent) <= (sent.get("stream") is True)
