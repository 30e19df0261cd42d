"""A furnished portal and the way through all its pages, for browser tests and screenshots."""

from __future__ import annotations

import datetime as dt
import random
from dataclasses import dataclass
from typing import Any

from django.utils import timezone

from portal.announcements.models import Announcement
from portal.batches.models import BatchJob
from portal.files.models import StoredFile
from portal.policy import trials
from portal.policy.trials import Trial
from quotas.models import ApiKey, CapacityRun, PoolMinute, RejectedMinute, Replica, User
from quotas.services import engines, keys, people, requests
from tests.portal.usage import event, hour

PASSWORD = "correct horse battery"


@dataclass(frozen=True, slots=True)
class Stop:
    """One page of the tour."""

    name: str
    address: str
    signed_in: bool = True
    status: int = 200


PUBLIC = (
    Stop("status", "/status/", signed_in=False),
    Stop("capacity", "/capacity/", signed_in=False),
    Stop("sign-in", "/accounts/login/?next=/keys/", signed_in=False),
    Stop("forgotten", "/accounts/password/reset/", signed_in=False),
    Stop("docs", "/docs/", signed_in=False),
    Stop("docs-search", "/docs/?q=queue", signed_in=False),
    Stop("docs-ordering", "/docs/ordering/", signed_in=False),
    Stop("docs-quickstart", "/docs/quickstart/", signed_in=False),
    Stop("docs-errors", "/docs/errors/", signed_in=False),
    Stop("docs-limits", "/docs/limits/", signed_in=False),
    Stop("docs-clients", "/docs/clients/", signed_in=False),
    Stop("rest-api", "/api/v1/docs/", signed_in=False),
    Stop("error-404", "/nowhere/", signed_in=False, status=404),
)
MEMBER = (
    Stop("dashboard", "/"),
    Stop("keys", "/keys/"),
    Stop("key-edit", "/keys/{key}/"),
    Stop("key-rotate", "/keys/{key}/rotate/"),
    Stop("key-revoke", "/keys/{key}/revoke/"),
    Stop("usage", "/usage/"),
    Stop("usage-models", "/usage/?range=24h&split=model"),
    Stop("requests", "/usage/requests/"),
    Stop("fairness", "/fairness/?days=30"),
    Stop("batches", "/batches/"),
    Stop("batch", "/batches/batch_tour/"),
    Stop("models", "/models/"),
    Stop("quota", "/quota/"),
    Stop("quota-grid", "/quota/grid/?limit=queued"),
    Stop("group", "/group/"),
    Stop("profile", "/profile/"),
    Stop("second-factor", "/accounts/2fa/"),
    Stop("sessions", "/accounts/sessions/"),
    Stop("email", "/accounts/email/"),
    Stop("password", "/accounts/password/change/"),
)

#: The administration, which people use at a desk.
ADMIN = (
    Stop("admin", "/admin/"),
    Stop("admin-keys", "/admin/quotas/apikey/"),
    Stop("admin-people", "/admin/quotas/user/"),
    Stop("admin-person", "/admin/quotas/user/add/"),
    Stop("admin-engines", "/admin/quotas/replica/"),
    Stop("admin-engine", "/admin/quotas/replica/add/"),
    Stop("admin-limit", "/admin/quotas/limitrow/add/"),
    Stop("admin-measurements", "/admin/quotas/capacityrun/"),
    Stop("admin-announce", "/admin/announcements/announcement/add/"),
    Stop("admin-usage", "/admin/quotas/usageevent/"),
    Stop("admin-audit", "/admin/pghistory/events/"),
)
# Seen on the phone in every run, and everywhere with axe in the long one.
MORE = (
    Stop("docs-classes", "/docs/classes/"),
    Stop("docs-sharing", "/docs/sharing/"),
    Stop("docs-capacity", "/docs/capacity/"),
    Stop("docs-batch", "/docs/batch/"),
    Stop("docs-keys", "/docs/keys/"),
    Stop("docs-api", "/docs/api/"),
    Stop("everybodys-requests", "/requests/"),
    Stop("policy", "/policy/"),
    Stop("policy-trial", "/policy/tour/"),
    Stop("authenticator", "/accounts/2fa/totp/activate/"),
)


def furnish() -> tuple[User, ApiKey]:
    """Fill the books: a person with keys, a month of usage, engines, a measured card."""
    anna = User.objects.create_user(
        "anna", "anna@example.org", PASSWORD, is_staff=True, is_superuser=True
    )
    group = people.ensure_group(name="Language Technology")
    people.move(user=anna, group=group)
    group.owners.add(anna)
    ben = people.ensure_user(username="ben", group=group, email="ben@example.org")
    for name, pool, kind, slots in (
        ("atlas", "Qwen2.5-14B", "vllm", 8),
        ("quill", "SmolLM2-1.7B", "llamacpp", 4),
    ):
        engines.register(url=f"http://127.0.0.1:{9000 + slots}", pool=pool, kind=kind, slots=slots,
                         name=name, card="card 0", context=16_384)  # fmt: skip
    first = _keys(anna)
    _batch(anna)
    _usage(anna, first)
    _measured()
    _trial(anna)
    requests.ask(user=ben, service_class="batch", name="queued", value=64, reason="paper deadline",
                 until=timezone.now() + dt.timedelta(days=20))  # fmt: skip
    start = timezone.now() + dt.timedelta(days=2)
    Announcement.objects.create(
        kind="planned", text="Driver update on atlas. Batch pauses and goes on by itself.",
        starts_at=start, ends_at=start + dt.timedelta(hours=1), shown_until=start,
    )  # fmt: skip
    return anna, first


def _keys(owner: User) -> ApiKey:
    days = dt.timedelta(days=1)
    first = keys.issue(owner=owner, name="notebook", service_class="interactive").key
    keys.issue(owner=owner, name="label-corpus", service_class="batch", lifetime=6 * days)
    stopped = keys.issue(owner=owner, name="old laptop", service_class="interactive").key
    keys.revoke(key=stopped)
    ApiKey.objects.filter(pk=first.pk).update(last_used_at=timezone.now())
    return first


def _batch(owner: User) -> None:
    """Make a job that is two thirds done and waits for the afternoon's chats."""
    key = ApiKey.objects.get(owner=owner, name="label-corpus")
    now = timezone.now()
    file = StoredFile.objects.create(
        owner=owner, key=key, filename="abstracts-2026.jsonl", purpose="batch", size=1_840_000,
        sha256="0" * 64, name="tour", lines=1200, endpoint="/v1/chat/completions",
        model="Qwen2.5-14B", prompt_tokens=480_000,
    )  # fmt: skip
    BatchJob.objects.create(
        public_id="batch_tour", owner=owner, key=key, name="abstracts-2026.jsonl",
        endpoint="/v1/chat/completions", model="Qwen2.5-14B", input_file=file,
        input_file_ref=file.public_id, completion_window="24h", state="in_progress",
        expires_at=now + dt.timedelta(hours=20), in_progress_at=now - dt.timedelta(hours=2),
        last_line_at=now, total=1200, completed=796, failed=4, input_tokens=318_000,
        output_tokens=71_000, prompt_tokens_estimated=480_000,
        wait_message="people chat: batch has two of eight slots now",
    )  # fmt: skip


def _usage(owner: User, key: ApiKey) -> None:
    dice = random.Random(1)
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    rows = []
    for back in range(24 * 30):
        tokens = dice.randint(0, 9000)
        rows.append(
            hour(owner.pk, now - dt.timedelta(hours=back), key_id=key.public_id,
                 service_class=dice.choice(["interactive", "interactive", "batch"]),
                 model=dice.choice(["Qwen2.5-14B", "SmolLM2-1.7B"]), prompt_tokens=tokens)
        )  # fmt: skip
    type(rows[0]).objects.bulk_create(rows)
    outcomes = ["served"] * 6 + ["failed", "aborted", "evicted_timed_out"]
    events = [
        event(owner.pk, n, key_id=key.public_id, outcome=dice.choice(outcomes),
              cached_tokens=dice.choice([None, 40]), estimated=n % 7 == 0)
        for n in range(60)
    ]  # fmt: skip
    type(events[0]).objects.bulk_create(events)
    RejectedMinute.objects.create(
        minute=timezone.now(), key_id=key.public_id, code="queue_full_key", count=7
    )


def _trial(owner: User) -> None:
    """Let a policy have been tried on a week."""

    def side(name: str, faster: float) -> dict[str, Any]:
        wait = {"median": 0.4, "p95": 11.8 / faster, "max": 94.0}
        return {
            "name": name, "interactive_wait_s": {**wait, "p95": 11.8 * faster},
            "batch_wait_s": {**wait, "median": 34.0 / faster},
            "jobs_s": {"median": 5_400 / faster, "p95": 21_000 / faster, "max": 40_000 / faster},
            "marks_s": [0, 10, 60, 600],
            "waited": {"interactive": [0.48, 0.93 / faster**0.1, 0.99, 1.0],
                       "batch": [0.2, 0.3, 0.6, 0.97]},
            "interactive_done": 18_204, "batch_done": 41_960, "batch_by_age": 310, "jobs_done": 61,
        }  # fmt: skip

    sides = (side("as it is", 1.0), side("as tried", 1.4))
    told = "60,164 requests for Qwen2.5-14B in 7 days, played on 8 slots."
    trials.keep(
        Trial("tour", "Qwen2.5-14B", 7, (("batch_slots", 3), ("batch_cap", 3)), owner.username,
              timezone.now(), trials.DONE, told, sides)
    )  # fmt: skip


def _figure(value: float) -> dict[str, float]:
    return {"value": value, "low": value * 0.96, "high": value * 1.05}


def _measured() -> None:
    points: list[dict[str, Any]] = [
        {"planned_tokens": 128, "concurrency": people_, "decode_per_user_per_s": _figure(each),
         "decode_per_s": _figure(each * min(people_, 8)), "ttft_p95_s": wait, "unsteady": False}
        for people_, each, wait in ((1, 61, 0.3), (2, 57, 0.4), (4, 44, 0.6), (8, 25, 1.1),
                                    (16, 12.4, 21.0))
    ]  # fmt: skip
    points += [
        {"planned_tokens": 10_000, "concurrency": n, "decode_per_user_per_s": None,
         "ttft_p50_s": s} for n, s in ((1, 7.6), (4, 31.0))
    ]  # fmt: skip
    now = timezone.now()
    CapacityRun.objects.create(
        replica=Replica.objects.get(name="atlas"), replica_name="atlas", pool_name="Qwen2.5-14B",
        state="complete", report={"points": points}, fingerprint_digest="9c41e7",
        fingerprint={"model": "Qwen2.5-14B-Instruct-AWQ", "engine": "vLLM", "slots": 8},
        sentence="Serves about 200 tokens per second in total; at eight concurrent users "
                 "expect about 25 each.",
        ended_at=now - dt.timedelta(days=4), published_at=now - dt.timedelta(days=4),
    )  # fmt: skip
    PoolMinute.objects.bulk_create(_minutes(now.replace(second=0, microsecond=0)))


def _minutes(now: dt.datetime) -> list[PoolMinute]:
    """Return two days, chat by day and batch by night, and an hour of silence."""
    rows = []
    for back in range(2 * 24 * 60):
        at = now - dt.timedelta(minutes=back)
        if 700 < back < 760:
            continue
        chat = max(0.0, 6 - abs(14 - at.hour) * 0.9)
        batch = min(8 - chat, 7.0 if at.hour < 6 else 1.6)
        verdict = "busy" if 11 <= at.hour <= 16 else "ok"
        rows.append(
            PoolMinute(pool="Qwen2.5-14B", minute=at, looks=60, slots=8, held_interactive=chat,
                       held_batch=batch, waiting_interactive=chat / 4, verdict=verdict,
                       expected_wait_interactive_s=max(0.0, 9 * (chat - 3)),
                       tokens_out_per_s=25 * chat)
        )  # fmt: skip
    return rows
