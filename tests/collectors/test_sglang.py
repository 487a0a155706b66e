"""SGLang pages: recorded truth, the renames of 0.4 to 0.5.23, and every trap of its labels."""

import json
from collections.abc import Iterable

import pytest

from collectors.generators import sglang
from collectors.model import Labels, Limits, Reading, Sample, ScrapeError
from tests.collectors._reading import TESTDATA, page_json, value

PAGES = TESTDATA / "sglang" / "driven"
LOAD = PAGES / "metrics_1795248877036_load.prom"
TWO_RANKS = TESTDATA / "exposition" / "sglang_synthetic_dp2.prom"
RANK = 'engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0",tp_rank="0"'


def ranked(tensor: int) -> str:
    return RANK.replace('tp_rank="0"', f'tp_rank="{tensor}"')


def parse(text: str) -> Reading:
    return sglang.parse(text.encode(), {}, Limits())


def metrics(samples: Iterable[Sample]) -> dict[tuple[str, ...], float]:
    return {(s.metric, *(f"{k}={v}" for k, v in s.labels)): s.value for s in samples}


def page(*lines: tuple[str, str, float], kind: str = "gauge") -> str:
    return "".join(f"# TYPE sglang:{n} {kind}\nsglang:{n}{{{labels}}} {number}\n" for n, labels, number in lines)


def histogram(name: str, labels: str, counts: tuple[int, int], total: float) -> str:
    return (
        f'sglang:{name}_sum{{{labels}}} {total}\nsglang:{name}_bucket{{{labels},le="0.1"}} {counts[0]}\n'
        f'sglang:{name}_bucket{{{labels},le="+Inf"}} {counts[1]}\nsglang:{name}_count{{{labels}}} {counts[1]}\n'
    )


def test_the_recorded_page_as_expected() -> None:
    assert page_json(sglang.parse(LOAD.read_bytes(), {}, Limits())) == json.loads((PAGES / "expected.json").read_text())


def test_the_recorded_page_in_numbers() -> None:
    reading = sglang.parse(LOAD.read_bytes(), {}, Limits())
    assert value(reading, "generator_requests_running") == 61
    assert value(reading, "generator_requests_waiting") == 38
    assert value(reading, "kv_cache_usage_ratio") == 0.8578125
    assert value(reading, "kv_cache_used_tokens") == 428_906
    assert value(reading, "kv_cache_capacity_tokens") == 500_000
    assert value(reading, "generator_tokens_total") == 98_886
    (lengths,) = [h for h in reading.histograms if h.metric == "generator_response_tokens"]
    assert (lengths.counts[-1], lengths.total) == (201, 98_886)


def test_idle_and_drained_pages() -> None:
    idle, _, drained = [sglang.parse(p.read_bytes(), {}, Limits()) for p in sorted(PAGES.glob("*.prom"))]
    assert value(idle, "generator_requests_running") == value(idle, "generator_requests_waiting") == 0
    # No request has finished: the counters are not there, and that is not zero.
    assert "generator_tokens_total" not in {s.metric for s in idle.samples}
    assert value(drained, "generator_requests_finished_total") == 506


def test_a_page_reads_the_same_from_the_cache() -> None:
    state: dict[str, object] = {}
    for path in sorted(PAGES.glob("*.prom")):
        body = path.read_bytes()
        assert page_json(sglang.parse(body, state, Limits())) == page_json(sglang.parse(body, {}, Limits()))


def test_data_parallel_ranks_are_engines() -> None:
    reading = sglang.parse(TWO_RANKS.read_bytes(), {}, Limits())
    zero, one = (("engine", "0"),), (("engine", "1"),)
    assert [value(reading, "generator_preemptions_total", e) for e in (zero, one)] == [1_064_691, 8_086_641]
    # decode; prefill_compute + prefill_cache
    assert [value(reading, "generator_tokens_total", e) for e in (zero, one)] == [2_424_547, 9_478_194]
    assert [value(reading, "generator_prompt_tokens_total", e) for e in (zero, one)] == [
        4_100_804 + 5_129_675,
        6_296_378 + 4_755_319,
    ]
    assert {h.labels for h in reading.histograms if h.metric == "generator_queue_seconds"} == {zero, one}


def test_live_tokens_come_before_those_counted_at_the_end() -> None:
    """`generation_tokens_total` has no dp_rank and moves when a request finishes: both would count twice."""
    text = page(
        ("generation_tokens_total", 'is_streaming="false",model_name="m"', 900),
        ("prompt_tokens_total", 'is_streaming="false",model_name="m"', 90),
        ("realtime_tokens_total", f'dp_rank="0",mode="decode",{RANK}', 1000),
        ("realtime_tokens_total", f'dp_rank="1",mode="decode",{RANK}', 1100),
        ("realtime_tokens_total", f'dp_rank="1",mode="prefill_cache",{RANK}', 40),
        kind="counter",
    )
    found = metrics(parse(text).samples)
    assert {k: v for k, v in found.items() if k[0] == "generator_tokens_total"} == {
        ("generator_tokens_total", "engine=0"): 1000,
        ("generator_tokens_total", "engine=1"): 1100,
    }
    assert found["generator_prompt_tokens_total", "engine=1"] == 40
    assert ("generator_prompt_tokens_total",) not in found
    assert found["generator_prompt_tokens_by_source_total", "engine=1", "source=local_cache_hit"] == 40


def test_a_first_response_still_in_prefill_has_generated_nothing() -> None:
    """Were the counter of finished requests taken here, the live one would seem to begin anew."""
    text = page(
        ("realtime_tokens_total", f'mode="prefill_compute",{RANK}', 50),
        ("generation_tokens_total", 'is_streaming="false",model_name="m"', 3),
        kind="counter",
    )
    assert metrics(parse(text).samples)["generator_tokens_total",] == 0


@pytest.mark.parametrize("order", [1, -1])
def test_ranks_of_one_model_count_once(order: int) -> None:
    """`--enable-metrics-for-all-schedulers`: every tensor-parallel rank tells the same."""
    lines = [
        (name, f'mode="{mode}",{ranked(rank)}', number)
        for rank in (0, 1, 10)
        for name, mode, number in [
            ("num_running_reqs", "", 8 + rank),
            ("realtime_tokens_total", "prefill_compute", 100 + rank),
            ("realtime_tokens_total", "prefill_cache", 20 + rank),
        ]
    ]
    found = metrics(parse(page(*lines[::order])).samples)
    assert (found["generator_requests_running",], found["generator_prompt_tokens_total",]) == (8, 120)


def test_histograms_of_ranks_count_once_and_of_streaming_are_summed() -> None:
    text = "# TYPE sglang:queue_time_seconds histogram\n# TYPE sglang:time_to_first_token_seconds histogram\n"
    text += histogram("queue_time_seconds", RANK, (1, 5), 2.5) + histogram("queue_time_seconds", ranked(1), (1, 5), 2.5)
    text += histogram("time_to_first_token_seconds", 'is_streaming="true"', (2, 4), 1.5)
    text += histogram("time_to_first_token_seconds", 'is_streaming="false"', (3, 7), 2.0)
    found = {h.metric: (h.counts, h.total) for h in parse(text).histograms}
    assert found == {"generator_queue_seconds": ((1, 5), 2.5), "time_to_first_token_seconds": ((5, 11), 3.5)}


def test_attention_ranks_with_their_own_data_stay_apart() -> None:
    """With dp attention the second data-parallel rank has no tensor rank 0."""
    text = page(("num_running_reqs", f'dp_rank="0",{RANK}', 8), ("num_running_reqs", f'dp_rank="1",{ranked(1)}', 9))
    assert metrics(parse(text).samples) == {
        ("generator_requests_running", "engine=0"): 8,
        ("generator_requests_running", "engine=1"): 9,
    }


def test_streaming_and_not_are_summed() -> None:
    text = page(
        *((name, f'is_streaming="{s}",model_name="m"', 10 + (s == "true"))
          for name in ("generation_tokens_total", "num_requests_total") for s in ("true", "false")),
        kind="counter",
    )  # fmt: skip
    found = metrics(parse(text).samples)
    assert (found["generator_tokens_total",], found["generator_requests_finished_total",]) == (21, 21)


@pytest.mark.parametrize("order", [1, -1])
def test_the_total_of_priorities_is_taken_not_its_parts(order: int) -> None:
    lines = [("num_queue_reqs", f'priority="{p}",{RANK}', n) for p, n in (("", 9), ("0", 4), ("1", 5))]
    assert metrics(parse(page(*lines[::order])).samples) == {("generator_requests_waiting",): 9}


def test_ranks_are_ordered_as_numbers() -> None:
    text = page(*(("token_usage", ranked(rank), rank / 100) for rank in (10, 2)))
    assert metrics(parse(text).samples) == {("kv_cache_usage_ratio",): 0.02}


def test_a_pid_is_no_label() -> None:
    """`num_paused_reqs` is a pulse of a gauge without multiprocess mode; it is no proof of a pause that lasts."""
    found = metrics(parse(page(("num_paused_reqs", f'pid="10634",{RANK}', 3))).samples)
    assert found == {("generator_requests_paused",): 3}


def test_gauges_with_an_edge_are_no_histogram() -> None:
    text = page(*(("routing_key_running_req_count", f'gt="{i}",le="{i + 1}",{RANK}', 1) for i in range(5)))
    reading = parse(text + page(("num_running_reqs", RANK, 1)))
    assert reading.histograms == ()
    assert reading.unmapped == {"routing_key_running_req_count": 1}


def test_utilization_is_ignored() -> None:
    """Stuck at 0 (-1 on prefill workers) by a TODO in its source."""
    reading = parse(page(("utilization", RANK, 0), ("num_running_reqs", RANK, 50)))
    assert metrics(reading.samples) == {("generator_requests_running",): 50}
    assert reading.unmapped == {}


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("old", "new", "metric"),
    [
        ("total_retracted_reqs", "num_retracted_requests_total", ("generator_preemptions_total",)),
        ("kv_used_tokens", "num_used_tokens", ("kv_cache_used_tokens",)),
        (
            "num_prefill_infight_queue_reqs", "num_prefill_inflight_queue_reqs",
            ("generator_requests_waiting_by_reason", "reason=prefill_inflight"),
        ),
        (
            "num_prefill_prealloc_queue_reqs", "num_prefill_bootstrap_queue_reqs",
            ("generator_requests_waiting_by_reason", "reason=prefill_bootstrap"),
        ),
        ('cache_config_info', "max_total_num_tokens", ("kv_cache_capacity_tokens",)),
    ],
)  # fmt: skip
def test_old_and_new_name_are_one_value(old: str, new: str, metric: tuple[str, ...], order: int) -> None:
    lines = [(old, f'num_pages="7",page_size="1",{RANK}', 1), (new, RANK, 40)]
    assert metrics(parse(page(*lines[::order])).samples) == {metric: 40}
    assert metrics(parse(page(lines[0])).samples) == {metric: 7 if old == "cache_config_info" else 1}


@pytest.mark.parametrize("order", [1, -1])
def test_the_old_name_of_token_gaps(order: int) -> None:
    """0.4.3 says time_per_output_token_seconds, 0.4.6 on inter_token_latency_seconds."""
    names = ["inter_token_latency_seconds", "time_per_output_token_seconds"]
    text = "".join(f"# TYPE sglang:{n} histogram\n" for n in names)
    parts = [histogram(names[0], 'model_name="m"', (1, 100), 5.0), histogram(names[1], 'model_name="m"', (1, 90), 4.0)]
    (gap,) = parse(text + "".join(parts[::order])).histograms
    assert (gap.metric, gap.counts[-1]) == ("inter_token_latency_seconds", 100)
    (gap,) = parse(text + parts[1]).histograms
    assert (gap.metric, gap.counts[-1]) == ("inter_token_latency_seconds", 90)


def test_a_page_of_0_4() -> None:
    """No ranks, no is_streaming; aborted requests as a gauge, the queue's latency as a mean."""
    text = page(
        ("num_running_reqs", 'model_name="m"', 4),
        ("num_used_tokens", 'model_name="m"', 123),
        ("avg_request_queue_latency", 'model_name="m"', 0.5),
        ("num_aborted_requests", 'model_name="m"', 2),
    ) + page(("generation_tokens_total", 'model_name="m"', 77), kind="counter")
    assert metrics(parse(text).samples) == {
        ("generator_requests_running",): 4,
        ("kv_cache_used_tokens",): 123,
        ("generator_queue_seconds_mean",): 0.5,
        ("generator_requests_aborted_total",): 2,
        ("generator_tokens_total",): 77,
    }


def test_hits_are_summed_over_tiers_and_queries_over_all_modes() -> None:
    modes = {"input": 60, "device_hit": 30, "host_hit": 8, "storage_hit": 2}
    lines = [("prefill_effective_tokens_total", f'mode="{m}",{RANK}', n) for m, n in modes.items()]
    lines += [("cached_tokens_total", 'cache_source="total",model_name="m"', 35)]
    lines += [("prompt_tokens_total", 'is_streaming="false",model_name="m"', 80)]
    found = metrics(parse(page(*lines, kind="counter")).samples)
    assert (found["prefix_cache_queries_total",], found["prefix_cache_hits_total",]) == (100, 40)
    before_0_5_23 = metrics(parse(page(*lines[-2:], kind="counter")).samples)
    assert (before_0_5_23["prefix_cache_queries_total",], before_0_5_23["prefix_cache_hits_total",]) == (80, 35)


def test_live_prefix_counters_that_stay_at_zero_do_not_outvote_those_of_ended_requests() -> None:
    """The recorded engine: 3,957 of 44,865 prompt tokens, .088; its live counters, there and at 0, say nothing.

    Each process of a merged page by itself: b counts live, 40 of 100, where its ended requests are at 35 of 80.
    """
    recorded = metrics(parse((TESTDATA / "sglang/driven/metrics_1795248877036_load.prom").read_text()).samples)
    assert recorded["prefix_cache_queries_total",] == 44_865
    assert recorded["prefix_cache_hits_total",] == 3_957
    lines = [
        (name, f'{labels},worker_addr="http://{host}:1"', scale * value)
        for host, scale in (("a", 0), ("b", 1))
        for name, labels, value in (
            ("prefill_effective_tokens_total", f'mode="input",{RANK}', 60),
            ("prefill_effective_tokens_total", f'mode="device_hit",{RANK}', 40),
        )
    ]
    for host in ("a", "b"):
        lines.append(("cached_tokens_total", f'cache_source="total",worker_addr="http://{host}:1"', 35))
        lines.append(("prompt_tokens_total", f'is_streaming="false",worker_addr="http://{host}:1"', 80))
    found = metrics(parse(page(*lines, kind="counter")).samples)
    assert {key: value for key, value in found.items() if key[0].startswith("prefix")} == {
        ("prefix_cache_queries_total", "replica=a:1"): 80,
        ("prefix_cache_hits_total", "replica=a:1"): 35,
        ("prefix_cache_queries_total", "replica=b:1"): 100,
        ("prefix_cache_hits_total", "replica=b:1"): 40,
    }


def test_cached_tokens_of_all_sources_are_summed() -> None:
    sources = (("device", 5), ("host", 3), ("total", 2))
    lines = [("cached_tokens_total", f'cache_source="{s}",model_name="m"', n) for s, n in sources]
    assert metrics(parse(page(*lines, kind="counter")).samples) == {("prefix_cache_hits_total",): 10}


def test_idle_seconds_and_weight_loads() -> None:
    text = page(
        ("scheduler_idle_seconds_total", RANK, 81.5),
        ("weight_load_duration_seconds", f'source="distributed",{RANK}', 2.5),
    )
    assert metrics(parse(text).samples) == {
        ("generator_idle_seconds_total",): 81.5,
        ("generator_weight_load_seconds", "source=distributed"): 2.5,
    }


def calls(pauses: int, resumes: int, tokens: int) -> str:
    return page(
        ("http_responses_total", 'endpoint="/pause_generation",method="POST",status_code="200"', pauses),
        ("http_responses_total", 'endpoint="/pause_generation",method="POST",status_code="500"', 99),
        ("http_responses_total", 'endpoint="/continue_generation",method="POST",status_code="200"', resumes),
        ("http_responses_total", 'endpoint="/update_weights_from_tensor",method="POST",status_code="200"', 4),
        ("http_responses_total", 'endpoint="/update_weights_from_disk",method="POST",status_code="200"', 1),
        ("http_responses_total", 'endpoint="/generate",method="POST",status_code="200"', 1000),
        ("http_responses_total", 'endpoint="/model_info",method="GET",status_code="200"', 700),
        ("http_requests_active", 'endpoint="/update_weights_from_tensor",method="POST"', 1),
        ("realtime_tokens_total", f'mode="decode",{RANK}', tokens),
        kind="untyped",
    )


def test_pauses_and_weight_updates_show_in_the_http_metrics() -> None:
    """0.5.23 on. Our own question (/model_info) changes nothing and is no control call."""
    assert metrics(parse(calls(3, 2, 500)).samples) == {
        ("generator_control_requests_total", "call=pause"): 3,
        ("generator_control_requests_total", "call=resume"): 2,
        ("generator_control_requests_total", "call=update_weights"): 5,
        ("generator_control_requests_active", "call=update_weights"): 1,
        ("generator_tokens_total",): 500,
        ("generator_paused",): 1,
    }
    assert value(parse(calls(3, 3, 500)), "generator_paused") == 0


def test_a_routers_merged_page_keeps_workers_apart() -> None:
    """`/engine_metrics`: every colon is an underscore, missing labels are padded, the worker's URL is added."""
    lines = [
        f'sglang_num_running_reqs{{dp_rank="",{RANK},worker_addr="http://u:sekret@10.0.0.{n}:30000"}} {n}\n'
        for n in (1, 2)
    ]
    text = "# TYPE sglang_num_running_reqs gauge\n" + "".join(lines)
    assert sglang.matches_page(text.encode())
    assert metrics(parse(text).samples) == {
        ("generator_requests_running", "replica=10.0.0.1:30000"): 1,
        ("generator_requests_running", "replica=10.0.0.2:30000"): 2,
    }


def test_live_tokens_of_one_worker_leave_the_others_alone() -> None:
    """A merged page of two versions: each worker's newest name is taken."""
    workers: list[tuple[str, Labels]] = []
    text = (
        f'sglang_realtime_tokens_total{{mode="decode",{RANK},worker_addr="http://a:1"}} 100\n'
        'sglang_generation_tokens_total{model_name="m",worker_addr="http://a:1"} 80\n'
        'sglang_generation_tokens_total{model_name="m",worker_addr="http://b:1"} 70\n'
    )
    workers = [(s.metric, s.labels) for s in parse(text).samples if s.value in (100, 70)]
    assert workers == [
        ("generator_tokens_total", (("replica", "a:1"),)),
        ("generator_tokens_total", (("replica", "b:1"),)),
    ]
    assert len(parse(text).samples) == 2


def test_a_strangers_page_is_refused() -> None:
    with pytest.raises(ScrapeError, match="sglang") as caught:
        parse("# TYPE smg_worker_health gauge\nsmg_worker_health 1\n")
    assert caught.value.kind == "garbage"
