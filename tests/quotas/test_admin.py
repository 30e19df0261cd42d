"""The administrators' pages of the books."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import redis
from django.contrib.admin import site
from django.test import Client
from django.urls import reverse

from quotas.models import ApiKey, LimitRow, User
from quotas.services import limits, usage
from quotas.services.limits import Holder
from quotas.snapshots import keyformat
from quotas.usage_rows import parse
from tests.quotas.helpers import published, record

pytestmark = pytest.mark.django_db

OURS = sorted(
    model._meta.model_name for model in site._registry if model._meta.app_label == "quotas"
)


@pytest.fixture
def page(client: Client, admin: User) -> Client:
    """Return a signed-in administrator's browser."""
    client.force_login(admin)
    return client


@pytest.mark.parametrize("name", OURS)
def test_every_list_opens(name: str, page: Client, alice: User, issue: Callable) -> None:
    """Each list of the books answers, with rows in it, and can be searched."""
    issue(alice)
    usage.write(
        parsed=[parse(record(1).to_json())], before=usage.position(), after=usage.Position("e")
    )
    limits.set_limit(
        holder=Holder(user=alice), service_class="batch", name="allowed_models", names=["tiny"]
    )

    answer = page.get(reverse(f"admin:quotas_{name}_changelist"), {"q": "alice"})

    assert answer.status_code == 200


def test_a_list_costs_as_many_queries_with_ten_times_the_rows(
    page: Client, alice: User, issue: Callable, django_assert_max_num_queries
) -> None:
    """The list of keys does not ask once per row."""
    address = reverse("admin:quotas_apikey_changelist")
    issue(alice)
    with django_assert_max_num_queries(15) as few:
        page.get(address)
    for number in range(20):
        issue(alice, f"key {number}")
    with django_assert_max_num_queries(15) as many:
        page.get(address)

    assert len(many) <= len(few)


def test_an_issued_secret_is_on_one_answer_and_nowhere_else(page: Client, alice: User) -> None:
    """The page after issuing shows it, is not cached, and neither session nor cookie holds it."""
    answer = page.post(
        reverse("admin:quotas_apikey_add"),
        {
            "owner": alice.pk,
            "name": "x",
            "service_class": "batch",
            "kind": "ordinary",
            "lifetime": "90",
        },
    )
    text = answer.content.decode()
    secret = next(
        word for word in text.replace("<", " ").replace(">", " ").split()
        if keyformat.is_well_formed(word)
    )  # fmt: skip

    assert ApiKey.objects.get().digest == keyformat.digest(secret)
    assert "no-store" in answer["Cache-Control"]
    kept = str(dict(page.session)) + "".join(cookie.value for cookie in page.cookies.values())
    assert secret[10:-4] not in kept


def test_a_name_is_text_and_never_markup(page: Client, alice: User, issue: Callable) -> None:
    """A key called like a script is shown literally."""
    issue(alice, "<script>alert(1)</script>")

    text = page.get(reverse("admin:quotas_apikey_changelist")).content.decode()

    assert "<script>alert(1)" not in text
    assert "&lt;script&gt;alert(1)" in text


def limit_fields(row: LimitRow, **changes: object) -> dict[str, object]:
    """Return the form of a limit as the page shows it."""
    shown = {"name": row.name, "value": row.value, "note": row.note, "seen_edition": row.edition}
    return {**shown, **changes}


def test_two_administrators_cannot_overwrite_each_other(page: Client, alice: User) -> None:
    """An edit made on a row that somebody changed meanwhile is refused and says so."""
    row = limits.set_limit(
        holder=Holder(user=alice), service_class="batch", name="in_flight", value=3
    )
    address = reverse("admin:quotas_limitrow_change", args=[row.pk])
    stale = limit_fields(row, value=9)
    assert page.post(address, limit_fields(row, value=5)).status_code == 302

    answer = page.post(address, stale)

    assert "Somebody changed this limit" in answer.content.decode()
    assert LimitRow.objects.get().value == 5


@pytest.mark.parametrize("value", ["0", "-1", "1e308", "NaN", str(2**63), ""])
def test_a_number_out_of_range_is_a_field_error(value: str, page: Client, alice: User) -> None:
    """A wrong number never becomes no limit by accident."""
    row = limits.set_limit(
        holder=Holder(user=alice), service_class="batch", name="in_flight", value=3
    )

    answer = page.post(
        reverse("admin:quotas_limitrow_change", args=[row.pk]), limit_fields(row, value=value)
    )

    assert answer.status_code == 200
    assert LimitRow.objects.get().value == 3


@pytest.mark.django_db(transaction=True)
def test_an_action_reaches_the_gateways(
    page: Client, alice: User, issue: Callable, valkey: redis.Redis
) -> None:
    """Revoking on the list is published like any other change."""
    key = issue(alice).key

    page.post(
        reverse("admin:quotas_apikey_changelist"),
        {"action": "revoke", "_selected_action": [key.pk]},
    )

    assert published(valkey, key.digest).state == "revoked"


def test_nobody_else_may_look(client: Client, alice: User) -> None:
    """Members of staff only."""
    client.force_login(alice)

    assert client.get(reverse("admin:quotas_apikey_changelist")).status_code == 302


def test_the_trail_shows_old_new_and_who_in_few_queries(
    page: Client, admin: User, alice: User, django_assert_max_num_queries: Callable
) -> None:
    """An edit on a page is there with the editor's name; a full page costs what one line costs."""
    row = limits.set_limit(
        holder=Holder(user=alice), service_class="batch", name="in_flight", value=3
    )
    page.post(reverse("admin:quotas_limitrow_change", args=[row.pk]), limit_fields(row, value=7))
    User.objects.bulk_create(User(username=f"u{n}") for n in range(60))
    with django_assert_max_num_queries(15):
        text = page.get(reverse("admin:pghistory_events_changelist"), {"p": 3}).content.decode()

    assert "value: 3 → 7" in text
    assert "root" in text


@pytest.mark.django_db(transaction=True)
def test_all_keys_of_chosen_people_end_after_a_named_question(
    page: Client, alice: User, admin: User, issue: Callable, valkey: redis.Redis
) -> None:
    """The question names people and numbers and ends nothing; the answer ends theirs alone."""
    chat, night, other = issue(alice).key, issue(alice, "night", "batch").key, issue(admin).key
    asked = {"action": "revoke_all_keys", "_selected_action": [alice.pk]}
    address = reverse("admin:quotas_user_changelist")

    question = page.post(address, asked).content.decode()

    assert "Revoke 2 keys of 1 person?" in question
    assert "<strong>alice</strong>" in question
    assert not ApiKey.objects.exclude(revoked_at=None).exists()

    page.post(address, {**asked, "confirmed": "yes"})

    assert published(valkey, chat.digest).state == "revoked"
    assert published(valkey, night.digest).state == "revoked"
    assert ApiKey.objects.get(revoked_at=None) == other
    trail = page.get(reverse("admin:pghistory_events_changelist")).content.decode()
    assert "revoked_at" in trail
    assert "root" in trail


def test_the_page_of_a_person_asks_and_only_key_keepers_may(
    page: Client, client: Client, alice: User, issue: Callable
) -> None:
    """One person's page leads to the same question; staff without the right get 403."""
    issue(alice)
    address = reverse("admin:quotas_user_ask_to_revoke", args=[alice.pk])

    detail = page.get(reverse("admin:quotas_user_change", args=[alice.pk])).content.decode()
    assert address in detail
    assert "Revoke 1 key of 1 person?" in page.get(address).content.decode()

    nobody = reverse("admin:quotas_user_ask_to_revoke", args=["nobody"])
    assert page.get(nobody).status_code == 404
    client.force_login(User.objects.create(username="clerk", is_staff=True))
    assert client.get(address).status_code == 403
    assert ApiKey.objects.get().revoked_at is None
