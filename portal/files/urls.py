"""Addresses under /v1/files; no slash at the end, or clients turn a POST into a GET."""

from __future__ import annotations

from django.urls import path

from portal.files import views

urlpatterns = [
    path("files", views.Files.as_view()),
    path("files/<str:file_id>", views.File.as_view()),
    path("files/<str:file_id>/content", views.Content.as_view()),
]
