"""Limits as CSV, out and in: what is written can be edited in a spreadsheet and read back.

Reading makes a plan, never a change: the rows that differ (as `bulk.Change`, applied by
`bulk.apply`, all or none) and the lines that cannot be read. A row that is missing from the file
is left as it is; the value `default` takes a row away.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from django.core.exceptions import ValidationError
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from quotas.exports import csv_lines
from quotas.limits import BY_NAME
from quotas.models import ApiKey, Group, LimitRow, User
from quotas.services import limits
from quotas.services.bulk import Change
from quotas.services.limits import Holder

HEADER = (
    "level", "who", "class", "limit", "per", "value", "until", "note", "edition",
)  # fmt: skip
CLEAR = "default"
UNLIMITED = "unlimited"
MOST_LINES = 50_000


@dataclass(frozen=True, slots=True)
class Plan:
    """What a file would change, and which of its lines cannot be read."""

    changes: tuple[Change, ...]
    errors: tuple[tuple[int, str], ...]  # line number, sentence


def write() -> Iterator[str]:
    """Yield every row of limits as CSV."""
    rows = LimitRow.objects.select_related("group", "user", "key").order_by("pk")
    return csv_lines(HEADER, (_cells(row) for row in rows.iterator(chunk_size=2000)))


def read(text: str) -> Plan:
    """Compare a file with the books; a fixed number of queries."""
    header = text.partition("\n")[0]
    # Spreadsheets write semicolons where the comma is part of a number.
    delimiter = ";" if header.count(";") > header.count(",") else ","
    lines = list(csv.DictReader(io.StringIO(text), delimiter=delimiter))[: MOST_LINES + 1]
    if len(lines) > MOST_LINES:
        return Plan((), ((MOST_LINES + 1, f"At most {MOST_LINES} lines."),))
    books = _Books.load()
    changes: list[Change] = []
    errors: list[tuple[int, str]] = []
    for number, cells in enumerate(lines, start=2):
        try:
            change = books.change(_cleaned(cells))
        except ValidationError as error:
            errors.append((number, "; ".join(error.messages)))
        else:
            if change is not None:
                changes.append(change)
    return Plan(tuple(changes), tuple(errors))


def _cells(row: LimitRow) -> list[str | int]:
    who = row.group.name if row.group else row.user.username if row.user else ""
    value = UNLIMITED if row.value is None else str(row.value)
    return [
        row.level,
        row.key.public_id if row.key else who,
        row.service_class,
        row.name,
        row.per,
        value if row.names is None else " ".join(row.names),
        row.ends_at.isoformat() if row.ends_at else "",
        row.note,
        row.edition,
    ]


def _cleaned(cells: Mapping[str | None, str | None]) -> dict[str, str]:
    missing = [name for name in HEADER[:6] if cells.get(name) is None]
    if missing:
        raise ValidationError(f"The line lacks {', '.join(missing)}.")
    # A quote put before a formula on the way out is not part of the text.
    return {name: (cells.get(name) or "").strip().removeprefix("'") for name in HEADER}


@dataclass(frozen=True, slots=True)
class _Books:
    """What the lines are compared with."""

    holders: Mapping[tuple[str, str], Holder]
    rows: Mapping[tuple[Holder, str, str, str, bool], LimitRow]

    @classmethod
    def load(cls) -> _Books:
        holders = {("everyone", ""): limits.EVERYONE}
        holders |= {("group", g.name): Holder(group=g) for g in Group.objects.all()}
        holders |= {("user", u.username): Holder(user=u) for u in User.objects.all()}
        holders |= {
            ("key", k.public_id): Holder(key=k)
            for k in ApiKey.objects.filter(revoked_at__isnull=True)
        }
        rows = {
            (
                Holder(group=row.group, user=row.user, key=row.key),
                row.service_class,
                row.name,
                row.per,
                row.ends_at is None,
            ): row
            for row in LimitRow.objects.select_related("group", "user", "key")
        }
        return cls(holders, rows)

    def change(self, cells: Mapping[str, str]) -> Change | None:
        """Return the change a line asks for; None when the books say the same."""
        holder = self.holders.get((cells["level"], cells["who"]))
        if holder is None:
            raise ValidationError(f"There is no {cells['level']} {cells['who']!r}.")
        ends_at = _instant(cells["until"])
        same = (holder, cells["class"], cells["limit"], cells["per"], ends_at is None)
        row = self.rows.get(same)
        seen = _whole(cells["edition"] or "0", "edition")
        if row is not None and seen not in {0, row.edition}:
            raise ValidationError("Somebody changed this limit since the file was written.")
        is_cleared = cells["value"] == CLEAR
        after = None if is_cleared else _value(cells["limit"], cells["value"])
        before = None if row is None else _of(row)
        if is_cleared and row is None:
            return None
        if not is_cleared:
            if row is not None and (before, row.ends_at, row.note) == (
                after,
                ends_at,
                cells["note"],
            ):
                return None
            _check(holder, cells, after, ends_at)
        return Change(
            holder=holder,
            who=cells["who"] or "everyone",
            service_class=cells["class"],
            name=cells["limit"],
            per=cells["per"],
            before=before,
            before_level=holder.level if row is not None else "",
            after=after,
            is_cleared=is_cleared,
            ends_at=ends_at,
            note=cells["note"],
            edition=row.edition if row is not None else 0,
        )


def _of(row: LimitRow) -> int | tuple[str, ...] | None:
    return row.value if row.names is None else tuple(row.names)


def _value(name: str, text: str) -> int | tuple[str, ...] | None:
    spec = BY_NAME.get(name)
    if spec is not None and spec.is_list:
        return tuple(sorted(set(text.split())))
    return None if text == UNLIMITED else _whole(text, "value")


def _whole(text: str, column: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19:
        raise ValidationError(f"{column} {text!r} is no whole number.")
    return int(text)


def _instant(text: str) -> dt.datetime | None:
    if not text:
        return None
    try:
        moment = parse_datetime(text)
    except ValueError:
        moment = None
    if moment is None:
        raise ValidationError(f"until {text!r} is no date and time.")
    return timezone.make_aware(moment) if timezone.is_naive(moment) else moment


def _check(
    holder: Holder,
    cells: Mapping[str, str],
    after: int | tuple[str, ...] | None,
    ends_at: dt.datetime | None,
) -> None:
    is_list = isinstance(after, tuple)
    limits.check(
        holder=holder,
        service_class=cells["class"],
        name=cells["limit"],
        per=cells["per"],
        value=None if isinstance(after, tuple) else after,
        names=after if is_list and isinstance(after, tuple) else None,
        ends_at=ends_at,
    )
