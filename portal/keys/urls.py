"""Addresses of the keys pages."""

from __future__ import annotations

from django.urls import path

from portal.keys import views

urlpatterns = [
    path("", views.index, name="keys"),
    path("new/", views.create, name="key-create"),
    path("<slug:public_id>/", views.edit, name="key-edit"),
    path("<slug:public_id>/first-use/", views.first_use, name="key-first-use"),
    path("<slug:public_id>/switch/", views.switch, name="key-switch"),
    path("<slug:public_id>/rotate/", views.rotate, name="key-rotate"),
    path("<slug:public_id>/revoke/", views.revoke, name="key-revoke"),
]
