"""Names on vLLM pages: every prefix and the renames of 0.8 to 0.33, each read once."""

import pytest

from tests.collectors._reading import value
from tests.collectors._vllm import ENGINE, metrics, parse, token_gap

FORMS = {"vllm:{}": (), "vllm_{}": (), "ray_vllm_{}": (("replica", "w1"),)}


@pytest.mark.parametrize("form", FORMS)
def test_prefixes(form: str) -> None:
    labels = 'engine="0",model_name="m"' + (',WorkerId="w1",otel_scope_name="x"' if "ray" in form else "")
    text = "".join(
        f"# TYPE {form.format(name)} {kind}\n{form.format(name)}{suffix}{{{labels}{extra}}} {number}\n"
        for name, kind, suffix, extra, number in [
            ("num_requests_running", "gauge", "", "", 3),
            ("generation_tokens_total", "counter", "", "", 10),
            ("request_success_total", "counter", "", ',finished_reason="stop"', 7),
            ("iteration_tokens_total", "histogram", "_sum", "", 5),
        ]
    )
    name = form.format("iteration_tokens_total")
    text += f'{name}_bucket{{{labels},le="1.0"}} 1\n{name}_bucket{{{labels},le="+Inf"}} 2\n'
    reading, replica = parse(text), FORMS[form]
    kept = tuple(sorted((*ENGINE, *replica)))
    assert value(reading, "generator_requests_running", kept) == 3
    assert value(reading, "generator_tokens_total", kept) == 10
    finished = tuple(sorted((*kept, ("reason", "stop"))))
    assert value(reading, "generator_requests_finished_total", finished) == 7
    (iterations,) = reading.histograms  # "_total" is part of this histogram's name
    assert (iterations.metric, iterations.counts, iterations.total) == ("generator_iteration_tokens", (1, 2), 5)
    assert reading.unmapped == {}


@pytest.mark.parametrize(
    ("old", "metric"),
    [
        ("gpu_cache_usage_perc", "kv_cache_usage_ratio"),
        ("gpu_prefix_cache_queries_total", "prefix_cache_queries_total"),
        ("gpu_prefix_cache_hits_total", "prefix_cache_hits_total"),
        ("num_preemptions", "generator_preemptions_total"),
        ("num_preemptions_total", "generator_preemptions_total"),
    ],
)
def test_old_names_of_0_8_to_0_10(old: str, metric: str) -> None:
    assert value(parse(f'vllm:{old}{{engine="0"}} 0.5\n'), metric, ENGINE) == 0.5


def test_v0_pages_have_no_engine_label() -> None:
    assert value(parse('vllm:num_requests_running{model_name="m"} 5\n'), "generator_requests_running") == 5


@pytest.mark.parametrize("order", [1, -1])
def test_old_and_new_name_on_one_page_are_one_value(order: int) -> None:
    """0.9 to 0.11 emit both; the newer name is taken whichever comes first."""
    lines = ['vllm:kv_cache_usage_perc{engine="0"} 0.4\n', 'vllm:gpu_cache_usage_perc{engine="0"} 0.3\n']
    assert value(parse("".join(lines[::order])), "kv_cache_usage_ratio", ENGINE) == 0.4


@pytest.mark.parametrize("order", [1, -1])
def test_inter_token_and_per_output_token_are_never_added(order: int) -> None:
    """0.10.2 to 0.11.2 emit both names of the same tokens."""
    pages = [token_gap("inter_token_latency_seconds", 100), token_gap("time_per_output_token_seconds", 90)]
    (gap,) = parse("".join(pages[::order])).histograms
    assert (gap.metric, gap.counts) == ("inter_token_latency_seconds", (100, 100))


def test_the_older_name_alone_is_read() -> None:
    (gap,) = parse(token_gap("time_per_output_token_seconds", 90)).histograms
    assert (gap.metric, gap.counts) == ("inter_token_latency_seconds", (90, 90))


@pytest.mark.parametrize("order", [1, -1])
def test_rays_older_exporter_writes_counters_twice(order: int) -> None:
    lines = [
        '# TYPE ray_vllm_generation_tokens_total counter\nray_vllm_generation_tokens_total{engine="0"} 10\n',
        '# TYPE ray_vllm_generation_tokens gauge\nray_vllm_generation_tokens{engine="0"} 9\n',
    ]
    assert metrics(parse("".join(lines[::order])).samples) == {("generator_tokens_total", "engine=0"): 10}


def test_a_ray_page_without_the_engine_is_no_error() -> None:
    """Ray exports a gauge in every second page only: absent is neither zero nor a broken target."""
    assert parse("# TYPE ray_node_gpus_available gauge\nray_node_gpus_available 8\n").samples == ()


def test_created_series_are_dropped() -> None:
    text = '# TYPE vllm:generation_tokens_created gauge\nvllm:generation_tokens_created{engine="0"} 1.7e9\n'
    reading = parse(text)
    assert (reading.samples, reading.unmapped) == ((), {})


def test_v0_names() -> None:
    """0.8 and 0.9 with VLLM_USE_V1=0; V1 knows no swapping."""
    text = 'vllm:num_requests_swapped{model_name="m"} 2\nvllm:spec_decode_draft_acceptance_rate{model_name="m"} 0.7\n'
    assert metrics(parse(text).samples) == {
        ("generator_requests_waiting_by_reason", "reason=swapped"): 2,
        ("speculative_accept_ratio",): 0.7,
    }


@pytest.mark.parametrize("line", ["# TYPE vllm:inter_token_latency_seconds histogram\n", ""])
def test_histograms_without_a_type_line_by_their_name(line: str) -> None:
    """Federation drops it; OpenMetrics of prometheus_client writes `vllm:` there and `vllm_` in the samples."""
    text = token_gap("inter_token_latency_seconds", 90).split("\n", 1)[1].replace("vllm:", "vllm_")
    text += (
        'vllm_iteration_tokens_total_bucket{engine="0",le="+Inf"} 3\nvllm_iteration_tokens_total_sum{engine="0"} 5\n'
    )
    reading = parse(line + text)
    assert {h.metric: h.counts[-1] for h in reading.histograms} == {
        "inter_token_latency_seconds": 90,
        "generator_iteration_tokens": 3,
    }
    assert reading.unmapped == {}


def test_a_hit_rate_of_no_queries_yet_is_none() -> None:
    """V0 says -1 until a prompt was looked up: neither a value nor a fault of the page."""
    page = 'vllm:num_requests_running{{model_name="m"}} 5\nvllm:gpu_prefix_cache_hit_rate{{model_name="m"}} {}\n'
    silent, told = parse(page.format("-1.0")), parse(page.format("0.25"))
    assert metrics(silent.samples) == {("generator_requests_running",): 5.0} and silent.dropped == 0
    assert value(told, "prefix_cache_hit_ratio") == 0.25
