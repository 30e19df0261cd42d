"""Keys are found by the hash of the whole secret: nothing to guess piece by piece, nothing slow."""

from __future__ import annotations

import asyncio
import time
from statistics import median

import pytest

from gateway.authenticate import authenticate, recognise
from gateway.caller import Caller
from gateway.core.types import ServiceClass
from gateway.directory import Directory
from gateway.errors import NotAuthenticated
from quotas.snapshots import keyformat
from quotas.snapshots.credentials import Credential, sign
from quotas.snapshots.directory import KeySnapshot, Limits

GOOD = keyformat.generate("interactive")
OTHER = keyformat.generate("interactive")


@pytest.fixture
def directory() -> Directory:
    """Return a directory that knows one key, and for certain that it knows no other."""
    found = Directory(None, on_key=lambda key: None, on_fleet=lambda fleet: None)  # type: ignore[arg-type]
    digest = keyformat.digest(GOOD)
    found._keys[digest] = KeySnapshot(
        "k1", "k", "u1", "u", "", "interactive", "live", None, Limits(), Limits()
    )
    found._seen_s = time.monotonic() + 10**6
    return found


async def cost_us(directory: Directory, secret: str, times: int) -> list[float]:
    """Return the microseconds of own CPU of each check of a wrong secret."""
    headers, found = [(b"authorization", b"Bearer " + secret.encode())], []
    directory._unknown[keyformat.digest(secret)] = None
    for _ in range(times):
        began = time.thread_time_ns()
        with pytest.raises(NotAuthenticated):
            await authenticate(headers, directory, "x" * 40)
        found.append((time.thread_time_ns() - began) / 1000)
    return found


async def test_a_wrong_key_costs_next_to_nothing(directory: Directory) -> None:
    """A thousand keys nobody has cost less than 0.2 ms each, so they push nobody aside."""
    spent = [
        (await cost_us(directory, keyformat.generate("interactive"), 1))[0] for _ in range(1000)
    ]
    assert median(spent) < 200


@pytest.mark.long
async def test_a_right_beginning_is_worth_nothing(directory: Directory) -> None:
    """
    A secret that is right but for its end takes as long to refuse as one that is wrong from the
    start: the medians of 20,000 tries each differ by less than two per cent.
    """
    near = GOOD[:-1] + ("0" if GOOD[-1] != "0" else "1")
    near_us, far_us = [], []
    for _ in range(200):
        near_us += await cost_us(directory, near, 100)
        far_us += await cost_us(directory, OTHER[:-1] + ("0" if OTHER[-1] != "0" else "1"), 100)
    assert abs(median(near_us) / median(far_us) - 1) < 0.02


async def test_a_credential_is_worth_nothing_from_its_end_on(directory: Directory) -> None:
    """
    A batch's credential, and its caller, are worked out once for all its lines; another letter, or
    the time it ends at, is noticed all the same.
    """
    credential = Credential("batch", keyformat.digest(GOOD), time.time() + 0.3, "batch_1")
    bearer = sign("x" * 40, credential)

    async def ask(secret: str) -> Caller:
        return await authenticate([(b"authorization", f"Bearer {secret}".encode())], directory,
                                  "x" * 40)  # fmt: skip

    first, second = await ask(bearer), await ask(bearer)

    assert first is second
    assert (first.service_class, first.batch_id) == (ServiceClass.BATCH, "batch_1")
    with pytest.raises(NotAuthenticated):
        await ask(bearer[:-1] + ("A" if bearer[-1] != "A" else "B"))
    await asyncio.sleep(max(0.0, credential.expires_at - time.time()))
    with pytest.raises(NotAuthenticated):
        await ask(bearer)


def test_a_remembered_header_opens_what_it_bears_and_nothing_else(directory: Directory) -> None:
    """A caller is remembered by the key's own header, not by another one that came with it."""
    basic = (b"authorization", b"Basic of-somebody")
    bearer = (b"authorization", b"Bearer " + GOOD.encode())
    with_basic = recognise([basic, (b"x-api-key", GOOD.encode())], directory, "x" * 40)

    assert with_basic is not None
    assert recognise([bearer], directory, "x" * 40) is with_basic
    assert recognise([bearer], directory, "x" * 40) is with_basic
    with pytest.raises(NotAuthenticated):
        recognise([basic], directory, "x" * 40)
    directory._keys.clear()
    assert recognise([bearer], directory, "x" * 40) is None, "revoked, or not known for certain"
