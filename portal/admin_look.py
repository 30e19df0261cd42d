"""How the administration looks: django-unfold's settings."""

from __future__ import annotations

from typing import Any

from django.templatetags.static import static

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

UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Fairway administration",
    "SITE_HEADER": "Fairway",
    "SITE_URL": "/",
    "SITE_SYMBOL": "sailing",
    "SHOW_HISTORY": True,
    "SCRIPTS": [lambda _: static("portal/admin.js")],
    "COLORS": {"primary": PRIMARY},
    "DASHBOARD_CALLBACK": "portal.administration.dashboard",
    "SIDEBAR": {
        "show_search": True,
        "show_all_applications": True,
        "navigation": [
            {
                "title": "Pages",
                "items": [
                    {"title": "Quotas of everybody", "icon": "grid_on", "link": "/quota/grid/"},
                    {"title": "Requests for more", "icon": "inbox", "link": "/quota/"},
                    {"title": "Try a policy", "icon": "science", "link": "/policy/"},
                    {"title": "Status", "icon": "monitoring", "link": "/status/"},
                ],
            }
        ],
    },
}
