"""Setting limits: every limit, at every level, by service and by command."""

from __future__ import annotations

import dataclasses
import datetime as dt
import io
import json
from collections.abc import Callable

import pytest
from django.core.exceptions import ValidationError
from django.core.management import CommandError, call_command
from django.utils import timezone

from quotas import limits as registry
from quotas.counts import read_count
from quotas.limits import SPECS, LimitSpec, offered
from quotas.models import ApiKey, LimitRow, User
from quotas.picture import Scope, take
from quotas.services import limits
from quotas.services.limits import EVERYONE, Holder
from quotas.snapshots.windows import LARGEST_PER_MINUTE

pytestmark = pytest.mark.django_db

LEVELS = ("everyone", "group", "user", "key")
MATRIX = [
    (spec, level, service_class)
    for spec in offered()
    for level in LEVELS
    for service_class in spec.classes
    if level != "key" or "key" in spec.pers
]


@pytest.fixture
def key(alice: User, issue: Callable) -> ApiKey:
    """Return a key of Alice."""
    return issue(alice).key


def holder_of(level: str, key: ApiKey) -> Holder:
    """Return the holder of that level that concerns the key."""
    return {
        "everyone": EVERYONE,
        "group": Holder(group=key.owner.group),
        "user": Holder(user=key.owner),
        "key": Holder(key=key),
    }[level]


def seen_by_gateway(key: ApiKey, spec: LimitSpec, service_class: str, per: str) -> object:
    """Return what a gateway reads of one limit of the key."""
    picture = take(timezone.now(), 1, Scope(key_pks=frozenset({key.pk})))
    found = picture.keys[key.digest].limits(service_class)
    return found.allowed_models if spec.is_list else getattr(found, per).get(spec.name)


@pytest.mark.parametrize(
    ("spec", "level", "service_class"),
    MATRIX,
    ids=[f"{spec.name}-{level}-{service_class}" for spec, level, service_class in MATRIX],
)
def test_each_limit_at_each_level_binds_and_is_read_back(
    spec: LimitSpec, level: str, service_class: str, key: ApiKey
) -> None:
    """By the command, for one class only; the gateway and the person read the same."""
    target = {"group": "astronomy", "user": "alice", "key": key.public_id}.get(level, True)
    text, value = ("tiny,large", ("large", "tiny")) if spec.is_list else ("7", 7)
    options = {level: target, "service_class": service_class, spec.name: text, "json": True}
    out = io.StringIO()
    # A mutually exclusive, required option must be among the arguments, not only the options.
    flag = f"--{level}" if level == "everyone" else f"--{level}={target}"
    options.pop(level)
    call_command("setlimit", flag, stdout=out, **options)

    told = json.loads(out.getvalue())["limits"][0]
    per = told["per"]
    assert (told["level"], told["limit"]) == (level, spec.name)
    assert seen_by_gateway(key, spec, service_class, per) == value
    other = "batch" if service_class == "interactive" else "interactive"
    assert seen_by_gateway(key, spec, other, per) != value
    shown = next(
        item
        for item in limits.effective(key=key, service_class=service_class)
        if (item.spec.name, item.per) == (spec.name, per)
    )
    assert (shown.level, shown.names if spec.is_list else shown.value) == (level, value)


def test_a_misspelt_limit_is_refused_and_the_right_ones_are_named(alice: User) -> None:
    """Neither service nor command takes a name that binds nothing."""
    with pytest.raises(ValidationError, match="in_flight"):
        limits.set_limit(holder=Holder(user=alice), service_class="batch", name="inflight", value=1)
    with pytest.raises(CommandError, match="unrecognized"):
        call_command("setlimit", "--user=alice", "--inflight=1")
    assert not LimitRow.objects.exists()


def test_what_would_not_bind_cannot_be_set(alice: User, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit that is not enforced, or not in this class, or for this level, is offered nowhere."""
    common = {"holder": Holder(user=alice), "value": 1}
    with pytest.raises(ValidationError, match="batch only"):
        limits.set_limit(**common, service_class="interactive", name="enqueued_batch_tokens")
    with pytest.raises(ValidationError, match="counted per"):
        limits.set_limit(**common, service_class="batch", name="in_flight", per="group")
    planned = dataclasses.replace(SPECS[0], name="planned", is_enforced=False)
    monkeypatch.setattr(registry, "BY_NAME", {"planned": planned})
    with pytest.raises(ValidationError, match="no limit"):
        limits.set_limit(**common, service_class="batch", name="planned")


def test_a_minute_s_worth_is_bounded_by_what_is_counted_exactly(alice: User) -> None:
    """Beyond it Lua's doubles would round, and the limit would not be what was set."""
    common = {"holder": Holder(user=alice), "service_class": "batch", "name": "tokens_per_minute"}
    limits.set_limit(**common, value=LARGEST_PER_MINUTE)
    with pytest.raises(ValidationError):
        limits.set_limit(**common, value=LARGEST_PER_MINUTE + 1)


@pytest.mark.parametrize("value", [-1, 2**53, 1.5, "7", True, None])
def test_a_wrong_value_is_refused_and_changes_nothing(value: object, alice: User) -> None:
    """A wrong number never ends as no limit."""
    holder = Holder(user=alice)
    limits.set_limit(holder=holder, service_class="batch", name="in_flight", value=3)

    with pytest.raises(ValidationError):
        limits.set_limit(holder=holder, service_class="batch", name="in_flight", value=value)

    assert LimitRow.objects.get().value == 3


@pytest.mark.parametrize(
    ("text", "number"),
    [("40000", 40_000), ("40,000", 40_000), ("40_000", 40_000), ("200k", 200_000),
     ("1.5M", 1_500_000), ("0", 0), ("1,5", None), ("1,5M", None), ("1.5", None), ("-1", None),
     ("nan", None), ("1e3", None), ("", None), ("٣", None)],
)  # fmt: skip
def test_a_number_is_read_as_it_was_meant_or_not_at_all(text: str, number: int | None) -> None:
    """What could mean two numbers, or none, is refused in the grid and by the command alike."""
    if number is None:
        with pytest.raises(ValueError, match="whole number"):
            read_count(text)
    else:
        assert read_count(text) == number


def test_a_raise_stands_beside_the_lasting_row(alice: User) -> None:
    """Both are kept; a second raise replaces the first; clearing takes both."""
    holder = Holder(user=alice)
    ends = timezone.now() + dt.timedelta(days=1)
    common = {"holder": holder, "service_class": "batch", "name": "in_flight"}
    limits.set_limit(**common, value=3)
    limits.set_limit(**common, value=8, ends_at=ends)
    limits.set_limit(**common, value=9, ends_at=ends + dt.timedelta(days=1))

    assert sorted(LimitRow.objects.values_list("value", flat=True)) == [3, 9]
    assert limits.clear_limit(**common)
    assert not LimitRow.objects.exists()


def test_an_end_in_the_past_is_refused(alice: User) -> None:
    """A raise that is already over would look set and not bind."""
    with pytest.raises(ValidationError):
        limits.set_limit(
            holder=Holder(user=alice),
            service_class="batch",
            name="in_flight",
            value=8,
            ends_at=timezone.now(),
        )


def test_an_editor_who_saw_an_older_edition_is_refused(alice: User) -> None:
    """Two editors never overwrite each other without noticing."""
    common = {"holder": Holder(user=alice), "service_class": "batch", "name": "in_flight"}
    first = limits.set_limit(**common, value=3, edition=0)
    limits.set_limit(**common, value=4, edition=first.edition)

    with pytest.raises(ValidationError, match="meanwhile"):
        limits.set_limit(**common, value=9, edition=first.edition)
    with pytest.raises(ValidationError, match="meanwhile"):
        limits.set_limit(**common, value=9, edition=0)


def test_the_person_s_card_is_one_query(
    key: ApiKey, alice: User, django_assert_num_queries: Callable
) -> None:
    """What binds and why costs the same however many rows there are."""
    for name in ("in_flight", "queued"):
        limits.set_limit(holder=EVERYONE, service_class="batch", name=name, value=5, per="key")
        limits.set_limit(holder=Holder(key=key), service_class="batch", name=name, value=4)
    with django_assert_num_queries(1):
        found = limits.effective(key=key, service_class="batch")

    assert {item.value for item in found if item.per == "key" and not item.spec.is_list} >= {4}
