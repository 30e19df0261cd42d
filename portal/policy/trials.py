"""Trials of a policy: the last days' requests played again, as they were shared and otherwise.

A worker plays them with the command that administrators have in the shell (`manage.py simulate`);
this room keeps what was asked and what came of it for a week, in the cache. Nothing is changed by
a trial.
"""

from __future__ import annotations

import datetime as dt
import json
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any, cast

from celery.exceptions import SoftTimeLimitExceeded
from django.core.cache import cache
from django.core.management import CommandError, call_command
from django.utils import timezone
from django.utils.crypto import get_random_string
from kombu.exceptions import OperationalError

from portal import tasks

KEPT_S = 7 * 86_400
WAITING, RUNNING, DONE, FAILED = "waiting", "running", "done", "failed"


@dataclass(frozen=True, slots=True)
class Trial:
    """One question: this model's last days, with these numbers changed."""

    trial_id: str
    model: str
    days: int
    changes: tuple[tuple[str, int], ...]  # in the words of `manage.py simulate --try`
    by: str
    asked_at: dt.datetime
    state: str = WAITING
    told: str = ""  # how many requests were played, or why it failed
    sides: tuple[dict[str, Any], ...] = ()  # as it is, as tried

    @property
    def is_over(self) -> bool:
        """Tell whether nothing more will come of it."""
        return self.state in (DONE, FAILED)

    @property
    def command(self) -> list[str]:
        """Return the arguments of `manage.py` that play it."""
        tries = [f"--try={name}={value}" for name, value in self.changes]
        return ["simulate", f"--days={self.days}", f"--model={self.model}", *tries, "--json"]


def ask(model: str, days: int, changes: tuple[tuple[str, int], ...], by: str) -> Trial:
    """Keep the question and ring for a worker."""
    trial = Trial(get_random_string(12), model, days, changes, by, timezone.now())
    keep(trial)
    try:
        tasks.try_policy.delay(trial.trial_id)
    except OperationalError:
        return keep(replace(trial, state=FAILED, told="No worker can be reached; ask again."))
    return trial


def read(trial_id: str) -> Trial | None:
    """Return a trial, None when it is not kept any more."""
    trial = cast("Trial | None", cache.get(_name(trial_id)))
    if trial is None or trial.is_over:
        return trial
    if timezone.now() - trial.asked_at > dt.timedelta(seconds=3 * tasks.LONGEST_TRIAL_S):
        return replace(trial, state=FAILED, told="No worker has taken it; is one running?")
    return trial


def play(trial_id: str) -> None:
    """Run the simulation and keep what it says; a worker's part."""
    trial = read(trial_id)
    if trial is None or trial.is_over:
        return
    keep(replace(trial, state=RUNNING))
    out, told = StringIO(), StringIO()
    try:
        call_command(*trial.command, stdout=out, stderr=told, no_color=True)
    except CommandError as error:
        keep(replace(trial, state=FAILED, told=str(error)))
    except SoftTimeLimitExceeded:
        keep(replace(trial, state=FAILED, told="It took too long; take fewer days."))
    else:
        sides = tuple(json.loads(out.getvalue()))
        keep(replace(trial, state=DONE, told=told.getvalue().strip(), sides=sides))


def keep(trial: Trial) -> Trial:
    """Keep a trial as it is now."""
    cache.set(_name(trial.trial_id), trial, KEPT_S)
    return trial


def _name(trial_id: str) -> str:
    return f"policy-trial:{trial_id}"
