"""Rules of the look that a machine can hold us to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.portal.contrast import pairs

ROOT = Path(__file__).resolve().parents[2]
STATIC = ROOT / "portal/static/portal"
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))


def test_every_listed_pair_of_colours_has_its_contrast() -> None:
    """
    Text and controls reach the WCAG contrast that tokens.css promises, in both themes.
    """
    checked = pairs((STATIC / "tokens.css").read_text())

    assert len(checked) > 100
    assert [pair for pair in checked if pair.ratio < pair.least] == []


def test_only_the_tokens_hold_raw_colours() -> None:
    """
    A colour outside tokens.css would have no dark twin and no checked contrast.
    """
    for sheet in STATIC.glob("*.css"):
        if sheet.name != "tokens.css":
            assert re.findall(r"#[0-9a-fA-F]{3,8}\b(?=[^{]*;)|rgba?\(", sheet.read_text()) == []


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: str(path.relative_to(ROOT)))
def test_templates_hold_nothing_the_policy_forbids(path: Path) -> None:
    """
    No style attribute, inline script, event attribute or foreign address stands in a template.
    """
    text = path.read_text()

    assert not re.search(r"\sstyle=|<style|\son[a-z]+=|javascript:", text)
    assert not re.search(r"<script(?![^>]*(\ssrc=|type=\"application/json\"))", text)
    assert not re.search(r"(src|href|hx-get)=\"(https?:)?//", text)
