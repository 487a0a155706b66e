"""Dynamo: a worker's page speaks its engine's words, and a frontend never adds to what engines say."""

from collections.abc import Iterable

import pytest

from collectors.catalog import METRICS
from collectors.detect import detect_page
from collectors.generators import dynamo, sglang, tensorrt_llm, vllm
from collectors.model import Limits, Sample
from tests.collectors._reading import TESTDATA, page_json

PAGES = TESTDATA / "dynamo"
INJECTED = 'dynamo_component="backend",dynamo_endpoint="generate",dynamo_namespace="dynamo",model="m",worker_id="7"'


def metrics(samples: Iterable[Sample]) -> dict[tuple[str, ...], float]:
    return {(s.metric, *(f"{k}={v}" for k, v in s.labels)): s.value for s in samples}


def parse(text: str) -> dict[tuple[str, ...], float]:
    return metrics(dynamo.parse(text.encode(), {}, Limits()).samples)


def test_the_frontend_as_expected() -> None:
    found = page_json(dynamo.parse((PAGES / "frontend.prom").read_bytes(), {}, Limits()))
    assert found["samples"] == {
        'frontend_requests_total{status="success"}': 1000,  # 900 streamed, 100 not
        'frontend_requests_total{status="error"}': 3,
        "frontend_requests_in_flight": 40,
        "frontend_requests_queued": 5,
        "frontend_tokens_total": 512_000,
        "generator_max_sequence_tokens": 32_768,
    }
    assert found["histograms"]["frontend_response_tokens"] == {
        "edges": [256, 1024],
        "counts": [300, 980, 1000],
        "total": 512_000,
    }
    assert len(found["histograms"]) == 5
    assert "disconnected_clients" in found["unmapped"]


def test_nothing_a_frontend_counts_is_counted_by_an_engine_too() -> None:
    """Both are targets of one run, and signals sum over targets: the names must differ."""
    frontend = dynamo.parse((PAGES / "frontend.prom").read_bytes(), {}, Limits())
    worker = dynamo.parse((PAGES / "worker_vllm.prom").read_bytes(), {}, Limits())
    ours = {s.metric for s in frontend.samples} | {h.metric for h in frontend.histograms}
    theirs = {s.metric for s in worker.samples} | {h.metric for h in worker.histograms}
    assert not ours & theirs
    assert all(name.startswith("frontend_") for name in ours if METRICS[name].reduction == "cumulative")


def test_a_worker_is_read_in_its_engines_words() -> None:
    reading = dynamo.parse((PAGES / "worker_vllm.prom").read_bytes(), {}, Limits())
    assert metrics(reading.samples) == {
        ("generator_requests_running", "engine=0"): 22,
        ("generator_requests_running", "engine=1"): 18,
        ("generator_requests_waiting", "engine=0"): 0,
        ("generator_requests_waiting", "engine=1"): 1,
        ("kv_cache_usage_ratio", "engine=0"): 0.52,  # not the component's 0.5 beside it
        ("kv_cache_usage_ratio", "engine=1"): 0.48,
        ("generator_tokens_total", "engine=0"): 300_000,
        ("generator_tokens_total", "engine=1"): 212_000,
        ("generator_requests_finished_total", "engine=0", "reason=stop"): 500,
        ("generator_requests_finished_total", "engine=1", "reason=stop"): 480,
    }
    assert reading.unmapped == {}


def test_the_components_usage_is_a_ratio_where_no_engine_tells() -> None:
    assert parse(f"dynamo_component_gpu_cache_usage_percent{{{INJECTED}}} 0.5\n") == {("kv_cache_usage_ratio",): 0.5}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sglang:num_running_reqs", "generator_requests_running"),
        ("trtllm_num_requests_waiting", "generator_requests_waiting"),
        ("trtllm:num_requests_waiting", "generator_requests_waiting"),
        ("vllm:gpu_cache_usage_perc", "kv_cache_usage_ratio"),
    ],
)
def test_every_engine(line: str, expected: str) -> None:
    text = f"{line}{{{INJECTED}}} 3\n"
    assert parse(text) == {(expected,): 3}
    assert detect_page(text.encode()) == "dynamo"
    for engine in (vllm, sglang, tensorrt_llm):
        assert not engine.matches_page(text.encode())


def test_blocks_of_an_engine_are_tokens_here_too() -> None:
    text = f"trtllm_kv_cache_max_blocks{{{INJECTED}}} 10\ntrtllm_kv_cache_tokens_per_block{{{INJECTED}}} 32\n"
    assert parse(text) == {("kv_cache_capacity_tokens",): 320}


def test_live_tokens_of_an_sglang_worker_come_first() -> None:
    text = (
        f"sglang:generation_tokens_total{{{INJECTED}}} 80\n"
        f'sglang:realtime_tokens_total{{dp_rank="0",mode="decode",tp_rank="0",{INJECTED}}} 100\n'
    )
    assert parse(text) == {("generator_tokens_total", "engine=0"): 100}
