"""The page on which administrators try a policy on the last days' requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from django.contrib.admin.views.decorators import staff_member_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.translation import gettext_lazy as _
from django.views.decorators.http import require_http_methods, require_safe

from portal.policy import trials
from portal.policy.forms import MINUTE_MS, TryForm
from portal.policy.trials import Trial
from quotas.models import User

#: Rows of the comparison: what it is, where its numbers are, and where it says of how many.
WAITS = (
    (_("Chats waited"), "interactive_wait_s", "interactive_done"),
    (_("Batch requests waited"), "batch_wait_s", "batch_done"),
    (_("Batch jobs took"), "jobs_s", "jobs_done"),
)
COUNTS = (
    (_("Chats served"), "interactive_done"),
    (_("Batch requests served"), "batch_done"),
    (_("of them by their age"), "batch_by_age"),
    (_("Batch jobs ended"), "jobs_done"),
)
SPREAD = (("median", _("half")), ("p95", _("19 of 20")), ("max", _("longest")))


@dataclass(frozen=True, slots=True)
class Compared:
    """One row: the same number on both sides."""

    label: Any
    note: Any
    is_time: bool
    before: float
    after: float


def compared(trial: Trial) -> list[Compared]:
    """Return both sides of a trial that is done, row by row."""
    if len(trial.sides) != 2:
        return []
    before, after = trial.sides
    rows = [
        Compared(label, note, True, before[name][part], after[name][part])
        for label, name, count in WAITS
        if before[count] or after[count]
        for part, note in SPREAD
    ]
    return rows + [Compared(label, "", False, before[n], after[n]) for label, n in COUNTS]


def waited(trial: Trial) -> list[tuple[int, list[float | None]]]:
    """Return for marks of seconds which part waited no longer: chats, then batch, both sides.

    None where nobody of the class came.
    """
    if len(trial.sides) != 2:
        return []
    parts = [side["waited"][name] for name in ("interactive", "batch") for side in trial.sides]
    marks = trial.sides[0]["marks_s"]
    return [(mark, [part and part[n] for part in parts]) for n, mark in enumerate(marks)]


def changed(trial: Trial) -> list[tuple[Any, int]]:
    """Return what the trial changes, in the words of the form."""
    fields = TryForm.base_fields
    return [
        (fields["handicap_min"].label, value // MINUTE_MS)
        if name == "handicap_ms"
        else (fields[name].label, value)
        for name, value in trial.changes
    ]


@require_http_methods(["GET", "HEAD", "POST"])
@staff_member_required
def page(request: HttpRequest) -> HttpResponse:
    """Ask what to try; a good question leads to its own page."""
    form = TryForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        person = cast("User", request.user)
        data = form.cleaned_data
        trial = trials.ask(data["model"], data["days"], form.changes, person.get_username())
        return redirect("policy-trial", trial.trial_id)
    return render(request, "policy/page.html", {"section": "quota", "form": form})


@require_safe
@staff_member_required
def trial(request: HttpRequest, trial_id: str) -> HttpResponse:
    """Show what came of a trial, or that it still runs."""
    return render(request, "policy/trial.html", _context(trial_id))


@require_safe
@staff_member_required
def live_trial(request: HttpRequest, trial_id: str) -> HttpResponse:
    """Return the part of that page that changes; when it is over, the browser stops asking."""
    context = _context(trial_id)
    answer = render(request, "policy/trial_live.html", context)
    if context["trial"].is_over:
        answer.status_code = 286  # htmx: show it, and poll no more
    return answer


def _context(trial_id: str) -> dict[str, Any]:
    found = trials.read(trial_id)
    if found is None:
        raise Http404
    return {
        "section": "quota",
        "trial": found,
        "changed": changed(found),
        "rows": compared(found),
        "waited": waited(found),
    }
