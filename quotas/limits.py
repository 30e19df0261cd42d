"""The limits there are, as data: one entry here makes a limit settable by page, API and command.

A limit is listed as enforced only once the gateway really enforces it; the others are not
offered anywhere, because a limit that does not bind is worse than none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from quotas.snapshots.windows import LARGEST_PER_MINUTE

CLASSES = ("interactive", "batch")
# Largest number a limit may be: Lua counts in doubles, exact up to 2**53.
LARGEST = 2**53 - 1

# (class of service, per) -> the value that is in force when nobody set one.
Defaults = Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True)
class LimitSpec:
    """What one limit means, how it may be counted, and what holds when nobody sets it."""

    name: str
    label: str
    unit: str
    help: str
    pers: tuple[str, ...]  # what it can be counted over: key, person, group
    defaults: Defaults = field(default_factory=lambda: MappingProxyType({}))
    is_list: bool = False  # allowed models: names instead of a number
    may_be_unlimited: bool = True  # whether an empty value ("no limit") may be set
    smallest: int = 0
    window: str = ""  # minute, day or month; "" for limits that are not counted over time
    classes: tuple[str, ...] = CLASSES  # those in which it can bind
    is_enforced: bool = True

    @property
    def largest(self) -> int:
        """Return the largest value that is counted exactly."""
        return LARGEST_PER_MINUTE if self.window == "minute" else LARGEST

    @property
    def flag(self) -> str:
        """Return the option of `manage.py setlimit`, such as --tokens-per-day."""
        return "--" + self.name.replace("_", "-")

    def default(self, service_class: str, per: str) -> int | None:
        """Return what holds when nobody set the limit; None: it does not bind."""
        return self.defaults.get((service_class, per))

    def usual_per(self, level: str) -> str:
        """Return what somebody most likely means by setting the limit at this level."""
        wanted = {"key": "key", "user": "person", "group": "group", "everyone": "person"}[level]
        if wanted in self.pers:
            return wanted
        return "person" if "person" in self.pers and level != "key" else self.pers[0]


SPECS: tuple[LimitSpec, ...] = (
    LimitSpec(
        name="in_flight",
        label="In flight",
        unit="requests",
        help="Most requests that may hold a slot at the same time.",
        pers=("key", "person"),
        # Interactive per person: computed from the pool's slots by the ledger.
        defaults=MappingProxyType(
            {("interactive", "key"): 2, ("batch", "key"): 2, ("batch", "person"): 2}
        ),
        may_be_unlimited=False,
        smallest=1,
    ),
    LimitSpec(
        name="queued",
        label="Queued",
        unit="requests",
        help="Most requests that may wait for a slot at the same time.",
        pers=("key", "person"),
        defaults=MappingProxyType(
            {
                ("interactive", "key"): 8,
                ("interactive", "person"): 16,
                ("batch", "key"): 16,
                ("batch", "person"): 16,
            }
        ),
        may_be_unlimited=False,
        smallest=1,  # without a place to wait in, even what could start at once is refused
    ),
    LimitSpec(
        name="max_prompt_tokens",
        label="Largest prompt",
        unit="tokens",
        help="Largest prompt of one request, as estimated at the door.",
        pers=("key",),
        smallest=1,
    ),
    LimitSpec(
        name="max_output_tokens",
        label="Largest max_tokens",
        unit="tokens",
        help="Largest answer one request may ask for.",
        pers=("key",),
        smallest=1,
    ),
    LimitSpec(
        name="allowed_models",
        label="Allowed models",
        unit="models",
        help="Names of the models that may be used; without it, all.",
        pers=("key",),
        is_list=True,
    ),
    LimitSpec(
        name="requests_per_minute",
        label="Requests per minute",
        unit="requests",
        help="Most requests admitted in any minute.",
        pers=("key", "person", "group"),
        window="minute",
    ),
    LimitSpec(
        name="tokens_per_minute",
        label="Tokens per minute",
        unit="tokens",
        help="Most tokens, prompt and answer together, in any minute.",
        pers=("key", "person", "group"),
        window="minute",
    ),
    LimitSpec(
        name="tokens_per_day",
        label="Tokens per day",
        unit="tokens",
        help="Most tokens in one calendar day of the reporting time zone.",
        pers=("key", "person", "group"),
        window="day",
    ),
    LimitSpec(
        name="tokens_per_month",
        label="Tokens per month",
        unit="tokens",
        help="Most tokens in one calendar month of the reporting time zone.",
        pers=("key", "person", "group"),
        window="month",
    ),
    LimitSpec(
        name="enqueued_batch_tokens",
        label="Enqueued batch tokens",
        unit="tokens",
        help="Most prompt tokens of submitted batch lines that have not ended.",
        pers=("person", "group"),
        classes=("batch",),
    ),
)
BY_NAME: Mapping[str, LimitSpec] = MappingProxyType({spec.name: spec for spec in SPECS})


def offered() -> Iterator[LimitSpec]:
    """Yield the limits that can be set."""
    return (spec for spec in SPECS if spec.is_enforced)


def find(name: str) -> LimitSpec:
    """Return the limit of that name, or say which there are."""
    spec = BY_NAME.get(name)
    if spec is None or not spec.is_enforced:
        known = ", ".join(spec.name for spec in offered())
        raise LookupError(f"There is no limit {name!r}. The limits are: {known}.")
    return spec
