"""Forms about a person's account."""

from __future__ import annotations

from typing import Any

from allauth.account.forms import LoginForm


class SignIn(LoginForm):
    """Sign-in by e-mail address or user name; labels instead of placeholders."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["login"].label = "E-mail or user name"
        self.fields["login"].widget.attrs.update(placeholder="", autocomplete="username")
        self.fields["password"].widget.attrs["placeholder"] = ""
        self.fields["password"].help_text = ""
