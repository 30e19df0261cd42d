"""People and groups."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import Group as PermissionGroup
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from quotas.admin.base import BooksAdmin, display
from quotas.models import Group, User

# Django's own groups hold permissions; two things called group would only confuse.
admin.site.unregister(PermissionGroup)


class PersonCreationForm(UserCreationForm):  # type: ignore[misc]
    """Makes a person of our own user model."""

    class Meta(UserCreationForm.Meta):  # type: ignore[misc]
        model = User


@admin.register(User)
class PersonAdmin(BooksAdmin[User], UserAdmin):  # type: ignore[type-arg]
    """People with an account: their group, their share, whether they may come in."""

    form = UserChangeForm
    add_form = PersonCreationForm
    change_password_form = AdminPasswordChangeForm
    list_display = ["username", "email", "group", "share", "key_count", "is_active", "is_staff"]
    list_filter = ["is_active", "group", "is_staff", "is_superuser"]
    list_select_related = ["group"]
    search_fields = ["username", "email", "first_name", "last_name"]
    autocomplete_fields = ["group"]
    filter_horizontal = ["user_permissions"]
    fieldsets = [
        (None, {"fields": ["username", "password"]}),
        ("Person", {"fields": ["first_name", "last_name", "email", "time_zone"]}),
        ("Fair share", {"fields": ["group", "share", "wants_quota_mail"]}),
        (
            "May",
            {
                "fields": ["is_active", "is_staff", "is_superuser", "user_permissions"],
                "description": "A person who is not active is signed out, and every key of "
                "theirs is refused within 5 seconds.",
            },
        ),
        ("Times", {"fields": ["last_login", "date_joined"]}),
    ]

    def get_queryset(self, request: HttpRequest) -> QuerySet[User]:
        return super().get_queryset(request).annotate(keys_count=Count("keys"))

    @display(description="keys", ordering="keys_count")
    def key_count(self, person: Any) -> int:
        return int(person.keys_count)


@admin.register(Group)
class GroupAdmin(BooksAdmin[Group]):
    """Research groups, courses, projects."""

    list_display = ["name", "member_count", "is_active"]
    list_filter = ["is_active"]
    search_fields = ["name"]
    autocomplete_fields = ["owners"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Group]:
        return super().get_queryset(request).annotate(members_count=Count("members"))

    @display(description="people", ordering="members_count")
    def member_count(self, group: Any) -> int:
        return int(group.members_count)
