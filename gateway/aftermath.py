"""What is done once a request has ended: how long its slot lingers, what is learned and counted."""

from __future__ import annotations

from gateway.answer import Answer
from gateway.core.estimate import Estimator
from gateway.core.types import Outcome, Settlement
from gateway.directory import Directory
from gateway.fleet.activity import Activity
from gateway.record import Story
from gateway.upstream import Closed

# llama.cpp frees a slot only after the batch it computes; until it says so, its slot stays ours
# that much longer at most, and while it reads a prompt as long as that may take besides.
LINGER_S = 2.0


def tell_replica(activity: Activity, answer: Answer) -> bool:
    """Note how an answer ended; True when that has to be judged at once."""
    if answer.error is None and answer.status:
        if answer.status == 200 and answer.usage.error_code:
            activity.failed()
        else:
            activity.answered(answer.status)
    elif not isinstance(answer.error, Closed):
        if answer.passed:
            activity.failed()
        else:
            activity.unreachable()
        return True
    return False


def settlement(story: Story, outcome: Outcome) -> Settlement:
    """Return what a lease is given back with."""
    usage = story.answer.usage if story.answer is not None else None
    return Settlement(
        outcome=outcome,
        prompt_tokens=story.prompt_tokens(),
        cached_tokens=(usage.cached_tokens or 0) if usage else 0,
        completion_tokens=story.completion_tokens(),
        record=story.record(outcome),
    )


def linger_s(story: Story, directory: Directory) -> float:
    """Return how much longer than our call the engine may hold the slot, 0 when it lets go."""
    answer, grant = story.answer, story.grant
    if answer is None or grant is None:
        return 0.0
    if answer.call is None or not isinstance(answer.error, Closed):
        return 0.0
    replica = directory.replica(grant.replica_id)
    if replica is None or replica.kind != "llamacpp":
        return 0.0
    return LINGER_S + (0.0 if answer.first_content_s else story.order.prefill_s)


def learn(story: Story, estimator: Estimator) -> None:
    """Let the next estimates be better."""
    answer, grant, order = story.answer, story.grant, story.order
    if answer is None or grant is None or answer.usage.prompt_tokens is None:
        return
    usage, pool, asked = answer.usage, order.way.pool_name, order.asked
    prompt, completion = answer.usage.prompt_tokens, usage.completion_tokens or 0
    if not asked.images and not asked.prompt_ids:
        estimator.learn_prompt(pool, asked.characters, prompt)
    if usage.whole:
        estimator.learn_session(order.session, grant.replica_id, prompt + completion)
        estimator.learn_output(order.caller.user_id, pool, completion)


def count(story: Story, outcome: Outcome) -> None:
    """Count the request for Prometheus."""
    answer, order = story.answer, story.order
    seen = order.way.metrics
    seen.ended[outcome] += 1
    if story.grant is not None:
        seen.queue_wait.observe(story.grant.queue_wait_ms / 1000)
    if answer is None:
        return
    if (first_s := story.first_content_s()) is not None:
        seen.ttft.observe(first_s - story.client.arrived_s)
    seen.prompt += story.prompt_tokens()
    seen.cached += answer.usage.cached_tokens or 0
    seen.completion += story.completion_tokens()
