"""Puts batches on the terminal."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from rich import progress
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

SOON_S = 600  # nearer than this seconds matter
WORDS = {
    "validating": "waits for its turn",
    "in_progress": "in progress",
    "finalizing": "writing results",
}


def clock(seconds: int | None) -> str:
    """Return a moment in the reader's own time zone."""
    if seconds is None:
        return "unknown"
    then = dt.datetime.fromtimestamp(seconds, tz=dt.UTC).astimezone()
    now = dt.datetime.now(tz=dt.UTC).astimezone()
    if abs((then - now).total_seconds()) < SOON_S:
        return f"{then:%H:%M:%S}"
    return f"{then:%H:%M}" if then.date() == now.date() else f"{then:%a %d %b, %H:%M}"


def counts(batch: dict[str, Any]) -> tuple[int, int, int]:
    """Return done, failed and all lines; servers may leave the counts out."""
    found = batch.get("request_counts") or {}
    return found.get("completed") or 0, found.get("failed") or 0, found.get("total") or 0


@contextmanager
def reading(console: Console, path: Path) -> Iterator[BinaryIO]:
    """Open a file; on a terminal a bar shows how much of it has been read."""
    if not console.is_terminal:
        with path.open("rb") as file:
            yield file
        return
    with progress.open(
        path, "rb", description="Uploading", console=console, transient=True
    ) as file:
        yield file


def bar(console: Console) -> Progress:
    """Return a progress bar for the lines of a batch."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
        console=console,
    )  # fmt: skip


def sentence(batch: dict[str, Any]) -> str:
    """Return what is to be said of a running batch now."""
    parts = [WORDS.get(batch.get("status", ""), str(batch.get("status")))]
    _, failed, _ = counts(batch)
    if failed:
        parts.append(f"[red]{failed} failed[/red]")
    if batch.get("estimated_completion_at"):
        parts.append(f"ends about {clock(batch['estimated_completion_at'])}")
    if batch.get("queue_position"):
        parts.append(f"place {batch['queue_position']} in the queue")
    why = batch.get("why_it_waits")
    if isinstance(why, dict) and why.get("message"):
        parts.append(escape(str(why["message"])))
    return " · ".join(parts)


def summary(console: Console, batch: dict[str, Any]) -> None:
    """Print how a batch ended, or where it stands."""
    done, failed, total = counts(batch)
    console.print(f"[bold]{escape(str(batch['id']))}[/bold]: {sentence(batch)}")
    if total:
        console.print(f"  {done:,} done, {failed:,} failed, of {total:,} lines")
    usage = batch.get("usage") or {}
    if usage.get("total_tokens"):
        console.print(
            f"  {usage['input_tokens']:,} tokens read, {usage['output_tokens']:,} written"
        )
    for error in ((batch.get("errors") or {}).get("data")) or []:
        console.print(f"  [red]{escape(str(error.get('message')))}[/red]")


def next_steps(console: Console, batch_id: str, *, has_ended: bool = False) -> None:
    """Say how to go on with a batch."""
    if not has_ended:
        console.print(f"[dim]fairway watch {batch_id}   follows it[/dim]", soft_wrap=True)
    console.print(f"[dim]fairway fetch {batch_id}   gets the results[/dim]", soft_wrap=True)


def refusal(console: Console, message: str, details: object) -> None:
    """Print why a server said no; what stands in the table is not said twice."""
    if isinstance(details, list) and details:
        message = message.partition(": ")[0] + ":"
    console.print(f"[red]{escape(message)}[/red]")
    problems(console, details)


def problems(console: Console, details: object) -> None:
    """Print the lines a server refused."""
    if not isinstance(details, list) or not details:
        return
    table = Table(box=None)
    table.add_column("line", justify="right")
    table.add_column("what is wrong")
    for one in details[:20]:
        table.add_row(str(one.get("line") or ""), escape(str(one.get("message"))))
    console.print(table)
    if len(details) > 20:
        console.print(f"… and {len(details) - 20} more")


def plan(console: Console, estimate: dict[str, Any]) -> None:
    """Print an estimate."""
    console.print(f"{estimate['lines']:,} lines")
    if estimate.get("known"):
        tokens = estimate["estimated_tokens"]
        console.print(f"would start about {clock(estimate['estimated_start_at'])}")
        console.print(
            f"would end about {clock(estimate['estimated_completion_at'])}, likely between "
            f"{clock(estimate['soonest_completion_at'])} and "
            f"{clock(estimate['latest_completion_at'])}"
        )
        console.print(f"would cost about {tokens['total']:,} tokens")
    else:
        console.print("its end is unknown: this model has answered nothing lately to judge by")
    refused = (estimate.get("would_be_refused") or {}).get("data") or []
    if refused:
        console.print("[red]It would be refused:[/red]")
        problems(console, refused)


def listing(console: Console, batches: list[dict[str, Any]]) -> None:
    """Print a table of batches."""
    table = Table(box=None)
    # An id is there to be copied: it is never cut, however narrow the terminal is.
    table.add_column(
        "batch", no_wrap=True, min_width=max((len(str(b["id"])) for b in batches), default=0)
    )
    for name in ("state", "lines", "submitted", "name"):
        table.add_column(name)
    for batch in batches:
        done, failed, total = counts(batch)
        table.add_row(
            str(batch["id"]), str(batch["status"]), f"{done + failed} of {total}",
            clock(batch.get("created_at")), escape(str(batch.get("name") or "")),
        )  # fmt: skip
    console.print(table)
