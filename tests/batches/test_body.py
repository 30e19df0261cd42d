"""What of a line goes to the engine: its body, byte for byte."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from portal.batches.runner.body import request_body

HUGE = b'{"model":"m","seed":123456789012345678901234567890,"t":1.10}'


@pytest.mark.parametrize(
    ("raw", "body"),
    [
        (b'{"custom_id":"a","body":' + HUGE + b"}", HUGE),
        (b'{"body" : ' + HUGE + b' , "custom_id":"a"}', HUGE),
        (b'{"custom_id":"body","body":{"a":{"body":{}}} }\r', b'{"a":{"body":{}}}'),
        (b'{"x":{"body":{"a":1}},"body":{"b":2}}', b'{"b":2}'),
        (b'{"x":{"body":{"a":1}},"body":{"b":2},"y":"}"}', b'{"b":2}'),
        (b'{"body":{"a":1},"body":{"b":2}}', b'{"b":2}'),
        (b'{"\\u0062ody":{"b":"}"},"z":[]}', b'{"b":"}"}'),
        (b'{"body":{"b":"\xc3\xa9 \\ud83d \\" }"}}', b'{"b":"\xc3\xa9 \\ud83d \\" }"}'),
        (b'{"body":{"a":1e400000,"stream":false}}', b'{"a":1e400000}'),
        (b'{"body":{"stream":null, "stream_options":{"a":[1]} }}', b"{}"),
        (b'{"body":{"a":"\\"stream\\"","upstream":1}}', b'{"a":"\\"stream\\"","upstream":1}'),
    ],
)
def test_a_body_is_passed_on_byte_for_byte(raw: bytes, body: bytes) -> None:
    """Huge numbers, odd spellings and order stay; only what asks for a stream is left out."""
    assert request_body(raw) == body


def test_wherever_the_body_stands_it_is_found() -> None:
    """For any order of members and any spacing, what is sent means what was written."""
    dice = random.Random(6)
    values: list[Any] = [1, "body", '"body":{', {"body": {"x": "}"}}, [{"body": {}}], None, "é\n{"]
    for _ in range(300):
        row = {f"k{n}": dice.choice(values) for n in range(dice.randrange(4))}
        row["body"] = {f"b{n}": dice.choice(values) for n in range(dice.randrange(4))}
        members = list(row.items())
        dice.shuffle(members)
        raw = json.dumps(dict(members), ensure_ascii=dice.random() < 0.5,
                         indent=dice.choice([None, None, 1])).encode()  # fmt: skip

        assert json.loads(request_body(raw)) == row["body"]
