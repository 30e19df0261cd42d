"""Who may open an account, and what the institute's sign-in tells us about a person."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from allauth.account.adapter import DefaultAccountAdapter
from allauth.socialaccount.adapter import DefaultSocialAccountAdapter
from django.conf import settings
from django.core.exceptions import ValidationError
from django.http import HttpRequest

from quotas.models import Group

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
        return user

    def pre_social_login(self, request: HttpRequest, sociallogin: SocialLogin) -> None:
        """Put a known person into the first of our groups that the institute names."""
        if not settings.OIDC_GROUP_CLAIM or not sociallogin.is_existing:
            return
        claim = (sociallogin.account.extra_data or {}).get(settings.OIDC_GROUP_CLAIM)
        group = Group.objects.filter(name__in=group_names(claim), is_active=True).first()
        user: User = sociallogin.user
        if group is not None and user.group_id != group.pk:
            user.group = group
            user.save(update_fields=["group"])
