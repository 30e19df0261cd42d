"""Forms about a person's account."""

from __future__ import annotations

import zoneinfo
from typing import TYPE_CHECKING, Any

from allauth.account.forms import ChangePasswordForm, LoginForm
from django import forms
from django.conf import settings
from django.forms.utils import flatatt
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext_lazy as _

from quotas.models import User

# Django's form classes take a type in the stubs only, not at run time.
if TYPE_CHECKING:
    UserForm = forms.ModelForm[User]
else:
    UserForm = forms.ModelForm


class SignIn(LoginForm):  # type: ignore[misc]
    """Sign-in by e-mail address or user name; labels instead of placeholders."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["login"].label = _("E-mail or user name")
        self.fields["login"].widget.attrs.update(placeholder="", autocomplete="username")
        self.fields["password"].widget.attrs["placeholder"] = ""
        self.fields["password"].help_text = ""


class ChangePassword(ChangePasswordForm):  # type: ignore[misc]
    """Another password has to be another one: a printed one would stay good for ever."""

    def clean(self) -> dict[str, Any]:
        found: dict[str, Any] = super().clean() or self.cleaned_data
        if found.get("password1") and found.get("password1") == found.get("oldpassword"):
            self.add_error("password1", _("This is the password you have now. Choose another."))
        return found


class ZoneSelect(forms.Select):
    """A list of six hundred zones written in one go: a template for each would take 0.2 s."""

    def render(
        self, name: str, value: Any, attrs: dict[str, Any] | None = None, renderer: Any = None
    ) -> SafeString:
        built = flatatt(self.build_attrs(self.attrs, {**(attrs or {}), "name": name}))
        options = format_html_join(
            "",
            '<option value="{}"{}>{}</option>',
            (
                (key, mark_safe(" selected") if key == (value or "") else "", label)
                for key, label in self.choices
            ),
        )
        return format_html("<select{}>{}</select>", built, options)


class ProfileForm(UserForm):
    """What a person may set for themselves; nothing here concerns limits or rights."""

    time_zone = forms.ChoiceField(
        required=False, help_text=_("Times are shown in it."), widget=ZoneSelect
    )
    theme = forms.ChoiceField(
        required=False,
        choices=(("", _("as the system")), ("light", _("light")), ("dark", _("dark"))),
    )

    class Meta:
        model = User
        fields = ["first_name", "last_name", "time_zone", "theme", "wants_quota_mail"]
        labels = {"wants_quota_mail": _("Mail me when 80 and 100 % of a limit are used")}
        help_texts = {"wants_quota_mail": _("Daily and monthly limits only.")}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        zones = [(name, name) for name in sorted(zoneinfo.available_timezones())]
        ours = f"as the installation, {settings.TIME_ZONE}"
        self.fields["time_zone"].choices = [("", ours), *zones]  # type: ignore[attr-defined]
