"""Asking for more, deciding, dividing, the grid, invitations."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client

from quotas.models import LimitRow, QuotaRequest, User
from quotas.services import limits
from quotas.services.limits import Holder

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("redis_url", "gateway")]

ASK = {"service_class": "batch", "name": "queued", "value": "64", "until": "2099-01-01",
       "reason": "paper deadline"}  # fmt: skip


def asked(alice: Any, as_user: Any) -> QuotaRequest:
    import datetime as dt

    until = (dt.datetime.now(dt.UTC) + dt.timedelta(days=20)).date().isoformat()
    answer = as_user(alice).post("/quota/", ASK | {"until": until})
    assert answer.status_code == 302, answer.content.decode()
    return QuotaRequest.objects.get()


def test_a_request_is_asked_approved_and_in_force(alice: Any, admin: Any, as_user: Any) -> None:
    """
    From asking to effect: the raise is a limit row of the person that ends by itself.
    """
    assert "Queued: 16" in as_user(alice).get("/quota/").content.decode()
    request = asked(alice, as_user)
    page = as_user(admin).get(f"/quota/{request.pk}/").content.decode()
    assert "paper deadline" in page
    assert "Has now" in page  # whoever decides must not have to look it up

    as_user(admin).post(f"/quota/{request.pk}/", {"do": "approve", "value": "48", "answer": "ok"})

    row = LimitRow.objects.get(user=alice)
    assert (row.value, row.ends_at is not None) == (48, True)
    assert "approved" in as_user(alice).get("/quota/").content.decode()


def test_refusing_changes_no_limit(alice: Any, admin: Any, as_user: Any) -> None:
    """
    A refused request leaves the limits alone and shows the answer.
    """
    request = asked(alice, as_user)
    as_user(admin).post(
        f"/quota/{request.pk}/", {"do": "refuse", "value": "1", "answer": "too much"}
    )

    assert not LimitRow.objects.exists()
    assert "too much" in as_user(alice).get("/quota/").content.decode()


def test_only_deciders_see_a_request(alice: Any, bob: Any, charlie: Any, as_user: Any) -> None:
    """
    A request is 404 to everybody who may not decide it, its asker included.
    """
    request = asked(alice, as_user)

    for person in (alice, bob, charlie):
        assert as_user(person).get(f"/quota/{request.pk}/").status_code == 404
    assert as_user(bob).post(f"/quota/{request.pk}/withdraw/").status_code == 404


@pytest.mark.parametrize("change", [{"value": "-1"}, {"until": "2001-01-01"}, {"name": "nonsense"},
                                    {"reason": ""}])  # fmt: skip
def test_a_wrong_request_is_refused_in_words(
    alice: Any, as_user: Any, change: dict[str, str]
) -> None:
    """
    What cannot be asked is said beside its field, and nothing is stored.
    """
    assert as_user(alice).post("/quota/", ASK | change).status_code == 400
    assert not QuotaRequest.objects.exists()


def test_an_owner_divides_within_the_group(
    group: Any, alice: Any, bob: Any, charlie: Any, as_user: Any
) -> None:
    """
    An owner sets members' limits; other people's groups are not there.
    """
    group.owners.add(alice)
    form = {"member": bob.pk, "service_class": "batch", "name": "queued", "value": "4"}

    assert as_user(alice).post("/group/divide/", form).status_code == 302
    assert LimitRow.objects.get(user=bob).value == 4
    assert as_user(alice).post("/group/divide/", form | {"member": charlie.pk}).status_code == 404
    assert as_user(bob).get("/group/").status_code == 404
    assert as_user(bob).post("/group/divide/", form).status_code == 404


def plan_in(page: str) -> str:
    found = re.search(r'name="plan" value="([^"]+)"', page)
    assert found, page
    return found[1]


def test_the_grid_previews_then_applies_all(alice: Any, bob: Any, admin: Any, as_user: Any) -> None:
    """
    An edit of many is shown first, changes nothing, and is applied as a whole.
    """
    browser = as_user(admin)
    many = {"limit": "queued", "class": "batch", "do": "many", "op": "raise", "amount": "50",
            "who": [alice.pk, bob.pk]}  # fmt: skip
    page = browser.post("/quota/grid/preview/", many).content.decode()

    assert "Preview: nothing is changed yet" in page
    assert not LimitRow.objects.exists()

    browser.post("/quota/grid/apply/", {"plan": plan_in(page)})
    assert sorted(LimitRow.objects.values_list("user__username", "value")) == [
        ("alice", 24),
        ("bob", 24),
    ]


def test_the_grid_edits_every_level_and_keeps_what_was_right(
    alice: Any, group: Any, admin: Any, as_user: Any
) -> None:
    """
    One page sets everyone's, a group's and a person's value; a slip is named and loses nothing,
    and one comes back to where one was.
    """
    browser = as_user(admin)
    where = {"limit": "queued", "class": "batch", "q": "al", "page": "1"}
    edits = where | {"do": "edits", "group-everyone": "30", f"group-{group.pk}": "2k",
                     f"own-{alice.pk}": "1,5k"}  # fmt: skip
    page = browser.post("/quota/grid/preview/", edits).content.decode()
    assert "1 entry cannot be taken" in page
    assert "1,5k" in page

    answer = browser.post("/quota/grid/apply/", where | {"plan": plan_in(page)})

    assert answer["Location"] == "/quota/grid/?limit=queued&class=batch&q=al&page=1"
    found = LimitRow.objects.values_list("level", "per", "value").order_by("value")
    assert list(found) == [("everyone", "person", 30), ("group", "person", 2000)]
    shown = browser.get(answer["Location"]).content.decode()
    assert f'name="group-{group.pk}"' in shown


def test_a_change_of_many_reaches_all_of_the_filter(
    alice: Any, bob: Any, charlie: Any, group: Any, admin: Any, as_user: Any
) -> None:
    """
    Nobody has to tick a thousand boxes: the whole filter is one choice, and nobody outside it.
    """
    many = {"limit": "queued", "class": "batch", "do": "many", "op": "set", "amount": "40",
            "all": "1", "group": str(group.pk)}  # fmt: skip
    browser = as_user(admin)
    browser.post(
        "/quota/grid/apply/",
        {"plan": plan_in(browser.post("/quota/grid/preview/", many).content.decode())},
    )
    assert sorted(LimitRow.objects.values_list("user__username", flat=True)) == ["alice", "bob"]


def test_an_old_preview_is_refused_as_a_whole(
    alice: Any, bob: Any, admin: Any, as_user: Any
) -> None:
    """
    When somebody changed one of the limits meanwhile, nothing of the preview is applied.
    """
    browser = as_user(admin)
    edits = {"limit": "queued", "class": "batch", "do": "edits", f"own-{alice.pk}": "5",
             f"own-{bob.pk}": "2k"}  # fmt: skip
    plan = plan_in(browser.post("/quota/grid/preview/", edits).content.decode())
    limits.set_limit(holder=Holder(user=bob), service_class="batch", name="queued", value=9)

    browser.post("/quota/grid/apply/", {"plan": plan})

    assert list(LimitRow.objects.values_list("user__username", "value")) == [("bob", 9)]


def test_a_preview_belongs_to_the_one_who_made_it(alice: Any, admin: Any, as_user: Any) -> None:
    """
    A plan that was changed, or made by another administrator, is refused.
    """
    other = User.objects.create_user("other", is_staff=True)
    edits = {"limit": "queued", "class": "batch", "do": "edits", f"own-{alice.pk}": "5"}
    plan = plan_in(as_user(admin).post("/quota/grid/preview/", edits).content.decode())

    as_user(other).post("/quota/grid/apply/", {"plan": plan})
    as_user(admin).post("/quota/grid/apply/", {"plan": plan[:-2]})

    assert not LimitRow.objects.exists()


def test_the_csv_goes_out_and_comes_back(alice: Any, admin: Any, as_user: Any) -> None:
    """
    The CSV of all limits, edited, comes back as a preview; lines that cannot be read are named.
    """
    from django.core.files.uploadedfile import SimpleUploadedFile

    limits.set_limit(holder=Holder(user=alice), service_class="batch", name="queued", value=9)
    browser = as_user(admin)
    text = browser.get("/quota/grid/limits.csv").getvalue().decode()
    edited = text.replace(",9,", ",12,") + "user,nobody,batch,queued,person,3,,,\r\n"
    edited = edited.replace(",", ";")  # as spreadsheets of half of Europe write it
    page = browser.post(
        "/quota/grid/csv/", {"file": SimpleUploadedFile("x.csv", edited.encode())}
    ).content.decode()

    assert "1 entry cannot be taken" in page
    browser.post("/quota/grid/apply/", {"plan": plan_in(page)})
    assert LimitRow.objects.get().value == 12


@pytest.mark.parametrize("path", ["", "preview/", "apply/", "limits.csv", "csv/"])
def test_the_grid_is_for_administrators(alice: Any, as_user: Any, path: str) -> None:
    """
    Ordinary people are sent to the administrators' sign-in and change nothing.
    """
    for method in ("get", "post"):
        answer = getattr(as_user(alice), method)(f"/quota/grid/{path}")
        assert answer.status_code in {302, 405}


def test_an_invitation_makes_an_account_in_the_group(
    group: Any, alice: Any, as_user: Any, client: Client
) -> None:
    """
    A link that was shown once lets so many people make themselves an account, and no more.
    """
    group.owners.add(alice)
    made = as_user(alice).post("/group/invite/", {"group": group.pk, "seats": 1, "days": 3})
    link = re.search(r"/join/[\w-]+/", made.content.decode())
    assert link
    assert made["Cache-Control"] == "no-store"

    form = {"username": "dora", "email": "dora@example.org", "password": "correct horse battery"}
    assert client.post(link[0], form | {"password": "12345"}).status_code == 400
    assert client.post(link[0], form).status_code == 302
    assert User.objects.get(username="dora").group == group
    assert Client().get(link[0]).status_code == 404


def test_a_link_that_got_out_is_stopped_by_the_group_s_owner(
    group: Any, alice: Any, bob: Any, as_user: Any
) -> None:
    """
    The group's page lists the links that work, whatever its members' limits are, and its owner,
    nobody else, stops one.
    """
    group.owners.add(alice)
    limits.set_limit(holder=Holder(user=bob), service_class="batch", name="allowed_models",
                     names=["tiny"])  # fmt: skip
    limits.set_limit(holder=Holder(user=bob), service_class="batch", name="tokens_per_day")
    made = as_user(alice).post("/group/invite/", {"group": group.pk, "seats": 5, "days": 3})
    link = re.search(r"/join/[\w-]+/", made.content.decode())
    assert link

    page = as_user(alice).get("/group/").content.decode()
    stop = re.search(r"/group/invite/\d+/stop/", page)
    assert stop
    assert "0 of 5" in page
    assert "no limit (batch)" in page
    assert as_user(bob).post(stop[0]).status_code == 404
    assert Client().get(link[0]).status_code == 200

    assert as_user(alice).post(stop[0]).status_code == 302
    assert Client().get(link[0]).status_code == 404


def test_people_may_set_only_what_is_theirs(alice: Any, as_user: Any) -> None:
    """
    The profile saves zone and theme, and ignores rights that are slipped in.
    """
    form = {"time_zone": "Europe/Berlin", "theme": "dark", "is_staff": "on", "share": "99"}
    browser = as_user(alice)
    assert browser.post("/profile/", form).status_code == 302
    alice.refresh_from_db()

    assert (alice.time_zone, alice.theme, alice.is_staff, alice.share) == (
        "Europe/Berlin", "dark", False, 1,
    )  # fmt: skip
    page = browser.get("/profile/").content.decode()
    assert 'data-theme="dark"' in page
    assert "Times in Europe/Berlin" in page
    assert browser.get("/profile/my-data.json").json()


def test_trying_a_model_needs_an_own_live_interactive_key(
    alice: Any, bob: Any, as_user: Any
) -> None:
    """
    The page gets a credential of five minutes for such a key, and for no other.
    """
    import time

    from django.conf import settings

    from quotas.services import keys
    from quotas.snapshots import credentials

    chat = keys.issue(owner=alice, name="chat", service_class="interactive").key
    batch = keys.issue(owner=alice, name="batch", service_class="batch").key
    answer = as_user(alice).post("/try/credential/", {"key": chat.public_id})
    found = credentials.verify(settings.SECRET_KEY, answer.json()["credential"], time.time())

    assert (found.scope, found.key_digest) == ("try", chat.digest)
    assert found.expires_at <= time.time() + 300
    assert answer["Cache-Control"] == "no-store"
    assert as_user(alice).post("/try/credential/", {"key": batch.public_id}).status_code == 400
    assert as_user(bob).post("/try/credential/", {"key": chat.public_id}).status_code == 400
    keys.disable(key=chat)
    assert as_user(alice).post("/try/credential/", {"key": chat.public_id}).status_code == 400
