"""What every template may use: the card line, who reads, who runs this, the announcements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.http import HttpRequest
from django.middleware.csrf import get_token
from django.utils import timezone
from django.utils.functional import SimpleLazyObject
from django.utils.translation import gettext_noop as _

from portal.announcements import models as announcements
from portal.status import access, reading, source

THEMES = frozenset({"light", "dark"})


@dataclass(frozen=True, slots=True)
class NavItem:
    """One link of the main menu; `section` is compared with the page's own."""

    section: str
    label: str
    address: str


PUBLIC_NAV = (
    NavItem("status", _("Status"), "/status/"),
    NavItem("docs", _("Docs"), "/docs/"),
    NavItem("login", _("Sign in"), "/accounts/login/"),
)
MEMBER_NAV = (
    NavItem("dashboard", _("Dashboard"), "/"),
    NavItem("keys", _("Keys"), "/keys/"),
    NavItem("usage", _("Usage"), "/usage/"),
    NavItem("batches", _("Batches"), "/batches/"),
    NavItem("models", _("Models"), "/models/"),
    NavItem("status", _("Status"), "/status/"),
    NavItem("docs", _("Docs"), "/docs/"),
)


def every_page(request: HttpRequest) -> dict[str, Any]:
    """Return the context of a page; the gateway is asked only when the page shows it."""
    user = getattr(request, "user", None)
    member = user is not None and user.is_authenticated
    reader_id = str(user.pk) if user is not None and member else ""
    return {
        **_common(request),
        "announcements": SimpleLazyObject(lambda: announcements.shown(timezone.now())),
        "nav": MEMBER_NAV if member else PUBLIC_NAV,
        "theme": user.theme if user is not None and member and user.theme in THEMES else "",
        "card": SimpleLazyObject(
            lambda: reading.read(source.read(), reader_id=reader_id, secret=settings.SECRET_KEY)
        ),
    }


def error_page(request: HttpRequest) -> dict[str, Any]:
    """Return the context of an error page, without asking the database who reads it."""
    common = {**_common(request), "csrf_token": get_token(request), "announcements": ()}
    user = getattr(request, "_cached_user", None)
    if user is not None:
        return {**every_page(request), **common, "user": user}
    return {
        **common,
        "nav": PUBLIC_NAV,
        "theme": "",
        "card": SimpleLazyObject(
            lambda: reading.read(source.read(), reader_id="", secret=settings.SECRET_KEY)
        ),
    }


def _common(request: HttpRequest) -> dict[str, Any]:
    return {
        "status_open": access.is_open_to(request),
        "institute": settings.INSTITUTE_NAME,
        "contact": settings.CONTACT_EMAIL,
        "public_url": settings.PUBLIC_URL,
        "sign_up_open": settings.SIGN_UP_OPEN,
        "sign_up_approval": settings.SIGN_UP_APPROVAL,
        "seen_by": request.META.get("FAIRWAY_SEEN_BY", ""),
        "request_id": request.META.get("FAIRWAY_REQUEST_ID", ""),
        "now": timezone.now(),
        "reporting_zone": settings.TIME_ZONE,
        "zone": timezone.get_current_timezone_name(),
    }
