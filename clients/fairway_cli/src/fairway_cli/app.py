"""The commands: submit, watch, fetch, cancel, estimate, list."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from fairway_cli import show
from fairway_cli.api import Api, ApiProblem, Unreachable

ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
FAILED, WRONG, AWAY, LEFT = 1, 2, 3, 130
POLL_S = (1.0, 15.0)  # the first pause and the longest

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
out, err = Console(), Console(stderr=True)

File = Annotated[Path, typer.Argument(exists=True, dir_okay=False, help="A JSONL file of lines.")]
BatchId = Annotated[str, typer.Argument(help="The id of a batch, batch_…")]
Window = Annotated[str, typer.Option(help="Give up after this long, such as 24h or 7d.")]
Endpoint = Annotated[str, typer.Option(help="Read from the first line unless given.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


@contextmanager
def server() -> Iterator[Api]:
    """Yield the server the environment names; say in plain words what went wrong."""
    base_url = os.environ.get("FAIRWAY_URL") or os.environ.get("OPENAI_BASE_URL")
    key = os.environ.get("FAIRWAY_KEY") or os.environ.get("OPENAI_API_KEY")
    if not base_url or not key:
        err.print("Set OPENAI_BASE_URL (ending in /v1) and OPENAI_API_KEY first.")
        raise typer.Exit(WRONG)
    api = Api(base_url, key)
    try:
        yield api
    except ApiProblem as problem:
        show.refusal(err, str(problem), problem.details)
        raise typer.Exit(AWAY if problem.status >= 500 else FAILED) from None
    except Unreachable as problem:
        err.print(f"[red]{escape(str(problem))}[/red]")
        raise typer.Exit(AWAY) from None
    finally:
        api.close()


def _tell(batch: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(batch))
    else:
        show.summary(out, batch)


def _upload(api: Api, path: Path) -> dict[str, Any]:
    """Send a file; on a terminal with a bar, for large ones take minutes."""
    with show.reading(err, path) as file:
        return api.upload(path.name, file)


def _create(api: Api, path: Path, endpoint: str, window: str, webhook: str) -> dict[str, Any]:
    """Upload and create; the file of a batch that was refused does not stay behind."""
    stored = _upload(api, path)
    try:
        return api.create(stored["id"], _endpoint(path, endpoint), window, webhook)
    except ApiProblem:
        with suppress(ApiProblem, Unreachable):
            api.delete_file(stored["id"])
        raise


def _endpoint(path: Path, given: str) -> str:
    """Return the url of the file's first line."""
    if given:
        return given
    with path.open("rb") as file:
        for raw in file:
            text = raw.removeprefix(b"\xef\xbb\xbf").strip()
            if not text:
                continue
            try:
                return str(json.loads(text)["url"])
            except (ValueError, KeyError, TypeError):
                break
    return "/v1/chat/completions"  # the server will say what is wrong with the line


def _follow(
    api: Api, batch: dict[str, Any], step: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Poll until the batch has ended; the pauses grow while nothing moves."""
    pause, before = POLL_S[0], None
    while batch["status"] not in ENDED:
        now = (batch["status"], show.counts(batch))
        pause = POLL_S[0] if now != before else min(pause * 1.5, POLL_S[1])
        before = now
        step(batch)
        time.sleep(pause)
        batch = api.batch(batch["id"])
    step(batch)
    return batch


def _follow_with_a_bar(api: Api, batch: dict[str, Any]) -> dict[str, Any]:
    with show.bar(out) as bar:
        task = bar.add_task("", total=show.counts(batch)[2] or None)

        def step(batch: dict[str, Any]) -> None:
            done, failed, total = show.counts(batch)
            bar.update(
                task, completed=done + failed, total=total or None,
                description=show.sentence(batch),
            )  # fmt: skip

        return _follow(api, batch, step)


def _watch(api: Api, batch: dict[str, Any], as_json: bool) -> None:
    """Follow a batch to its end; exit with 1 when something of it failed."""
    try:
        if as_json or not out.is_terminal:
            batch = _follow(api, batch, lambda _: None)
        else:
            batch = _follow_with_a_bar(api, batch)
    except KeyboardInterrupt:
        err.print("The batch goes on without you.")
        show.next_steps(err, batch["id"])
        raise typer.Exit(LEFT) from None
    _tell(batch, as_json)
    if not as_json and (batch.get("output_file_id") or batch.get("error_file_id")):
        show.next_steps(out, batch["id"], has_ended=True)
    if batch["status"] != "completed" or show.counts(batch)[1]:
        raise typer.Exit(FAILED)


@app.command()
def submit(
    file: File, window: Window = "24h", endpoint: Endpoint = "",
    watch: Annotated[bool, typer.Option(help="Follow it to its end.")] = False,
    webhook: Annotated[str, typer.Option(help="Address to be told of the end.")] = "",
    as_json: Json = False,
) -> None:  # fmt: skip
    """Upload a file and create a batch of it."""
    with server() as api:
        batch = _create(api, file, endpoint, window, webhook)
        if watch:
            _watch(api, batch, as_json)
            return
        _tell(batch, as_json)
        if not as_json:
            show.next_steps(out, batch["id"])


@app.command()
def watch(batch_id: BatchId, as_json: Json = False) -> None:
    """Follow a batch to its end."""
    with server() as api:
        _watch(api, api.batch(batch_id), as_json)


@app.command()
def fetch(
    batch_id: BatchId,
    folder: Annotated[Path, typer.Option("--output", "-o", help="Where to put them.")] = Path(),
) -> None:
    """Download the results; of a running batch, those there are so far."""
    with server() as api:
        batch = api.batch(batch_id)
        folder.mkdir(parents=True, exist_ok=True)
        got = False
        for name in ("output", "errors"):
            field = "output_file_id" if name == "output" else "error_file_id"
            if batch.get(field):
                path = f"files/{batch[field]}/content"
            elif batch["status"] in ENDED:
                continue
            else:
                path = f"batches/{batch_id}/output" + ("?errors=1" if name == "errors" else "")
            got |= _save(api, path, folder / f"{batch_id}-{name}.jsonl")
        if batch["status"] not in ENDED:
            so_far = "These are the results so far" if got else "There are no results yet"
            out.print(f"{so_far}: {show.sentence(batch)}.")
        elif not got:
            out.print(f"It has no results: {show.sentence(batch)}.")


def _save(api: Api, path: str, target: Path) -> bool:
    """Write to a temporary name first: what has the real name is whole."""
    part, lines = target.with_suffix(".part"), 0
    try:
        with part.open("wb") as file:
            for piece in api.content(path):
                file.write(piece)
                lines += piece.count(b"\n")
    except ApiProblem as problem:
        part.unlink(missing_ok=True)
        if problem.status == 404:  # a server without results so far
            return False
        raise
    if not lines:
        part.unlink()
        return False
    part.replace(target)
    noun = "line" if lines == 1 else "lines"
    out.print(f"{lines:,} {noun} in {escape(str(target))}", soft_wrap=True)
    return True


@app.command()
def cancel(batch_id: BatchId, as_json: Json = False) -> None:
    """Cancel a batch; what is done stays."""
    with server() as api:
        _tell(api.cancel(batch_id), as_json)


@app.command()
def estimate(
    file: File, window: Window = "24h", endpoint: Endpoint = "", as_json: Json = False
) -> None:
    """Say when a batch would end and what it would cost, without starting it."""
    with server() as api:
        stored = _upload(api, file)
        try:
            plan = api.estimate(stored["id"], _endpoint(file, endpoint), window)
        except ApiProblem as problem:
            if problem.status not in {404, 405}:
                raise
            err.print("This server gives no estimates; the file itself is in order.")
            return
        finally:
            api.delete_file(stored["id"])
        if as_json:
            typer.echo(json.dumps(plan))
        else:
            show.plan(out, plan)
        if plan["would_be_refused"]["data"]:
            raise typer.Exit(FAILED)


@app.command("list")
def list_(limit: Annotated[int, typer.Option(min=1, max=100)] = 20, as_json: Json = False) -> None:
    """List the newest batches."""
    with server() as api:
        found = api.batches(limit)
        if as_json:
            typer.echo(json.dumps(found))
        else:
            show.listing(out, found)


def main() -> None:
    """Run the command line."""
    app()
