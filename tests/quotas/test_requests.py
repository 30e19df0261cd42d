"""Requests for more, and what a group's owner may do."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable

import pytest
from django.core import mail
from django.core.exceptions import ValidationError
from django.utils import timezone

from quotas.models import LimitRow, QuotaRequest, User
from quotas.services import groups, limits, requests
from quotas.services.limits import Holder

pytestmark = pytest.mark.django_db

WEEK = dt.timedelta(days=7)


def ask(user: User, value: int = 6, **more: object) -> QuotaRequest:
    """Ask for more requests in flight."""
    usual = {"service_class": "batch", "name": "in_flight", "reason": "a paper"}
    return requests.ask(user=user, value=value, until=timezone.now() + WEEK, **{**usual, **more})


def in_flight(user: User, now: dt.datetime | None = None) -> int | None:
    """Return the person's batch requests in flight that are allowed."""
    found = limits.effective(user=user, service_class="batch", now=now)
    return next(i.value for i in found if (i.spec.name, i.per) == ("in_flight", "person"))


def test_an_approved_raise_ends_by_itself(alice: User, admin: User) -> None:
    """What was asked is in force until the date asked for, and then no more."""
    asked = ask(alice)
    assert in_flight(alice) == 2

    requests.approve(request=asked, by=admin)

    assert in_flight(alice) == 6
    assert in_flight(alice, timezone.now() + WEEK + dt.timedelta(seconds=1)) == 2


def test_an_administrator_may_give_something_else(alice: User, admin: User) -> None:
    """Another value, another end, and an answer."""
    until = timezone.now() + dt.timedelta(days=1)
    done = requests.approve(request=ask(alice), by=admin, value=4, until=until, answer="4 will do")

    assert (in_flight(alice), done.granted, done.granted_until) == (4, 4, until)


def test_a_refusal_changes_no_limit_and_says_why(alice: User, admin: User) -> None:
    """The person reads the answer; nothing else happened."""
    done = requests.refuse(request=ask(alice), by=admin, answer="the card is full")

    assert (done.state, done.answer) == ("refused", "the card is full")
    assert not LimitRow.objects.exists()


def test_the_first_decision_counts(alice: User, admin: User) -> None:
    """Two administrators cannot decide the same request differently."""
    asked = ask(alice)
    requests.refuse(request=asked, by=admin, answer="no")

    with pytest.raises(ValidationError, match="already"):
        requests.approve(request=asked, by=admin)
    with pytest.raises(ValidationError):
        requests.withdraw(request=asked, by=alice)


@pytest.mark.parametrize(
    "wrong",
    [{"name": "inflight"}, {"value": 0}, {"value": 2**60}, {"reason": ""}, {"service_class": "x"}],
)
def test_what_could_not_be_granted_cannot_be_asked(wrong: dict, alice: User) -> None:
    """A request is checked like the limit it would become."""
    with pytest.raises(ValidationError):
        ask(alice, **wrong)
    assert not QuotaRequest.objects.exists()


def test_one_open_request_for_a_limit(alice: User) -> None:
    """Asking twice is refused until the first is decided or withdrawn."""
    first = ask(alice)
    with pytest.raises(ValidationError):
        ask(alice, 7)
    requests.withdraw(request=first, by=alice)

    assert ask(alice, 7).state == "open"


def test_who_may_decide(alice: User, bob: User, charlie: User, admin: User) -> None:
    """Administrators and the group's owners; nobody about oneself."""
    alice.group.owners.add(alice, bob)
    asked = ask(alice)

    allowed = [p.username for p in (alice, bob, charlie, admin)
               if requests.may_decide(person=p, request=asked)]  # fmt: skip
    assert allowed == ["bob", "root"]
    assert list(requests.to_decide(person=bob)) == [asked]
    assert not requests.to_decide(person=charlie)
    with pytest.raises(ValidationError):
        requests.approve(request=asked, by=charlie)


def test_both_get_a_mail_after_the_commit(
    alice: User, admin: User, django_capture_on_commit_callbacks: Callable
) -> None:
    """Deciders hear of the request, the person of the decision; a name adds no header."""
    User.objects.filter(pk=alice.pk).update(username="alice\nBcc: all@example.org")
    alice.refresh_from_db()
    with django_capture_on_commit_callbacks(execute=True):
        asked = ask(alice)
    with django_capture_on_commit_callbacks(execute=True):
        requests.approve(request=asked, by=admin)

    assert [message.to for message in mail.outbox] == [[admin.email], [alice.email]]
    assert "\n" not in mail.outbox[0].subject


def test_everything_works_without_a_mail_server(
    alice: User, settings, django_capture_on_commit_callbacks: Callable, admin: User
) -> None:
    """A mail that cannot go stops nothing."""
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", 1
    with django_capture_on_commit_callbacks(execute=True):
        ask(alice)

    assert QuotaRequest.objects.get().state == "open"


def test_an_owner_gives_no_more_than_the_group_has(alice: User, bob: User) -> None:
    """Without a total of the group a member gets at most what the group gives each person."""
    alice.group.owners.add(bob)
    common = {"by": bob, "member": alice, "service_class": "batch", "name": "in_flight"}
    limits.set_limit(
        holder=Holder(group=alice.group),
        service_class="batch",
        name="in_flight",
        value=4,
        per="person",
    )

    with pytest.raises(ValidationError, match="at most 4"):
        groups.divide(**common, value=5)
    groups.divide(**common, value=3)

    assert in_flight(alice) == 3
    groups.divide(**common, value=None)
    assert in_flight(alice) == 4


def test_a_stranger_divides_nothing(alice: User, charlie: User) -> None:
    """Only the owners of the member's group, and administrators."""
    with pytest.raises(ValidationError):
        groups.divide(by=charlie, member=alice, service_class="batch", name="in_flight", value=1)
