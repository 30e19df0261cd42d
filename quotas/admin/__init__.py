"""The administrators' view of the books, on django-unfold."""

from quotas.admin import capacity, engines, keys, limits, people, requests, reservations, usage

__all__ = [
    "capacity",
    "engines",
    "keys",
    "limits",
    "people",
    "requests",
    "reservations",
    "usage",
]
