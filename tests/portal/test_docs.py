"""The manual."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from portal.docs import errors, pages, slope

ROOT = Path(__file__).resolve().parents[2]
CODE = re.compile(r"code=\"([a-z_]+)\"|\bcode: str = \"([a-z_]+)\"|^    code = \"([a-z_]+)\"", re.M)
TREE = re.compile(r"status, type, code = \d+, \"[a-z_]+\", \"([a-z_]+)\"")
REFUSALS = re.compile(
    r"^    \"([a-z_]+)\": \((?:Rejected|Evicted|Unavailable|NotAuth|BadRequest)", re.M
)


def codes_of_the_gateway() -> set[str]:
    sources = [*(ROOT / "gateway").glob("*.py"), *(ROOT / "gateway/core").glob("*.py")]
    text = "".join(path.read_text() for path in sources)
    found = {code for groups in CODE.findall(text) for code in groups if code}
    return found | set(TREE.findall(text)) | set(REFUSALS.findall(text))


def test_every_error_of_the_gateway_is_explained() -> None:
    """
    Each code the gateway's sources can answer has a row in the table of errors.
    """
    codes = codes_of_the_gateway()

    assert len(codes) > 15
    assert codes - {row.code for row in errors.ERRORS} == set()


@pytest.mark.django_db
@pytest.mark.usefixtures("redis_url", "gateway")
@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.slug)
def test_every_page_opens_for_everybody(client: Client, page: pages.DocPage) -> None:
    """
    The manual needs no account.
    """
    answer = client.get(f"/docs/{page.slug}/")

    assert answer.status_code == 200
    assert page.title in answer.content.decode()


@pytest.mark.django_db
@pytest.mark.usefixtures("redis_url", "gateway")
def test_snippets_hold_the_real_address(client: Client, settings: Any) -> None:
    """
    Code in the manual works when pasted: it holds this installation's address and a model.
    """
    settings.PUBLIC_URL = "https://gpu.example.org"

    for slug in ("quickstart", "batch", "clients"):
        page = client.get(f"/docs/{slug}/").content.decode()
        assert "https://gpu.example.org/v1" in page
        assert "Qwen2.5-14B" in page


@pytest.mark.django_db
@pytest.mark.usefixtures("redis_url", "gateway")
def test_the_limits_page_shows_what_is_in_force(client: Client) -> None:
    """
    The table of limits is read from the settings in force, not written by hand.
    """
    from quotas.services import limits

    limits.set_limit(
        holder=limits.EVERYONE, service_class="batch", name="queued", value=437, per="key"
    )

    assert "437" in client.get("/docs/limits/").content.decode()


@pytest.mark.django_db
@pytest.mark.usefixtures("redis_url", "gateway")
def test_search_finds_an_error_code_and_shows_markup_as_text(client: Client) -> None:
    """
    A search for a code leads to the errors page; what was typed is never run.
    """
    assert "/docs/errors/" in client.get("/docs/?q=queue_full_key").content.decode()

    page = client.get("/docs/?q=<script>alert(1)</script>").content.decode()
    assert "<script>alert(1)" not in page


def test_search_wants_every_word_and_puts_titles_first() -> None:
    """
    A page must hold all words; one that has them in its title comes first.
    """
    texts = {page.slug: "nothing" for page in pages.PAGES} | {
        "errors": "queue full full full",
        "limits": "queue",
    }

    assert [hit.page.slug for hit in pages.search(texts, "queue full")] == ["errors"]
    assert pages.search(texts, "limits")[0].page.slug == "limits"
    assert pages.search(texts, "  ") == []


def test_the_pictures_follow_the_rule() -> None:
    """
    In the three frames batch passes only when it has waited longer than the handicap and the chat.
    """
    assert [frame.batch_first for frame in slope.frames(600)] == [False, False, True]
    assert slope.y_at(0, 600) == slope.LEVEL_Y
    assert slope.y_at(-600, 600) == slope.FAR_Y
