"""Addresses of the portal."""

from __future__ import annotations

from allauth.account.decorators import secure_admin_login
from django.contrib import admin
from django.urls import include, path
from django.views.generic import RedirectView

from portal.accounts import joining, seeing
from portal.accounts import views as accounts
from portal.capacity import views as capacity
from portal.catalogue import views as catalogue
from portal.docs import views as docs
from portal.fairness import views as fairness
from portal.home import stopping
from portal.home import views as home
from portal.policy import views as policy
from portal.status import views as status

admin.autodiscover()
# One sign-in for everything: the same rate limits, second factor and institute account.
admin.site.login = secure_admin_login(admin.site.login)  # type: ignore[method-assign]

urlpatterns = [
    path("", home.dashboard, name="dashboard"),
    path("status/", status.page, name="status"),
    path("status.json", status.as_json, name="status-json"),
    path("capacity/", capacity.index, name="capacity"),
    path("capacity/<str:run_id>.json", capacity.raw, name="capacity-raw"),
    path("keys/", include("portal.keys.urls")),
    path("usage/", include("portal.usage.urls")),
    path("fairness/", fairness.page, name="fairness"),
    path("policy/", policy.page, name="policy"),
    path("policy/<str:trial_id>/", policy.trial, name="policy-trial"),
    path("live/policy/<str:trial_id>/", policy.live_trial, name="live-policy-trial"),
    path("quota/grid/", include("portal.quota_grid.urls")),
    path("", include("portal.quota_requests.urls")),
    path("models/", catalogue.index, name="models"),
    path("profile/", accounts.profile, name="profile"),
    path("profile/my-data.json", accounts.my_data, name="my-data"),
    path("see-as/<int:pk>/", seeing.start, name="see-as"),
    path("see-as/end/", seeing.end, name="see-as-end"),
    path("join/<str:token>/", joining.join, name="join"),
    path("group/invite/", joining.invite, name="group-invite"),
    path("group/invite/<int:pk>/stop/", joining.stop, name="group-invite-stop"),
    path("docs/", docs.index, name="docs"),
    path("docs/<slug:slug>/", docs.page, name="docs-page"),
    path("try/credential/", home.try_credential, name="try-credential"),
    path("live/dashboard/", home.live_part, name="live-dashboard"),
    path("requests/", stopping.everybody, name="everybodys-requests"),
    path("stop/", stopping.stop, name="stop"),
    path("requests/stop/", stopping.stop_anybodys, name="stop-anybodys"),
    path("live/requests/", stopping.live_everybody, name="live-everybody"),
    path("live/mine/", home.live_mine, name="live-mine"),
    path("live/quota/", home.live_quota, name="live-quota"),
    path("live/card-line/", status.card_line, name="live-card-line"),
    path("live/status/", status.live_part, name="live-status"),
    path("favicon.ico", RedirectView.as_view(url="/static/portal/favicon.svg")),
    path("api/v1/", include("portal.api.v1.urls")),
    path("v1/", include("portal.files.urls")),
    path("v1/", include("portal.batches.urls")),
    path("batches/", include("portal.batches.pages_urls")),
    path("admin/", admin.site.urls),
    path("accounts/", include("allauth.urls")),
]
handler400 = "portal.errors.bad_request"
handler403 = "portal.errors.forbidden"
handler404 = "portal.errors.not_found"
handler500 = "portal.errors.broken"
