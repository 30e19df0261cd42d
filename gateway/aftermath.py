"""What is done once a request has ended: how long its slot lingers, what is learned and counted."""

from __future__ import annotations

from gateway.core.estimate import Estimator
from gateway.core.types import Outcome
from gateway.metrics import Metrics
from gateway.record import Story
from gateway.upstream import Closed
from quotas.snapshots.directory import ReplicaSnapshot

# llama.cpp frees a slot only after the batch it computes; its slot stays ours that much longer.
LINGER_S = 0.5
LINGER_IN_PREFILL_S = 2.0


def linger_s(story: Story, replica: ReplicaSnapshot | None) -> float:
    """Return how much longer than our call the engine holds the slot."""
    answer = story.answer
    if replica is None or replica.kind != "llamacpp" or answer is None:
        return 0.0
    if answer.call is None or not isinstance(answer.error, Closed):
        return 0.0
    return LINGER_S if answer.first_content_s else LINGER_IN_PREFILL_S


def learn(story: Story, estimator: Estimator) -> None:
    """Let the next estimates be better."""
    answer, grant, order = story.answer, story.grant, story.order
    if answer is None or grant is None or answer.usage.prompt_tokens is None:
        return
    usage, pool, asked = answer.usage, order.pool.name, order.asked
    prompt, completion = answer.usage.prompt_tokens, usage.completion_tokens or 0
    if not asked.images and not asked.prompt_ids:
        estimator.learn_prompt(pool, asked.characters, prompt)
    if usage.whole:
        estimator.learn_session(order.session, grant.replica_id, prompt + completion)
        estimator.learn_output(order.caller.user_id, pool, completion)


def count(story: Story, outcome: Outcome, metrics: Metrics) -> None:
    """Count the request for Prometheus."""
    answer, seen = story.answer, metrics.of(*story.order.labels)
    seen.ended(outcome)
    if story.grant is not None:
        seen.queue_wait.observe(story.grant.queue_wait_ms / 1000)
    if answer is None:
        return
    if (first_s := story.first_content_s()) is not None:
        seen.ttft.observe(first_s - story.client.arrived_s)
    seen.prompt.inc(story.prompt_tokens())
    seen.cached.inc(answer.usage.cached_tokens or 0)
    seen.completion.inc(story.completion_tokens())
