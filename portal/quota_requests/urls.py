"""Addresses of quota requests and of a group's page."""

from __future__ import annotations

from django.urls import path

from portal.quota_requests import views

urlpatterns = [
    path("quota/", views.index, name="quota"),
    path("quota/<int:pk>/", views.decide, name="quota-decide"),
    path("quota/<int:pk>/withdraw/", views.withdraw, name="quota-withdraw"),
    path("group/", views.group, name="group"),
    path("group/divide/", views.divide, name="group-divide"),
]
