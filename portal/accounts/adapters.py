"""Who may open an account, and what the institute's sign-in tells us about a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from django.conf import settings
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.urls import reverse

from quotas.models import Group
from quotas.services import people

if TYPE_CHECKING:
    from allauth.socialaccount.models import SocialLogin

    from quotas.models import User


def is_allowed_address(email: str, domains: list[str]) -> bool:
    """Tell whether an address belongs to one of the domains; no domains allow every address."""
    return not domains or email.rpartition("@")[2].lower() in {d.lower() for d in domains}


def group_names(claim: object) -> list[str]:
    """Return the group names of a claim, which may be a list or one name."""
    if isinstance(claim, str):
        return [claim]
    return [str(name) for name in claim] if isinstance(claim, list) else []


class LocalAccounts(DefaultAccountAdapter):  # type: ignore[misc]
    """Accounts with a password here."""

    def is_open_for_signup(self, request: HttpRequest) -> bool:
        return bool(settings.SIGN_UP_OPEN)

    def get_password_change_redirect_url(self, request: HttpRequest) -> str:
        return reverse("dashboard")

    def clean_email(self, email: str) -> str:
        address: str = super().clean_email(email)
        if not is_allowed_address(address, settings.SIGN_UP_DOMAINS):
            raise ValidationError(
                f"Accounts need an address of {' or '.join(settings.SIGN_UP_DOMAINS)}."
            )
        return address

    def save_user(self, request: HttpRequest, user: User, form: Any, commit: bool = True) -> User:
        user = super().save_user(request, user, form, commit=False)
        # An account waits for an administrator; allauth tells its owner so at sign-in.
        user.is_active = not settings.SIGN_UP_APPROVAL
        if commit:
            user.save()
        return user


class InstituteAccounts(DefaultSocialAccountAdapter):  # type: ignore[misc]
    """Accounts of the institute's OpenID Connect server."""

    def is_open_for_signup(self, request: HttpRequest, sociallogin: SocialLogin) -> bool:
        return is_allowed_address(sociallogin.user.email or "", settings.SIGN_UP_DOMAINS)

    def save_user(self, request: HttpRequest, sociallogin: SocialLogin, form: Any = None) -> User:
        user: User = super().save_user(request, sociallogin, form)
        user.is_active = not settings.SIGN_UP_APPROVAL
        user.save(update_fields=["is_active"])
        _move_to_group(user, sociallogin)
        return user

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        """At each sign-in follow what the institute says of a known person's group."""
        if sociallogin.is_existing:
            _move_to_group(sociallogin.user, sociallogin)


def _move_to_group(user: User, sociallogin: SocialLogin) -> None:
    """Put a person into the first of our groups that the institute names."""
    if not settings.OIDC_GROUP_CLAIM:
        return
    claim = _claims(sociallogin).get(settings.OIDC_GROUP_CLAIM)
    group = Group.objects.filter(name__in=group_names(claim), is_active=True).first()
    if group is not None and user.group_id != group.pk:
        people.move(user=user, group=group)


def _claims(sociallogin: SocialLogin) -> dict[str, Any]:
    """Return what the ID token and the userinfo page say, whichever way allauth keeps them."""
    data = sociallogin.account.extra_data or {}
    found: dict[str, Any] = {}
    for part in (data, data.get("id_token"), data.get("userinfo")):
        found |= part if isinstance(part, dict) else {}
    return found
