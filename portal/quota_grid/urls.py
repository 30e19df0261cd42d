"""Addresses of the grid."""

from __future__ import annotations

from django.urls import path

from portal.quota_grid import views

urlpatterns = [
    path("", views.grid, name="quota-grid"),
    path("preview/", views.preview, name="quota-preview"),
    path("apply/", views.apply, name="quota-apply"),
    path("limits.csv", views.csv_out, name="quota-csv"),
    path("csv/", views.csv_in, name="quota-csv-in"),
]
