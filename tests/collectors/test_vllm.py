"""vLLM pages: recorded truth, and every trap of the format but its names."""

import asyncio
import json
import re

import httpx
import pytest

from collectors.generators import vllm
from collectors.model import Limits, Reading, ScrapeError
from tests.collectors._reading import TESTDATA, page_json, value
from tests.collectors._vllm import ENGINE, LOAD, PAGES, metrics, parse, token_gap


def test_the_recorded_page_as_expected() -> None:
    expected = json.loads((PAGES / "default" / "expected.json").read_text())
    assert page_json(vllm.parse(LOAD.read_bytes(), {}, Limits())) == expected


def test_the_recorded_page_in_numbers() -> None:
    reading = vllm.parse(LOAD.read_bytes(), {}, Limits())
    assert value(reading, "generator_requests_running", ENGINE) == 128
    assert value(reading, "generator_requests_waiting", ENGINE) == 723
    assert value(reading, "kv_cache_usage_ratio", ENGINE) == 0.01635941887437431
    assert value(reading, "kv_cache_capacity_tokens", ENGINE) == 1048576
    assert value(reading, "kv_concurrency_limit", ENGINE) == 1024
    assert value(reading, "generator_asleep", ENGINE) == 0
    assert reading.samples_scraped == 425


def test_counters_over_the_recorded_load() -> None:
    """The client's own requests.jsonl: 1,273 finished requests, 175,970 generated tokens."""
    state: dict[str, object] = {}
    paths = sorted((PAGES / "default").glob("*.prom"))
    first, *_, last = [vllm.parse(path.read_bytes(), state, Limits()) for path in paths]

    def total(reading: Reading, metric: str) -> float:
        return sum(s.value for s in reading.samples if s.metric == metric)

    def grown(metric: str) -> float:
        return total(last, metric) - total(first, metric)

    assert grown("generator_requests_finished_total") == 1273
    assert grown("generator_tokens_total") == 175_970
    (lengths,) = [h for h in last.histograms if h.metric == "generator_response_tokens"]
    assert lengths.counts[-1] == total(last, "generator_requests_finished_total")


def test_a_page_reads_the_same_from_the_cache() -> None:
    state: dict[str, object] = {}
    for path in sorted(PAGES.glob("*/*.prom")):
        body = path.read_bytes()
        assert page_json(vllm.parse(body, state, Limits())) == page_json(vllm.parse(body, {}, Limits()))


def test_sleep() -> None:
    asleep, awake = [
        value(vllm.parse(path.read_bytes(), {}, Limits()), "generator_asleep", ENGINE)
        for path in sorted((PAGES / "sleep").glob("*.prom"))
    ]
    assert (asleep, awake) == (1, 0)


@pytest.mark.parametrize(
    ("first", "second"), [("weights_offloaded", "discard_all"), ("discard_all", "weights_offloaded")]
)
def test_both_sleep_levels_count(first: str, second: str) -> None:
    text = (
        f'vllm:engine_sleep_state{{engine="0",sleep_state="awake"}} 0\n'
        f'vllm:engine_sleep_state{{engine="0",sleep_state="{first}"}} 1\n'
        f'vllm:engine_sleep_state{{engine="0",sleep_state="{second}"}} 0\n'
    )
    assert value(parse(text), "generator_asleep", ENGINE) == 1


def test_a_pause_is_told_from_a_hang() -> None:
    """The gauges freeze as in a hang; the HTTP server has counted one /pause more than /resume: 93 and 92."""
    pages = [vllm.parse(p.read_bytes(), {}, Limits()) for p in sorted((PAGES / "pause").glob("*.prom"))]
    assert [value(page, "generator_paused") for page in pages] == [0, 1, 1, 0, 0]  # load, paused twice, resumed, after
    before, first, second, resumed, after = pages
    for metric in ("generator_requests_running", "generator_requests_waiting", "generator_tokens_total"):
        assert value(first, metric, ENGINE) == value(second, metric, ENGINE) == value(resumed, metric, ENGINE)
    assert [value(page, "generator_requests_running", ENGINE) for page in (before, first, after)] == [32, 32, 0]


def test_data_parallel_engines_stay_apart() -> None:
    reading = vllm.parse((PAGES / "synthetic_2_engines.prom").read_bytes(), {}, Limits())
    engines = {s.labels for s in reading.samples if s.metric == "kv_cache_usage_ratio"}
    assert engines == {(("engine", "0"),), (("engine", "1"),)}
    lengths = [h for h in reading.histograms if h.metric == "generator_response_tokens"]
    assert [h.labels for h in lengths] == [(("engine", "0"),), (("engine", "1"),)]
    assert all(len(h.counts) == len(h.edges) + 1 for h in reading.histograms)
    assert not any("created" in key for key in reading.unmapped)


@pytest.mark.parametrize(
    ("labels", "capacity", "limit"),
    [
        ('block_size="128",num_gpu_blocks="40",kv_cache_size_tokens="5120",kv_cache_max_concurrency="5.0"', 5120, 5),
        ('block_size="16",num_gpu_blocks="1000"', 16_000, None),  # before 0.29
        ('block_size="16",num_gpu_blocks="1000",kv_cache_size_tokens="None"', 16_000, None),
        ('block_size="16",num_gpu_blocks="4000",num_gpu_blocks_override="1000"', 16_000, None),
        ('block_size="16",num_gpu_blocks="1000",num_gpu_blocks_override="None"', 16_000, None),
        ('block_size="16",num_gpu_blocks="None"', None, None),
    ],
)
def test_kv_capacity(labels: str, capacity: float | None, limit: float | None) -> None:
    found = metrics(parse(f'vllm:cache_config_info{{engine="0",{labels}}} 1\n').samples)
    assert found.get(("kv_cache_capacity_tokens", "engine=0")) == capacity
    assert found.get(("kv_concurrency_limit", "engine=0")) == limit


def test_blocks_times_size_is_what_the_engine_itself_says() -> None:
    """The recorded page with and without the label that came with 0.29: 8192 blocks of 128 tokens."""
    page = LOAD.read_text()
    older = re.sub(r'kv_cache_size_tokens="[^"]*",', "", page)
    assert older != page
    for text in (page, older):
        assert value(parse(text), "kv_cache_capacity_tokens", ENGINE) == 1_048_576


def test_router_series_are_dropped() -> None:
    """The production-stack router re-uses vLLM's names, labelled by server: counting them doubles the load."""
    text = (
        'vllm:num_requests_running{engine="0",model_name="m"} 3\n'
        'vllm:num_requests_running{server="http://10.0.0.1:8000"} 3\n'
        'vllm:gpu_prefix_cache_hits_total{server="http://10.0.0.1:8000"} 9\n'
    )
    assert metrics(parse(text).samples) == {("generator_requests_running", "engine=0"): 3}


def test_a_routers_own_page_is_refused() -> None:
    text = 'vllm:num_requests_running{server="http://10.0.0.1:8000"} 3\nvllm:healthy_pods_total{server="x"} 1\n'
    assert not vllm.matches_page(text.encode())
    with pytest.raises(ScrapeError, match="router") as caught:
        parse(text)
    assert caught.value.kind == "garbage"


def test_a_page_without_stats_says_why() -> None:
    with pytest.raises(ScrapeError, match="disable-log-stats"):
        parse("# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 5\n")


def test_unmapped_counts_families_not_samples() -> None:
    buckets = "".join(f'vllm:new_thing_seconds_bucket{{engine="0",le="{i}"}} 1\n' for i in range(50))
    reading = parse(f'# TYPE vllm:new_thing_seconds histogram\n{buckets}vllm:other{{engine="0"}} 1\n')
    assert reading.unmapped == {"new_thing_seconds": 1, "other": 1}


def test_not_a_number_is_no_sample() -> None:
    assert parse('vllm:kv_cache_usage_perc{engine="0"} NaN\n').samples == ()


def test_edges_are_the_pages_own() -> None:
    """custom_histogram_buckets (0.32) lets users choose them; they may change at a restart."""
    state: dict[str, object] = {}
    for edge in ("0.1", "0.7"):
        text = token_gap("inter_token_latency_seconds", 5).replace('"0.1"', f'"{edge}"')
        (gap,) = vllm.parse(text.encode(), state, Limits()).histograms
        assert gap.edges == (float(edge),)


def test_weight_updates_of_prime_rl_show_in_the_http_metrics() -> None:
    text = (
        'vllm:num_requests_running{engine="0"} 1\n'
        'http_requests_total{handler="/update_weights",method="POST",status="2xx"} 12\n'
        'http_requests_total{handler="/update_weights",method="POST",status="5xx"} 1\n'
        'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 99\n'
        'http_requests_total{handler="/is_paused",method="GET",status="2xx"} 400\n'  # our own questions
        'http_requests_total{handler="/weight_info",method="GET",status="2xx"} 400\n'
        'http_requests_total{handler="/update_weights",method="GET",status="2xx"} 7\n'
        'http_request_duration_seconds_sum{handler="/update_weights",method="POST"} 30.5\n'
    )
    reading = parse(text)
    assert [s.value for s in reading.samples if s.metric == "generator_control_requests_total"] == [12]
    assert value(reading, "generator_control_requests_total", (("call", "update_weights"),)) == 12
    assert value(reading, "generator_control_seconds_total", (("call", "update_weights"),)) == 30.5


def test_calls_of_a_merged_pages_workers_stay_apart() -> None:
    lines = [
        f'http_requests_total{{handler="/pause",method="POST",status="2xx",worker_addr="http://{host}:8000"}} {n}\n'
        for host, n in (("a", 3), ("b", 5))
    ]
    reading = parse('vllm_num_requests_running{engine="0",worker_addr="http://a:8000"} 1\n' + "".join(lines))
    calls = [(s.labels, s.value) for s in reading.samples if s.metric == "generator_control_requests_total"]
    assert calls == [
        ((("call", "pause"), ("replica", "a:8000")), 3),
        ((("call", "pause"), ("replica", "b:8000")), 5),
    ]


def test_a_constrained_cache() -> None:
    """Waiting by reason are parts of waiting: all three stay themselves."""
    text = (
        'vllm:num_requests_waiting{engine="0"} 9\n'
        'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 7\n'
        'vllm:num_requests_waiting_by_reason{engine="0",reason="deferred"} 2\n'
        'vllm:num_preemptions_total{engine="0"} 31\nvllm:kv_cache_usage_perc{engine="0"} 0.9487179487179487\n'
    )
    assert metrics(parse(text).samples) == {
        ("generator_requests_waiting", "engine=0"): 9,
        ("generator_requests_waiting_by_reason", "engine=0", "reason=capacity"): 7,
        ("generator_requests_waiting_by_reason", "engine=0", "reason=deferred"): 2,
        ("generator_preemptions_total", "engine=0"): 31,
        ("kv_cache_usage_ratio", "engine=0"): 0.9487179487179487,
    }


def test_operations_that_are_under_way() -> None:
    """0.32: a weight update in progress is a gauge, without the engine."""
    text = 'vllm:num_requests_running{engine="0"} 1\nvllm:rl_weight_update_operations_in_flight{operation="update"} 1\n'
    assert value(parse(text), "generator_control_requests_active", (("call", "update"),)) == 1


def test_json_is_told_from_a_page() -> None:
    """trtllm-serve answers /metrics with JSON."""
    with pytest.raises(ScrapeError, match="JSON"):
        vllm.parse(b'[{"iter": 1, "numActiveRequests": 3}]\n', {}, Limits())


def test_a_workers_address_loses_its_credentials() -> None:
    text = 'vllm_num_requests_running{engine="0",worker_addr="http://u:sekret@10.0.0.1:8000/x?k=sekret"} 1\n'
    assert value(parse(text), "generator_requests_running", (*ENGINE, ("replica", "10.0.0.1:8000"))) == 1


@pytest.mark.parametrize("cut", [200, 5_000, 30_000, -1, -3])
def test_a_cut_page_is_refused_whole(cut: int) -> None:
    """A number cut in the middle is still a number: better no page than a wrong one."""
    with pytest.raises(ScrapeError) as caught:
        vllm.parse(LOAD.read_bytes()[:cut], {}, Limits())
    assert caught.value.kind == "garbage"


@pytest.mark.parametrize(
    ("base", "asked"),
    [
        ("http://engine:8000", "/metrics"),
        ("http://engine:8000/", "/metrics"),
        ("http://engine:8000/metrics", "/metrics"),
        ("http://router:30000/engine_metrics", "/engine_metrics"),
        ("http://proxy/engine-0", "/engine-0/metrics"),
    ],
)
def test_poll_finds_the_page(base: str, asked: str) -> None:
    seen = []

    async def app(scope, receive, send) -> None:
        if dict(scope["headers"])[b"accept"] != b"text/plain;version=0.0.4":
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        seen.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'vllm:num_requests_running{engine="0"} 1\n'})

    async def run() -> Reading:
        async with httpx.AsyncClient(base_url=base, transport=httpx.ASGITransport(app)) as client:
            return await vllm.poll(client, {}, Limits())

    assert value(asyncio.run(run()), "generator_requests_running", ENGINE) == 1
    assert seen == [asked]


def test_matches_page() -> None:
    assert vllm.matches_page(LOAD.read_bytes())
    assert vllm.matches_page(b'ray_vllm_num_requests_running{engine="0"} 1\n')
    for body in (b"", b"<html>vllm:num_requests_running", b'sglang:num_running_reqs{tp_rank="0"} 1\n'):
        assert not vllm.matches_page(body)
    assert not vllm.matches_page((TESTDATA / "exposition" / "sglang_synthetic_dp2.prom").read_bytes())
