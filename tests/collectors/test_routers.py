"""Routers' pages: what they say of workers, in old and new names, and nothing of the engines' own numbers twice."""

import pytest

import collectors
from collectors.detect import detect_page
from collectors.engine_pages.routers import address
from collectors.generators import production_stack, sglang, sglang_router, vllm, vllm_router
from collectors.model import Limits, Reading, ScrapeError
from tests.collectors._reading import TESTDATA, page_json, value

GATEWAY = (TESTDATA / "sglang_router" / "gateway.prom").read_bytes()
OLD = (TESTDATA / "sglang_router" / "old.prom").read_bytes()
FORK = (TESTDATA / "vllm_router" / "by_source.prom").read_bytes()
STACK = (TESTDATA / "production_stack" / "by_source.prom").read_bytes()
ONE, TWO, GONE = ((("worker", f"192.0.2.{host}"),) for host in ("1:30001", "2:30001@1", "9:30001"))
PAGES = {"sglang_router": (GATEWAY, OLD), "vllm_router": (FORK,), "production_stack": (STACK,)}


def read(body: bytes | str) -> Reading:
    return sglang_router.parse(body.encode() if isinstance(body, str) else body, {}, Limits())


def test_the_gateway_as_expected() -> None:
    found = page_json(read(GATEWAY))
    assert found["samples"] == {
        "router_workers": 2,
        'router_worker_healthy{worker="192.0.2.1:30001"}': 1,
        'router_worker_healthy{worker="192.0.2.2:30001@1"}': 0,
        'router_circuit_state{worker="192.0.2.1:30001"}': 0,
        'router_circuit_state{worker="192.0.2.2:30001@1"}': 2,
        'router_requests_in_flight{worker="192.0.2.1:30001"}': 256,
        'router_requests_in_flight{worker="192.0.2.2:30001@1"}': 3,
        'router_requests_by_age{up_to_seconds="30"}': 200,
        'router_requests_by_age{up_to_seconds="60"}': 50,
        'router_requests_by_age{up_to_seconds="+Inf"}': 9,
        'router_requests_queued{class="interactive"}': 0,
        'router_requests_queued{class="bulk"}': 41,
        "router_requests_total": 1000,  # 900 generate, 100 chat
        'router_errors_total{reason="backend_error"}': 5,
        'router_errors_total{reason="no_workers"}': 2,
        'router_worker_errors_total{reason="timeout"}': 5,
        "router_retries_total": 11,
        "router_retries_exhausted_total": 1,
        'router_rejected_total{reason="rate_limit"}': 7,
        'router_rejected_total{reason="queue_full"}': 6,
        'router_rejected_total{reason="queue_timeout"}': 2,
        "router_preemptions_total": 3,
        'router_time_to_first_token_quantile_seconds{quantile="0.5"}': 0.25,
        'router_time_to_first_token_quantile_seconds{quantile="0.99"}': 1.5,
    }
    assert found["histograms"] == {"router_request_seconds": {"edges": [60], "counts": [590, 1000], "total": 83_000}}
    assert found["unmapped"] == {"new_thing": 1}


def test_requests_by_age_are_gauges_though_they_carry_le() -> None:
    """Not cumulative: as a histogram their +Inf bucket (9) would be below the others and the family refused."""
    assert not [h for h in read(GATEWAY).histograms if "age" in h.metric]
    assert sum(s.value for s in read(GATEWAY).samples if s.metric == "router_requests_by_age") == 259


def test_a_removed_worker_is_gone_not_unhealthy() -> None:
    """Newer gateways hold its health at -1; its 17 requests are what they last were."""
    assert not [s for s in read(GATEWAY).samples if s.labels == GONE]
    alive = read(GATEWAY.replace(b'9:30001"} -1', b'9:30001"} 0'))
    assert value(alive, "router_requests_in_flight", GONE) == 17


def test_an_empty_windows_quantiles_are_no_times() -> None:
    assert not [s for s in read(GATEWAY).samples if s.metric == "router_queue_quantile_seconds"]
    waited = read(GATEWAY.replace(b'quantile="0.99"} 0\n', b'quantile="0.99"} 4.5\n'))
    assert value(waited, "router_queue_quantile_seconds", (("class", "bulk"), ("quantile", "0.99"))) == 4.5


def test_what_the_gateway_repeats_of_engines_is_left_out() -> None:
    assert not [s for s in read(GATEWAY).samples if s.metric.startswith("generator_") or s.value == 250]


@pytest.mark.parametrize(("body", "module"), [(OLD, sglang_router), (FORK, vllm_router)], ids=["sgl", "vllm"])
def test_the_older_names(body: bytes, module) -> None:
    reading = module.parse(body, {}, Limits())
    load = {s.labels: s.value for s in reading.samples if s.metric == "router_requests_in_flight"}
    # Both names of one worker's load: the one of all policies is taken, the other where it is alone.
    assert load == {ONE: 38, (("worker", "192.0.2.2:30001"),): 9}
    assert value(reading, "router_workers") == 2
    assert value(reading, "router_requests_total") == 75
    assert value(reading, "router_errors_total", (("reason", "timeout"),)) == 1
    assert value(reading, "router_circuit_state", (("worker", "192.0.2.2:30001"),)) == 1
    # Duration was a summary where its suffix met no configured buckets; NaN says nothing.
    quantiles = {s.labels: s.value for s in reading.samples if s.metric == "router_request_quantile_seconds"}
    assert quantiles == {(("quantile", "0.5"),): 12.5}


def test_prefill_decode_requests_stay_apart() -> None:
    reading = vllm_router.parse(FORK, {}, Limits())
    assert value(reading, "router_requests_total", (("path", "prefill_decode"),)) == 8
    assert reading.unmapped == {"agent_aware_admission_backend_running_requests": 1}


def test_the_production_stacks_router_as_expected() -> None:
    found = page_json(production_stack.parse(STACK, {}, Limits()))
    one, two = '{worker="192.0.2.1:8000"}', '{worker="192.0.2.2:8000"}'
    assert found["samples"] == {
        f"router_worker_healthy{one}": 1,
        f"router_worker_healthy{two}": 0,
        f"router_requests_in_flight{one}": 12,
        f"router_requests_in_flight{two}": 4,
        f"router_requests_prefill{one}": 2,
        f"router_requests_decode{one}": 10,
        f"router_requests_per_second{one}": 1.5,
        f"router_requests_per_second{two}": 0.5,
        f"router_request_seconds_mean{one}": 8.5,  # -1 of the other: no request in the window
        f"router_inter_token_seconds_mean{one}": 0.02,
        "router_requests_total": 320,
        'router_errors_total{reason="timeout",worker="192.0.2.1:8000"}': 2,
        f"router_prompt_tokens_total{one}": 60_000,
        f"router_tokens_total{one}": 90_000,
    }
    assert found["histograms"] == {
        f"router_request_seconds{one}": {"edges": [1, 120], "counts": [41, 281, 292], "total": 2595}
    }
    assert found["unmapped"] == {}


def test_engines_series_beside_the_routers_are_not_the_routers() -> None:
    engine = b'vllm:num_requests_running{engine="0",model_name="m"} 99\n'
    reading = production_stack.parse(STACK + engine, {}, Limits())
    assert sum(s.value for s in reading.samples if s.metric == "router_requests_in_flight") == 16
    assert not [s for s in reading.samples if s.metric.startswith("generator_")]


@pytest.mark.parametrize("module", [production_stack, vllm_router, sglang_router])
@pytest.mark.parametrize(
    "page", ["vllm/ray_reported.prom", "sglang/ray_reported.prom", "vllm/synthetic_2_engines.prom"]
)
def test_engines_pages_are_refused_with_a_reason(module, page: str) -> None:
    with pytest.raises(ScrapeError, match="without"):
        module.parse((TESTDATA / page).read_bytes(), {}, Limits())


@pytest.mark.parametrize(("name", "body"), [(name, body) for name, found in PAGES.items() for body in found])
def test_each_routers_page_is_known_by_its_collector_only(name: str, body: bytes) -> None:
    known = [one.name for one in collectors.load().values() if one.matches_page is not None and one.matches_page(body)]
    assert known == [name] == [detect_page(body)]


def test_merged_engine_pages_belong_to_the_engines() -> None:
    merged = b'sglang_num_running_reqs{dp_rank="0",worker_addr="http://192.0.2.1:30001"} 5\n'
    assert detect_page(merged) == "sglang"
    assert detect_page(merged.replace(b"sglang_num_running_reqs", b"vllm_num_requests_running")) == "vllm"
    assert value(sglang.parse(merged, {}, Limits()), "generator_requests_running", _merged("0")) == 5


def _merged(rank: str) -> tuple[tuple[str, str], ...]:
    return (("engine", rank), ("replica", "192.0.2.1:30001"))


def test_the_routers_names_are_no_engines() -> None:
    for body in (GATEWAY, OLD, FORK, STACK):
        assert not vllm.matches_page(body)
        assert not sglang.matches_page(body)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://10.0.0.1:8000", "10.0.0.1:8000"),
        ("http://10.0.0.1:8000/v1", "10.0.0.1:8000"),
        ("http://10.0.0.1:8000@3", "10.0.0.1:8000@3"),
        ("http://user:sekret@10.0.0.1:8000@3", "10.0.0.1:8000@3"),
        ("https://user:sekret@host/path", "host"),
        ("grpc://host:1", "host:1"),
        ("host:9", "host:9"),
        ("", ""),
    ],
)
def test_a_workers_address(url: str, shown: str) -> None:
    assert address(url) == shown
