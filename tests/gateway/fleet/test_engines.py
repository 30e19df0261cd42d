"""The adapters read recorded pages of real engines, and never mistake unknown for nothing."""

from __future__ import annotations

import dataclasses

import pytest

from gateway.engines.base import UNKNOWN, EngineReading, Health, Page
from gateway.engines.detect import ADAPTERS, DETECT_PATHS, adapter, recognise
from tests.gateway.fleet.pages import page, recorded

LLAMACPP = {
    "/metrics": recorded("llamacpp", "metrics_after"),
    "/slots": recorded("llamacpp", "slots_after"),
    "/props": recorded("llamacpp", "props"),
    "/v1/models": recorded("llamacpp", "models"),
    "/version": recorded("llamacpp", "version"),
    "/is_sleeping": recorded("llamacpp", "is_sleeping"),
}
VLLM = {
    "/metrics": recorded("vllm", "metrics_after"),
    "/v1/models": recorded("vllm", "models"),
    "/version": recorded("vllm", "version"),
    "/is_sleeping": recorded("vllm", "is_sleeping"),
    "/props": recorded("vllm", "props"),
    "/slots": recorded("vllm", "slots"),
}
OLD_VLLM = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m, \\"x\\" {1}"} 3.0
vllm:num_requests_waiting{model_name="m"} 2.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
vllm:prompt_tokens_total{model_name="m"} 1.5e+06
vllm:prompt_tokens_created{model_name="m"} 1.79e+09
vllm:generation_tokens_total{model_name="m"} 10 1395066363000
vllm:gpu_prefix_cache_queries_total{model_name="m"} 100.0
vllm:gpu_prefix_cache_hits_total{model_name="m"} 40.0
"""


def test_llamacpp_reads_its_recorded_metrics() -> None:
    """
    llama.cpp's prompt counter excludes cached tokens; ours includes them, as every engine's does.
    """
    reading = adapter("llamacpp").reading(LLAMACPP)

    assert reading == EngineReading(
        running=0,
        waiting=0,
        kv_usage=None,
        prompt_tokens_total=785,
        cached_tokens_total=696,
        completion_tokens_total=246,
        completion_tokens_live=0,
        prefix_queries_total=785,
        prefix_hits_total=696,
        progress=323,
        incarnation="601173004",
        slots=4,
    )


def test_llamacpp_reveals_its_slots_and_context() -> None:
    """
    Slots, context per slot, quantisation and model come from llama.cpp itself.
    """
    facts = adapter("llamacpp").facts(LLAMACPP)

    assert (facts.slots, facts.context, facts.quantisation) == (4, 2048, "Q4_1")
    assert (facts.model, facts.parameters) == ("smollm2-135m", 134515008)
    assert facts.capabilities == ("metrics", "slots", "props", "cached_tokens")
    assert facts.settings["speculative.types"] == "none"
    assert "model_path" not in facts.settings


def test_vllm_reads_its_recorded_metrics() -> None:
    """
    vLLM's recorded page gives every number under today's names, and none from a `_created` twin.
    """
    reading = adapter("vllm").reading(VLLM)

    assert (reading.running, reading.waiting, reading.kv_usage) == (0, 0, 0.0)
    assert (reading.prompt_tokens_total, reading.completion_tokens_total) == (355, 180)
    assert (reading.prefix_queries_total, reading.prefix_hits_total) == (355, 0)
    assert reading.incarnation == "1795972318.26"
    assert reading.sleeping is False


def test_vllm_reads_the_names_of_older_versions() -> None:
    """
    Renamed metrics are found under their old names, whatever stands in labels and timestamps.
    """
    reading = adapter("vllm").reading({"/metrics": page(OLD_VLLM)})

    assert (reading.running, reading.waiting, reading.kv_usage) == (3, 2, 0.5)
    assert (reading.prompt_tokens_total, reading.completion_tokens_total) == (1_500_000, 10)
    assert (reading.prefix_queries_total, reading.prefix_hits_total) == (100, 40)


def test_sglang_reads_its_documented_metrics() -> None:
    """
    SGLang's own names are found, summed over its priority labels, and its arguments are facts.
    """
    pages = {
        "/metrics": page(
            'sglang:num_running_reqs{model_name="m",priority="0"} 2.0\n'
            'sglang:num_running_reqs{model_name="m",priority="1"} 1.0\n'
            'sglang:num_queue_reqs{model_name="m"} 5.0\nsglang:token_usage{model_name="m"} 0.25\n'
            'sglang:prompt_tokens_total{model_name="m"} 100.0\n'
            'sglang:cached_tokens_total{model_name="m"} 40.0\n'
            'sglang:generation_tokens_total{model_name="m"} 30.0\n'
        ),
        "/get_server_info": page(
            '{"version": "0.5", "max_running_requests": 48, "context_length": 8192, '
            '"model_path": "/secret", "enable_priority_scheduling": true, "dtype": "auto"}'
        ),
    }
    sglang = adapter("sglang")
    reading, facts = sglang.reading(pages), sglang.facts(pages)

    assert (reading.running, reading.waiting, reading.kv_usage) == (3, 5, 0.25)
    assert (reading.prompt_tokens_total, reading.prefix_hits_total) == (100, 40)
    assert (facts.slots, facts.context, facts.version) == (48, 8192, "0.5")
    assert facts.capabilities == ("metrics", "priority")
    assert "/secret" not in str(facts.settings)


def test_numbers_of_several_engine_processes_are_added() -> None:
    """
    Counts of data-parallel engines add up; the fullest cache speaks for all.
    """
    text = (
        'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_running{engine="1"} 4\n'
        'vllm:kv_cache_usage_perc{engine="0"} 0.2\nvllm:kv_cache_usage_perc{engine="1"} 0.9\n'
    )

    reading = adapter("vllm").reading({"/metrics": page(text)})

    assert (reading.running, reading.kv_usage) == (7, 0.9)


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "x", "", "1 2 3"])
def test_a_broken_number_is_unknown(value: str) -> None:
    """
    A number that is none makes the whole sum unknown, never a part of it, never 0.
    """
    text = (
        'vllm:num_requests_running{engine="0"} 3\n'
        f'vllm:num_requests_waiting{{engine="0"}} {value}\n'
    )

    reading = adapter("vllm").reading({"/metrics": page(text)})

    assert (reading.running, reading.waiting) == (3, None)


def test_a_line_without_its_newline_is_unknown() -> None:
    """
    The last line of a cut page may have lost digits: 12 of 1234 is not a number to show.
    """
    text = "vllm:num_requests_running 3\nvllm:num_requests_waiting 12"

    reading = adapter("vllm").reading({"/metrics": page(text)})

    assert (reading.running, reading.waiting) == (3, None)


@pytest.mark.parametrize("kind", sorted(ADAPTERS))
@pytest.mark.parametrize(
    "broken",
    [
        Page(status=0),
        Page(status=0, timed_out=True),
        Page(status=500, body=b"vllm:num_requests_running 3\n"),
        page(""),
        page("<html><body>llamacpp:requests_processing 3 </body></html>\n"),
        page("[" * 100_000),
        page('{"data": [null, 3, {"id": 5}], "total_slots": "4", "is_sleeping": 0}'),
        page("[[1], null]"),
        page(b"\xff\xfe\x00" * 1000),
        Page(status=200, body=b"# filler\n" * 1000 + b"vllm:num_req", cut=True),
    ],
    ids=["none", "late", "500", "empty", "html", "deep", "odd", "list", "binary", "cut"],
)
def test_a_broken_page_is_unknown_everywhere(kind: str, broken: Page) -> None:
    """
    Whatever an engine sends instead of a page, every number is unknown and nothing raises.
    """
    pages = dict.fromkeys(DETECT_PATHS, broken)

    engine = adapter(kind)
    facts = engine.facts(pages)

    assert engine.reading(pages) == UNKNOWN
    assert (facts.slots, facts.context, facts.model, facts.version) == (None, None, None, None)
    assert engine.advice(facts, pages)


def test_a_cut_page_keeps_what_was_whole() -> None:
    """
    Ten megabytes of a page are cut, and the numbers before the cut still count.
    """
    text = b"vllm:num_requests_running 3\n" + b"# filler\n" * 1000
    reading = adapter("vllm").reading({"/metrics": Page(status=200, body=text, cut=True)})

    assert dataclasses.replace(reading, running=None) == UNKNOWN
    assert reading.running == 3


@pytest.mark.parametrize(
    ("pages", "kind"),
    [
        (LLAMACPP, "llamacpp"),
        ({"/props": LLAMACPP["/props"]}, "llamacpp"),
        (VLLM, "vllm"),
        ({"/v1/models": VLLM["/v1/models"]}, "vllm"),
        ({"/metrics": page("sglang:num_running_reqs 1\n")}, "sglang"),
        ({"/v1/models": page('{"data": [{"id": "m", "owned_by": "me"}]}')}, "openai"),
        ({}, "openai"),
    ],
)
def test_the_kind_is_recognised(pages: dict[str, Page], kind: str) -> None:
    """
    Each kind is recognised by what only it shows, also when its metrics are off.
    """
    assert recognise(pages).kind == kind


@pytest.mark.parametrize(
    ("kind", "answer", "health"),
    [
        ("llamacpp", recorded("llamacpp", "health"), Health.OK),
        ("vllm", recorded("vllm", "health"), Health.OK),
        ("llamacpp", page('{"error":{"message":"Loading model"}}', 503), Health.LOADING),
        ("vllm", page("", 503), Health.FAILED),
        ("sglang", page("", 503), Health.LOADING),
        ("openai", page("", 401), Health.OK),
        ("openai", page("", 404), Health.FAILED),
        ("vllm", Page(status=0), Health.SILENT),
        ("vllm", page("", 302), Health.FAILED),
    ],
)
def test_health_pages_are_judged(kind: str, answer: Page, health: Health) -> None:
    """
    Loading is not failure, silence is not an answer, and a redirect is not health.
    """
    assert adapter(kind).health(answer) is health


def test_a_sleeping_vllm_is_noticed() -> None:
    """
    A sleeping vLLM is healthy and empty; only its own word keeps work away from it.
    """
    asleep = page(
        'vllm:engine_sleep_state{sleep_state="awake"} 0.0\n'
        'vllm:engine_sleep_state{sleep_state="weights_offloaded"} 1.0\n'
    )

    vllm = adapter("vllm")

    assert vllm.reading({"/metrics": asleep}).sleeping is True
    assert vllm.reading({"/is_sleeping": page('{"is_sleeping": true}')}).sleeping is True
    assert vllm.reading({"/metrics": page(OLD_VLLM)}).sleeping is None
