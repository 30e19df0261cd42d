"""Signing in costs one hash, whoever is asked for."""

from __future__ import annotations

from typing import Any

from allauth.account.auth_backends import AuthenticationBackend


class OneHash(AuthenticationBackend):  # type: ignore[misc]
    """allauth's backend, which tries an address twice (as a name and as an e-mail).

    The second hash of the same password would tell by time which addresses have an account.
    """

    def authenticate(self, request: Any, **credentials: Any) -> Any:
        self._tried: set[int] = set()
        return super().authenticate(request, **credentials)

    def _check_password(self, user: Any, password: str) -> Any:
        if user is None or user.pk in self._tried:
            return None
        self._tried.add(user.pk)
        return super()._check_password(user, password)
