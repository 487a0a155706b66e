"""trtllm-serve: the page beside the JSON, blocks as tokens, and the endpoint that must never be asked."""

import asyncio
from collections.abc import Mapping

import httpx
import pytest

from collectors.generators import tensorrt_llm
from collectors.model import Limits, Reading, ScrapeError
from server.targets.resolve import _detect_url
from tests.collectors._reading import TESTDATA, page_json, value

PAGE = TESTDATA / "tensorrt_llm" / "by_source.prom"
JSON = b'[{"gpuMemUsage": 1, "iter": 7, "numActiveRequests": 3}]\n'


def server(routes: Mapping[str, bytes], asked: list[str]) -> httpx.ASGITransport:
    async def app(scope, receive, send) -> None:
        asked.append(scope["path"])
        body = routes.get(scope["path"])
        await send({"type": "http.response.start", "status": 404 if body is None else 200, "headers": []})
        await send({"type": "http.response.body", "body": body or b""})

    return httpx.ASGITransport(app)


def poll(url: str, routes: Mapping[str, bytes]) -> tuple[Reading, list[str]]:
    asked: list[str] = []

    async def run() -> Reading:
        async with httpx.AsyncClient(base_url=url, transport=server(routes, asked)) as client:
            assert await tensorrt_llm.matches_server(client, Limits()) == ("/prometheus/metrics" in "".join(routes))
            return await tensorrt_llm.poll(client, {}, Limits())

    return asyncio.run(run()), asked


def test_the_page_as_expected() -> None:
    found = page_json(tensorrt_llm.parse(PAGE.read_bytes(), {}, Limits()))
    assert found["samples"] == {
        "generator_requests_running": 96,
        "generator_requests_waiting": 14,
        'generator_requests_waiting_by_reason{reason="paused"}': 3,
        "generator_request_limit": 128,
        "kv_cache_usage_ratio": 0.75,
        "kv_cache_capacity_tokens": 64_000,  # 2,000 blocks of 32
        "kv_cache_used_tokens": 48_000,
        "prefix_cache_hit_ratio": 0.25,
        'generator_requests_finished_total{reason="stop"}': 410,
        'generator_requests_finished_total{reason="length"}': 35,
        "generator_prompt_tokens_total": 89_000,
        "generator_tokens_total": 356_000,
        "speculative_draft_tokens_total": 0,
        "speculative_accepted_tokens_total": 0,
    }
    assert found["histograms"]["generator_prefill_seconds"] == {
        "edges": [0.001, 0.005],
        "counts": [0, 445, 445],
        "total": 1.5,
    }
    assert found["histograms"]["e2e_request_seconds"]["total"] == 812.5
    assert set(found["histograms"]) == {
        "e2e_request_seconds",
        "time_to_first_token_seconds",
        "request_time_per_token_seconds",
        "generator_queue_seconds",
        "generator_prefill_seconds",
    }
    assert "num_context_requests" in found["unmapped"]


def test_requests_completed_are_not_counted_beside_their_reasons() -> None:
    reading = tensorrt_llm.parse(PAGE.read_bytes(), {}, Limits())
    assert sum(s.value for s in reading.samples if s.metric == "generator_requests_finished_total") == 445


def test_blocks_of_unknown_size_are_no_tokens() -> None:
    reading = tensorrt_llm.parse(b'trtllm_kv_cache_used_blocks{model_name="m"} 1500\n', {}, Limits())
    assert reading.samples == ()


def test_the_older_prefix_under_dynamo() -> None:
    reading = tensorrt_llm.parse(b'trtllm:num_requests_running{model_name="m"} 5\n', {}, Limits())
    assert value(reading, "generator_requests_running") == 5


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://engine:8000", "/prometheus/metrics"),
        ("http://engine:8000/", "/prometheus/metrics"),
        ("http://engine:8000/metrics", "/prometheus/metrics"),
        ("http://engine:8000/prometheus/metrics", "/prometheus/metrics"),
        ("http://engine:8000/perf_metrics", "/prometheus/metrics"),
        ("http://proxy/engine-0/metrics", "/engine-0/prometheus/metrics"),
    ],
)
def test_only_the_prometheus_page_is_ever_asked(url: str, path: str) -> None:
    """/perf_metrics hands out each request's times once, /metrics drains the iterations: both are somebody's."""
    reading, asked = poll(url, {path: PAGE.read_bytes(), "/metrics": JSON})
    assert value(reading, "generator_requests_running") == 96
    assert set(asked) == {path}


def test_without_the_option_it_is_named() -> None:
    with pytest.raises(ScrapeError, match="return_perf_metrics"):
        poll("http://engine:8000", {"/metrics": JSON})


@pytest.mark.parametrize("body", [JSON, b'{"iter": 1}\n', b"  [\n]\n"])
def test_the_json_is_not_taken_for_a_page(body: bytes) -> None:
    with pytest.raises(ScrapeError, match="the metrics page is at /prometheus/metrics") as caught:
        tensorrt_llm.parse(body, {}, Limits())
    assert caught.value.kind == "garbage"
    assert not tensorrt_llm.matches_page(body)


def test_watch_finds_it_behind_the_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """`rollscope watch http://host:8000` asks /metrics and gets JSON: the server is then asked what it is."""
    asked: list[str] = []
    transport = server({"/metrics": JSON, "/prometheus/metrics": PAGE.read_bytes()}, asked)
    plain = httpx.AsyncClient
    monkeypatch.setattr(httpx, "AsyncClient", lambda **options: plain(**options, transport=transport))
    assert _detect_url("http://engine:8000", (), Limits()) == ("http://engine:8000", ["tensorrt_llm"])
    assert "/perf_metrics" not in asked


@pytest.mark.parametrize("number", ["-1", "+Inf", "NaN"])
def test_a_senseless_number_of_blocks_is_refused_like_any_other(number: str) -> None:
    text = f"trtllm_kv_cache_tokens_per_block 32\ntrtllm_kv_cache_used_blocks {number}\n"
    reading = tensorrt_llm.parse(text.encode(), {}, Limits())
    assert [sample for sample in reading.samples if sample.value >= 0] == []
