"""Addresses of the batches pages."""

from __future__ import annotations

from django.urls import path

from portal.batches import pages

urlpatterns = [
    path("", pages.index, name="batches"),
    path("upload/", pages.upload, name="batch-upload"),
    path("upload/<slug:file_id>/", pages.report, name="batch-report"),
    path("<slug:batch_id>/", pages.detail, name="batch"),
    path("<slug:batch_id>/progress/", pages.progress, name="batch-progress"),
    path("<slug:batch_id>/cancel/", pages.cancel, name="batch-cancel"),
    path("<slug:batch_id>/again/", pages.again, name="batch-again"),
    path("<slug:batch_id>/key/", pages.another_key, name="batch-key"),
    path("<slug:batch_id>/output.jsonl", pages.download, {"what": "output"}, name="batch-output"),
    path("<slug:batch_id>/errors.jsonl", pages.download, {"what": "errors"}, name="batch-errors"),
    path("<slug:batch_id>/input.jsonl", pages.download, {"what": "input"}, name="batch-input"),
]
