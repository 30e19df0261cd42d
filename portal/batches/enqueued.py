"""The limit on enqueued batch tokens: prompts of submitted lines that have not been worked on.

Counted under a lock on the group and the person, in the transaction that stores the job, so that
submissions at the same instant cannot pass it together.
"""

from __future__ import annotations

from django.db.models import F, QuerySet, Sum

from portal.batches.models import BatchJob
from portal.batches.states import LIVE
from portal.batches.submission import limits_of
from portal.openai_api.errors import BadRequest
from quotas.models import ApiKey, Group, User

NAME = "enqueued_batch_tokens"


def of(jobs: QuerySet[BatchJob]) -> int:
    """Return the prompt tokens of the lines that have not ended, jobs over their lines."""
    left = F("total") - F("completed") - F("failed")
    waiting = jobs.filter(state__in=LIVE, total__gt=0).aggregate(
        tokens=Sum(F("prompt_tokens_estimated") * left / F("total"))
    )
    return int(waiting["tokens"] or 0)


def of_person(user: User) -> int:
    """Return what a person has enqueued."""
    return of(BatchJob.objects.filter(owner=user))


def of_group(group_id: int | None) -> int:
    """Return what a group's members have enqueued together."""
    return 0 if group_id is None else of(BatchJob.objects.filter(owner__group=group_id))


def check(key: ApiKey, tokens: int) -> None:
    """Refuse a job that a limit has no room for; call it inside the job's transaction."""
    binding = limits_of(key)
    group_id = key.owner.group_id
    of_group_limit, of_person_limit = binding.group.get(NAME), binding.person.get(NAME)
    if of_group_limit is not None and group_id is not None:
        _lock(Group.objects.filter(pk=group_id))
        _compare("your group", of_group(group_id), tokens, of_group_limit)
    if of_person_limit is not None:
        _lock(User.objects.filter(pk=key.owner_id))
        _compare("you", of_person(key.owner), tokens, of_person_limit)


def _lock(rows: QuerySet[Group] | QuerySet[User]) -> None:
    # Groups before people, so that two submissions never wait for each other crosswise.
    rows.select_for_update(no_key=True).values_list("pk").get()


def _compare(whom: str, used: int, tokens: int, limit: int) -> None:
    if used + tokens > limit:
        raise BadRequest(
            f"The limit is {limit:,} enqueued batch tokens for {whom}; {used:,} are enqueued and "
            f"this batch has about {tokens:,}. Wait until lines have ended, or submit fewer.",
            code="token_limit_exceeded",
            param="input_file_id",
        )
