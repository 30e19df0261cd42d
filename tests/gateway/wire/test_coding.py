"""Whatever an engine compresses, and whatever a client accepts: the text arrives, usage is read."""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard

from gateway.coding import decoder
from tests.gateway.wire.conftest import Stage
from tests.gateway.wire.stage import chat

ENCODERS: dict[str, Callable[[bytes], bytes]] = {
    "identity": lambda data: data,
    "gzip": gzip.compress,
    "deflate": zlib.compress,
    "br": brotli.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}
USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
CHOICE = {"index": 0, "finish_reason": "stop"}
PLAIN = json.dumps(
    {
        "choices": [{**CHOICE, "message": {"role": "assistant", "content": "héllo 数据"}}],
        "usage": USAGE,
    }
)
STREAM = "".join(
    f"data: {json.dumps(chunk, ensure_ascii=False)}\n\n"
    for chunk in (
        {"choices": [{"index": 0, "delta": {"content": "héllo 数据"}, "finish_reason": None}]},
        {"choices": [{**CHOICE, "delta": {}}]},
        {"choices": [], "usage": USAGE},
    )
)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("accepts", [True, False])
@pytest.mark.parametrize("encoding", ENCODERS)
def test_every_coding_arrives(stage: Stage, encoding: str, accepts: bool, stream: bool) -> None:
    """The client reads the engine's text and the record its numbers, in twenty of twenty cells."""
    secret = stage.books.key()
    text = STREAM if stream else PLAIN
    stage.witness.tell(
        answer_b64=base64.b64encode(ENCODERS[encoding](text.encode())).decode(),
        answer_type="text/event-stream" if stream else "application/json",
        answer_encoding="" if encoding == "identity" else encoding,
    )

    with stage.client(secret) as client:
        options = {"include_usage": True}
        answer = client.post(
            "/v1/chat/completions",
            json=chat(stream=stream, **({"stream_options": options} if stream else {})),
            headers={"accept-encoding": encoding if accepts else "identity"},
        )

    assert answer.content.decode().rstrip() == text.rstrip()
    record = stage.books.record_of(answer.headers["x-request-id"])
    assert (record.prompt_tokens, record.completion_tokens, record.outcome) == (7, 3, "served")


@pytest.mark.parametrize("encoding", [name for name in ENCODERS if name != "identity"])
def test_any_cut_decodes(encoding: str) -> None:
    """Compressed bytes may be cut anywhere."""
    packed = ENCODERS[encoding](STREAM.encode())
    for cut in range(len(packed)):
        made = decoder(encoding.encode())
        assert made is not None
        assert made.decode(packed[:cut]) + made.decode(packed[cut:]) == STREAM.encode()


def test_bytes_that_are_not_what_they_claim_end_the_answer(stage: Stage) -> None:
    """Garbage under a Content-Encoding is a failed engine, not a garbled answer."""
    secret = stage.books.key()
    stage.witness.tell(
        answer_b64=base64.b64encode(b"this is not gzip at all").decode(),
        answer_type="text/event-stream", answer_encoding="gzip",
    )  # fmt: skip

    answer = stage.ask(secret, stream=True)

    assert b"not gzip" not in answer.content
    assert '"error"' in answer.text
    assert stage.books.record_of(answer.headers["x-request-id"]).outcome == "failed"
