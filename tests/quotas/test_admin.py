"""The administrators' pages of the books."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis
from django.contrib.admin import site
from django.core.files.uploadedfile import SimpleUploadedFile
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


@pytest.fixture
def address() -> str:
    """Return the grid of batch requests in flight."""
    return reverse("admin:quotas_limitrow_grid") + "?name=in_flight&service_class=batch"


def applied(page: Client, answer: Any) -> str:
    """Press the button of a preview and return what the next page says."""
    signed = answer.context["signed"]
    done = page.post(reverse("admin:quotas_limitrow_apply"), {"changes": signed}, follow=True)
    return done.content.decode()


def test_an_edited_cell_is_previewed_then_applied(
    page: Client, address: str, alice: User, bob: User
) -> None:
    """Only the cell that was typed over changes, and only after the preview."""
    typed = {f"override-{alice.pk}": "7", f"override-{bob.pk}": "", f"seen-{bob.pk}": ""}
    answer = page.post(address, typed)
    assert not LimitRow.objects.exists()

    assert "1 changed" in applied(page, answer)

    assert LimitRow.objects.values_list("user", "value", "per").get() == (alice.pk, 7, "person")
    emptied = {f"override-{alice.pk}": "", f"seen-{alice.pk}": "7"}
    applied(page, page.post(address, emptied))
    assert not LimitRow.objects.exists()


def test_selected_people_are_raised_until_a_date(
    page: Client, address: str, alice: User, bob: User
) -> None:
    """The raise ends by itself at the end of that local day, with its reason."""
    chosen = {"chosen": [alice.pk, bob.pk], "operation": "raise", "amount": 50}
    applied(page, page.post(address, {**chosen, "until": "2031-01-31", "note": "end of term"}))

    rows = LimitRow.objects.values_list("value", "note", "ends_at")
    assert [(value, note, f"{ends:%Y-%m-%d %H}") for value, note, ends in rows] == [
        (3, "end of term", "2031-02-01 00")
    ] * 2


def test_a_preview_that_was_overtaken_changes_nothing(
    page: Client, address: str, alice: User, bob: User
) -> None:
    """Somebody else's edit between preview and click wins; the page says why."""
    answer = page.post(address, {f"override-{alice.pk}": "7", f"override-{bob.pk}": "8"})
    limits.set_limit(holder=Holder(user=bob), service_class="batch", name="in_flight", value=5)

    assert "Nothing was changed" in applied(page, answer)
    assert LimitRow.objects.values_list("user", "value").get() == (bob.pk, 5)


@pytest.mark.parametrize("text", ["-1", "0", "1e5", "many", "9" * 30])
def test_a_wrong_cell_is_named(text: str, page: Client, address: str, alice: User) -> None:
    """The grid comes back with a sentence and no preview."""
    answer = page.post(address, {f"override-{alice.pk}": text})

    assert "signed" not in answer.context
    assert not LimitRow.objects.exists()


def test_limits_go_out_and_in_as_csv(page: Client, alice: User) -> None:
    """A downloaded file, edited, is previewed and applied; a wrong line is named."""
    limits.set_limit(holder=Holder(user=alice), service_class="batch", name="in_flight", value=5)
    text = page.get(reverse("admin:quotas_limitrow_csv")).getvalue().decode()
    upload = reverse("admin:quotas_limitrow_csv_in")

    def read(changed: str) -> Any:
        return page.post(upload, {"file": SimpleUploadedFile("limits.csv", changed.encode())})

    wrong = read(text.replace("in_flight", "inflight"))
    assert "Line 2" in wrong.content.decode()
    applied(page, read(text.replace("person,5", "person,6")))
    assert LimitRow.objects.get().value == 6


def test_the_grid_costs_as_many_queries_for_many(
    page: Client, address: str, alice: User, django_assert_max_num_queries: Callable
) -> None:
    """A hundred people on a page cost what one costs."""
    with django_assert_max_num_queries(15) as few:
        page.get(address)
    User.objects.bulk_create(User(username=f"u{n}", group=alice.group) for n in range(120))
    with django_assert_max_num_queries(15) as many:
        page.get(address)

    assert len(many) <= len(few)


@pytest.mark.parametrize("name", ["grid", "apply", "csv", "csv_in"])
def test_a_member_of_staff_without_the_right_sees_no_grid(
    name: str, client: Client, alice: User
) -> None:
    """Staff may be let in for something else."""
    alice.is_staff = True
    alice.save()
    client.force_login(alice)

    assert client.get(reverse(f"admin:quotas_limitrow_{name}")).status_code == 403
