"""The administrators' view of the books, on django-unfold."""

from quotas.admin import engines, keys, limits, people, usage

__all__ = ["engines", "keys", "limits", "people", "usage"]
