"""Texts of the pages are marked for translation, so that a language is a file and no rewrite."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TEMPLATES = Path(__file__).resolve().parents[2] / "templates"
# The manual would be translated page by page; the admin speaks with its theme; elements hold
# no text of their own.
NOT_MARKED = ("docs/", "admin/", "allauth/elements/")
# Names and units are the same in every language.
SAME = {"Fairway", "JSON", "CSV", "ms", "kB", "MiB", "UTC", "https", "req", "tokens/s"}
MARKED = re.compile(
    r"\{%\s*blocktranslate\b.*?endblocktranslate\s*%\}|\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}", re.DOTALL
)
RAW = re.compile(r"<(code|pre|script|style)\b.*?</\1>|<!--.*?-->", re.DOTALL)
SPOKEN = re.compile(r"(?<![\w-])(?:aria-label|placeholder|title|alt|data-label)=\"([^\"]*)\"")
PLURAL = re.compile(r"pluralize[^ }]*")
TAG = re.compile(r"<[^>]*>")
WORD = re.compile(r"[A-Za-z]{2,}(?:/[a-z])?")


def unmarked(source: str) -> list[str]:
    """Return the words a reader or a screen reader would get in English whatever the language."""
    text = RAW.sub(" ", MARKED.sub("\x00", source))
    spoken = " ".join(SPOKEN.findall(text))
    words = WORD.findall(f"{TAG.sub(' ', text)} {spoken}".replace("&nbsp;", " "))
    plurals = PLURAL.findall(source)  # English endings; blocktranslate count knows every language's
    return [word for word in [*words, *plurals] if word not in SAME]


TEXTS = sorted(
    path.relative_to(TEMPLATES).as_posix()
    for path in TEMPLATES.rglob("*.html")
    if not path.relative_to(TEMPLATES).as_posix().startswith(NOT_MARKED)
)


@pytest.mark.parametrize("name", TEXTS)
def test_no_text_of_a_page_is_unmarked(name: str) -> None:
    """Every word of a template stands in translate or blocktranslate, attributes included."""
    assert unmarked((TEMPLATES / name).read_text()) == []


def test_the_search_finds_what_is_unmarked() -> None:
    """A plain word, a label for screen readers and a half-marked sentence are found."""
    assert unmarked('{% translate "Keys" %} <b>of yours</b>') == ["of", "yours"]
    assert unmarked('<nav aria-label="Main">{{ x }}</nav>') == ["Main"]
    assert unmarked('{{ n }} {{ n|pluralize:"key,keys" }}') == ['pluralize:"key,keys"']
    assert unmarked("{% blocktranslate %}a {{ b }} word{% endblocktranslate %}") == []
