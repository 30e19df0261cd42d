"""People and groups."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from django.contrib import admin, messages
from django.contrib.auth.admin import UserAdmin
from django.contrib.auth.models import Group as PermissionGroup
from django.db.models import Count, Q, QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from quotas.admin.base import BooksAdmin, action, display
from quotas.models import Group, User
from quotas.services import keys, people

MOST_PEOPLE = 200  # on one page that names each of them

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
    actions = ["revoke_all_keys"]
    actions_detail = ["ask_to_revoke"]
    add_fieldsets = [
        (
            None,
            {
                "fields": [
                    "username", "email", "group", "usable_password", "password1", "password2",
                ],
                "description": "The password is good for one thing: choosing another. Whoever "
                "signs in with the institute's account needs none.",
            },
        ),
    ]  # fmt: skip
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

    def save_model(self, request: HttpRequest, obj: User, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if not change and obj.has_usable_password():
            people.password_given.send(User, user=obj)

    def user_change_password(self, request: HttpRequest, id: str, form_url: str = "") -> Any:
        """Set a password; that of somebody else is theirs only once they have replaced it."""
        answer = super().user_change_password(request, id, form_url)
        person = self.get_object(request, id)
        if answer.status_code == HTTPStatus.FOUND and person and person != request.user:
            people.password_given.send(User, user=person)
        return answer

    @display(description="keys", ordering="keys_count")
    def key_count(self, person: Any) -> int:
        return int(person.keys_count)

    def has_revoke_keys_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        """Who may change keys may end them."""
        return request.user.has_perm("quotas.change_apikey")

    @action(
        description="Revoke all keys of the selected people", permissions=["view", "revoke_keys"]
    )
    def revoke_all_keys(self, request: HttpRequest, chosen: QuerySet[User]) -> HttpResponse | None:
        """Ask first, with names and numbers; end the keys of exactly the people named there."""
        if chosen.count() > MOST_PEOPLE:
            message = f"Nothing is revoked: choose at most {MOST_PEOPLE} people at a time."
            self.message_user(request, message, messages.ERROR)
            return None
        if "confirmed" not in request.POST:
            return self._confirmation(request, chosen)
        ended = keys.revoke_all(owners=list(chosen))
        plural = "key is" if ended == 1 else "keys are"
        self.message_user(
            request, f"{ended} {plural} revoked. Every gateway refuses them within 5 seconds."
        )
        return None

    @action(
        description="Revoke all keys",
        url_path="revoke-all-keys",
        permissions=["view", "revoke_keys"],
    )
    def ask_to_revoke(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """Ask the same question about the one person of this page."""
        person = self.get_object(request, object_id)
        if person is None:
            raise Http404
        return self._confirmation(request, User.objects.filter(pk=person.pk))

    def _confirmation(self, request: HttpRequest, chosen: QuerySet[User]) -> HttpResponse:
        live = Count("keys", filter=Q(keys__revoked_at=None), distinct=True)
        named = list(chosen.annotate(to_revoke=live).order_by("username"))
        context = {
            **self.admin_site.each_context(request),
            "people": named,
            "total": sum(person.to_revoke for person in named),
        }
        return TemplateResponse(request, "admin/quotas/user/revoke_keys.html", context)


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
