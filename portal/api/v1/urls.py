"""Addresses of the portal's API."""

from __future__ import annotations

from django.urls import path
from drf_spectacular.views import SpectacularAPIView
from rest_framework.permissions import AllowAny

from portal.api.v1 import reference, views

urlpatterns = [
    path("keys", views.Keys.as_view()),
    path("keys/<slug:key_id>", views.Key.as_view()),
    path("keys/<slug:key_id>/rotate", views.RotateKey.as_view()),
    path("usage", views.Usage.as_view()),
    path("requests", views.Requests.as_view()),
    path("limits", views.Limits.as_view()),
    path("status", views.Status.as_view()),
    path("admin/limits", views.AdminLimits.as_view()),
    path("admin/people", views.AdminPeople.as_view()),
    path("schema", SpectacularAPIView.as_view(permission_classes=[AllowAny]), name="schema"),
    path("docs/", reference.page, name="api-docs"),
]
