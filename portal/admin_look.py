"""How the administration looks: django-unfold's settings."""

from __future__ import annotations

from typing import Any

from django.templatetags.static import static
from django.urls import reverse_lazy

#: Shade -> lightness in per cent and chroma of the blue of the pages. 500 is read on black and 600
#: lies under white, so both keep a contrast of 4.5 : 1.
_BLUES = {
    50: (97, 0.014),
    100: (94, 0.03),
    200: (89, 0.055),
    300: (83, 0.09),
    400: (76, 0.12),
    500: (70, 0.13),
    600: (49, 0.14),
    700: (43, 0.12),
    800: (38, 0.1),
    900: (33, 0.08),
    950: (26, 0.06),
}
PRIMARY = {
    str(shade): f"oklch({lightness}% {chroma} 250)" for shade, (lightness, chroma) in _BLUES.items()
}


def _page(title: str, icon: str, link: Any) -> dict[str, Any]:
    return {"title": title, "icon": icon, "link": link}


def _rows(title: str, icon: str, model: str) -> dict[str, Any]:
    return _page(title, icon, reverse_lazy(f"admin:{model}_changelist"))


#: What administrators come for, under the words the pages use; the rest is in the list of all.
MENU = (
    (
        "Every day",
        [
            _page("Quotas of everybody", "grid_on", "/quota/grid/"),
            _page("Requests for more", "inbox", "/quota/"),
            _page("Everybody's requests", "view_list", "/requests/"),
            _page("Try a policy", "science", "/policy/"),
            _page("Status", "monitoring", "/status/"),
        ],
    ),
    (
        "People",
        [
            _rows("People", "person", "quotas_user"),
            _rows("Groups", "groups", "quotas_group"),
            _rows("Keys", "key", "quotas_apikey"),
            _rows("Invitations", "mail", "quotas_invite"),
        ],
    ),
    (
        "Limits",
        [
            _rows("Limits, row by row", "speed", "quotas_limitrow"),
            _rows("Reserved slots", "event", "quotas_reservation"),
            _rows("Decided requests", "fact_check", "quotas_quotarequest"),
        ],
    ),
    (
        "The card",
        [
            _rows("Models", "hub", "quotas_pool"),
            _rows("Engines", "memory", "quotas_replica"),
            _rows("Cards", "developer_board", "quotas_card"),
            _rows("Measurements", "straighten", "quotas_capacityrun"),
            _rows("Capacity decisions", "insights", "quotas_capacitydecision"),
        ],
    ),
    (
        "Books",
        [
            _rows("Requests", "receipt_long", "quotas_usageevent"),
            _rows("Usage by hour", "bar_chart", "quotas_usagehour"),
            _rows("Batches", "stacks", "batches_batchjob"),
            _rows("Audit trail", "history", "pghistory_events"),
            _rows("Announcements", "campaign", "announcements_announcement"),
        ],
    ),
)

UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Fairway administration",
    "SITE_HEADER": "Fairway",
    "SITE_URL": "/",
    "SITE_SYMBOL": "sailing",
    "SHOW_HISTORY": True,
    "STYLES": [lambda _: static("portal/admin.css")],
    "SCRIPTS": [lambda _: static("portal/admin.js")],
    "COLORS": {"primary": PRIMARY},
    "DASHBOARD_CALLBACK": "portal.administration.dashboard",
    "SIDEBAR": {
        "show_search": True,
        "show_all_applications": True,
        "navigation": [
            {"title": title, "items": items, "separator": True} for title, items in MENU
        ],
    },
}
