"""A password that was printed or mailed is good for one thing: choosing another.

Rule 1: who signs in with one reaches the page that changes it, and sign-out, and nothing else.
Rule 2: it is looked up when somebody signs in; afterwards the session carries the answer, so no
page pays a query for it.
Rule 3: keys are not concerned: programs go on while a person has not signed in yet.
"""

from __future__ import annotations

from typing import Any

from allauth.account.signals import password_changed, password_reset, password_set
from django.contrib.auth.signals import user_logged_in
from django.core.exceptions import PermissionDenied
from django.dispatch import receiver
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.deprecation import MiddlewareMixin
from django.utils.translation import gettext as _

from portal.accounts.models import OneTimePassword
from quotas.models import User
from quotas.services import people

SESSION = "must_choose_password"
OPEN = ("/accounts/password/", "/accounts/logout/", "/accounts/reauthenticate/", "/static/",
        "/live/card-line/", "/favicon.ico")  # fmt: skip
FOR_PROGRAMS = ("/api/", "/v1/", "/live/", "/try/")


def give(user: User, password: str) -> None:
    """Set a password that its owner has to replace at the first sign-in."""
    user.set_password(password)
    user.save(update_fields=["password"])
    _given(User, user)


@receiver(people.password_given)
def _given(sender: Any, user: User, **_rest: Any) -> None:
    """Remember that somebody else knows the password; nobody, if there is none to know."""
    if user.has_usable_password():
        OneTimePassword.objects.get_or_create(user=user)
    else:
        chosen(user)


def chosen(user: User) -> None:
    """The person has a password of their own now."""
    OneTimePassword.objects.filter(user=user).delete()


@receiver(user_logged_in)
def _signed_in(request: HttpRequest, user: User, **_rest: Any) -> None:
    if OneTimePassword.objects.filter(user=user).exists():
        request.session[SESSION] = True


@receiver([password_changed, password_set, password_reset])
def _changed(request: HttpRequest, user: User, **_rest: Any) -> None:
    chosen(user)
    request.session.pop(SESSION, None)


class FirstPassword(MiddlewareMixin):
    """Leads everything to the page that changes the password until that is done."""

    def process_request(self, request: HttpRequest) -> HttpResponse | None:
        if not request.session.get(SESSION) or request.path_info.startswith(OPEN):
            return None
        if not request.user.is_authenticated:
            return None
        if request.path_info.startswith(FOR_PROGRAMS):
            raise PermissionDenied(_("Choose a password of your own first, in the browser."))
        return redirect(reverse("account_change_password"))
