"""What changes files: receiving, deleting, expiry. Only this module writes their rows."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from types import TracebackType

from django.db import connection, transaction
from django.db.models import Q
from django.utils import timezone

from portal.failpoints import failpoint
from portal.files import config, shelf
from portal.files.lines import MOST_PROBLEMS, Line, LineReader, Problem
from portal.files.models import StoredFile, new_file_id
from portal.openai_api.errors import BadRequest, TooLarge
from quotas.models import ApiKey, User

COPY_LINES = """
COPY file_line (file_id, line_no, "offset", length, custom_id, prompt_tokens, output_tokens, prefix)
FROM STDIN
"""


class Receipt:
    """A batch input on its way in: written, hashed and checked chunk by chunk.

    Leaving the block without `accept` leaves nothing behind.
    """

    def __init__(self) -> None:
        self.reader = LineReader(config.limits())
        self.draft = shelf.Draft()

    def __enter__(self) -> Receipt:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.draft.discard()

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes."""
        most = self.reader.limits.size
        if self.draft.size + len(chunk) > most:
            raise TooLarge(
                f"The file is larger than {most:,} bytes; split it into several batches.",
                code="file_too_large",
                param="file",
            )
        self.draft.write(chunk)
        self.reader.feed(chunk)

    def accept(
        self,
        *,
        owner: User,
        key: ApiKey | None,
        filename: str,
        expires_after_s: int | None = None,
        lenient: bool = False,
    ) -> StoredFile:
        """Keep the file and return its row, or raise 400 naming every bad line.

        With `lenient` the good lines are kept and the bad ones reported in the row: the portal
        shows them and asks before anything starts.
        """
        self.reader.finish()
        if self.reader.problem_count and not (lenient and self.reader.lines):
            raise refusal(self.reader.problems, self.reader.problem_count)
        public_id = new_file_id()
        name = shelf.place(public_id)
        failpoint("file_stored")
        self.draft.keep(name)
        now = timezone.now()
        row = StoredFile(
            public_id=public_id,
            owner=owner,
            key=key,
            filename=clean_filename(filename),
            name=name,
            created_at=now,
            expires_at=now + dt.timedelta(seconds=expires_after_s or config.retention_s()),
        )
        self._describe(row)
        with transaction.atomic():
            row.save(force_insert=True)
            _copy_lines(row, self.reader.lines)
        return row

    def _describe(self, row: StoredFile) -> None:
        row.purpose = StoredFile.Purpose.BATCH
        row.size, row.sha256 = self.draft.size, self.draft.sha256
        row.endpoint, row.model = self.reader.endpoint, self.reader.model
        row.lines = len(self.reader.lines)
        row.prompt_tokens = sum(line.prompt_tokens for line in self.reader.lines)
        row.problems = [as_detail(problem) for problem in self.reader.problems]


def _copy_lines(row: StoredFile, lines: Iterable[Line]) -> None:
    with connection.cursor() as cursor, cursor.copy(COPY_LINES) as copy:
        for line in lines:
            copy.write_row(
                (
                    row.pk,
                    line.line_no,
                    line.offset,
                    line.length,
                    line.custom_id,
                    line.prompt_tokens,
                    line.output_tokens,
                    line.prefix,
                )
            )


def as_detail(problem: Problem) -> dict[str, object]:
    """Return a problem in the form of OpenAI's `errors.data[]`."""
    return {
        "code": problem.code,
        "line": problem.line,
        "message": problem.message,
        "param": problem.param,
    }


def refusal(problems: list[Problem], count: int) -> BadRequest:
    """Return the 400 that names the lines of a file."""
    return refusal_of([as_detail(problem) for problem in problems], count)


def refusal_of(details: list[dict[str, object]], count: int) -> BadRequest:
    """Return the 400 that names lines: three in the message, the rest as a list."""
    first = [
        f"line {d['line']}: {d['message']}" if d["line"] else f"{d['message']}" for d in details[:3]
    ]
    more = "" if count <= len(first) else f" … and {count - len(first):,} more"
    listed = "" if count <= MOST_PROBLEMS else f" (the first {MOST_PROBLEMS} are listed)"
    return BadRequest(
        f"The file cannot be used as it is: {'; '.join(first)}{more}{listed}",
        code=str(details[0]["code"]),
        param=str(details[0]["param"] or "file"),
        details=details,
    )


def clean_filename(name: str) -> str:
    """Return a name safe to store, show and send in a header."""
    kept = "".join(c for c in name.replace("\\", "/").rsplit("/", 1)[-1] if c.isprintable())
    return kept.strip()[-255:] or "upload"


def unexpired(now: dt.datetime) -> Q:
    """Return the condition of a file that still counts."""
    return Q(expires_at__isnull=True) | Q(expires_at__gt=now)


def delete(row: StoredFile) -> None:
    """Delete row and contents; a running batch that still reads it forbids that."""
    with transaction.atomic():
        StoredFile.objects.select_for_update().filter(pk=row.pk).first()
        in_use = row.batches.filter(state__in=row.batches.model.LIVE).first()
        if in_use is not None:
            raise BadRequest(
                f"{in_use.public_id} still reads this file; cancel it first or wait for its end.",
                code="file_in_use",
            )
        StoredFile.objects.filter(pk=row.pk).delete()
        transaction.on_commit(lambda: shelf.remove(row.name))
