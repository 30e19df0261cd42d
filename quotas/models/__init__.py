"""The books: who may use what, how much, and what was used."""

from quotas.models.people import Group, User

__all__ = ["Group", "User"]
