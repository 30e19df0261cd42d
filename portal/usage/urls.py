"""Addresses of the usage pages."""

from __future__ import annotations

from django.urls import path, re_path

from portal.usage import views

urlpatterns = [
    path("", views.index, name="usage"),
    path("requests/", views.requests_page, name="usage-requests"),
    re_path(r"^usage\.(?P<kind>csv|json)$", views.export, name="usage-export"),
    re_path(r"^requests\.(?P<kind>csv|json)$", views.export_requests, name="requests-export"),
]
