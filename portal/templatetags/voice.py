"""Gives the sign-in library's English pages the voice of ours."""

from __future__ import annotations

import re

from django import template
from django.conf import settings
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language

register = template.Library()
_TITLE_WORD = re.compile(r"(?<=\w[ \n-])[A-Z][a-z]+\b")
_LABEL = re.compile(r'(<label[^>]*>|placeholder=")([^<"]+)')


@register.filter
def sentence_case(html: str) -> SafeString:
    """Return Title Case as Sentence case; other languages and the institute's name stay.

    It is used around slots of the library, whose content is escaped already.
    """
    if not (get_language() or "").startswith("en"):
        return mark_safe(html)  # noqa: S308
    names = set(settings.OIDC_NAME.split())
    return mark_safe(  # noqa: S308
        _TITLE_WORD.sub(lambda word: word[0] if word[0] in names else word[0].lower(), html)
    )


@register.filter
def labels_in_sentence_case(html: str) -> SafeString:
    """Do the same to the labels and placeholders of a form, and to nothing people typed."""
    return mark_safe(_LABEL.sub(lambda found: found[1] + sentence_case(found[2]), html))  # noqa: S308
