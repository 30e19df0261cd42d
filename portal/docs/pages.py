"""The manual: its pages in reading order, and the search over their words."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass

TAG = re.compile(r"<[^>]+>")
SPACE = re.compile(r"\s+")
EXCERPT = 160


@dataclass(frozen=True, slots=True)
class DocPage:
    """One page of the manual."""

    slug: str
    title: str
    summary: str
    part: str

    @property
    def template(self) -> str:
        """Return the template that holds its text."""
        return f"docs/{self.slug}.html"


START, HOW, GUIDES, LOOK_UP = "Start", "How it works", "Guides", "Look it up"
PAGES = (
    DocPage("quickstart", "First answer in five minutes", "Key, address, model, go", START),
    DocPage("classes", "Interactive or batch?", "Which class a key should have", START),
    DocPage("ordering", "Who goes first, and why", "The rule, drawn", HOW),
    DocPage("sharing", "Several models on one card", "Sharing modes and when to partition", HOW),
    DocPage("capacity", "What the numbers mean", "How capacity and waits are found", HOW),
    DocPage("batch", "Thousands of prompts", "Files and batches from upload to results", GUIDES),
    DocPage("clients", "Your program", "Open WebUI, editors, LangChain, Jupyter, llm, R", GUIDES),
    DocPage("keys", "Taking care of keys", "Rotate, revoke, find leaked ones", GUIDES),
    DocPage("limits", "Limits in force", "Read from the settings of this installation", LOOK_UP),
    DocPage("errors", "Errors", "Each code, what it means, what to do", LOOK_UP),
    DocPage("api", "Addresses of the gateway", "What a key opens", LOOK_UP),
)
BY_SLUG: Mapping[str, DocPage] = {page.slug: page for page in PAGES}


@dataclass(frozen=True, slots=True)
class Hit:
    """A page that holds the words looked for, with the text around the first."""

    page: DocPage
    before: str
    found: str
    after: str


def plain(markup: str) -> str:
    """Return the words of a page without its markup."""
    return SPACE.sub(" ", html.unescape(TAG.sub(" ", markup))).strip()


def search(texts: Mapping[str, str], query: str) -> list[Hit]:
    """Return pages that hold every word, best first: words in the title count most."""
    words = [word for word in re.split(r"\W+", query.lower()) if word][:8]
    if not words:
        return []
    hits = []
    for page in PAGES:
        text = texts[page.slug]
        head = f"{page.title} {page.summary}".lower()
        low = text.lower()
        if all(word in low or word in head for word in words):
            score = sum(10 * head.count(word) + low.count(word) for word in words)
            hits.append((-score, page.slug, _hit(page, text, words[0])))
    return [hit for _, _, hit in sorted(hits, key=lambda one: one[:2])]


def _hit(page: DocPage, text: str, word: str) -> Hit:
    place = max(text.lower().find(word), 0)
    start = max(place - EXCERPT // 2, 0)
    end = place + len(word)
    lead = "…" if start else ""
    tail = "…" if end + EXCERPT < len(text) else ""
    return Hit(page, lead + text[start:place], text[place:end], text[end : end + EXCERPT] + tail)
