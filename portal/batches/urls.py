"""Addresses under /v1/batches; no slash at the end, or clients turn a POST into a GET."""

from __future__ import annotations

from django.urls import path

from portal.batches import views

urlpatterns = [
    path("batches", views.Batches.as_view()),
    path("batches/estimate", views.EstimateView.as_view()),
    path("batches/webhook_secret", views.WebhookSecret.as_view()),
    path("batches/<str:batch_id>", views.Batch.as_view()),
    path("batches/<str:batch_id>/cancel", views.Cancel.as_view()),
    path("batches/<str:batch_id>/output", views.Output.as_view()),
    path("batches/<str:batch_id>/retry", views.Retry.as_view()),
]
