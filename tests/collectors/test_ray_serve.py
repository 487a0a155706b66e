"""Engines behind Ray: one page per node, a series per worker, gauges in every second page only."""

from collections.abc import Iterable

import pytest

from collectors.detect import detect_page
from collectors.generators import sglang, vllm
from collectors.model import Limits, Reading, Sample, Target
from server.derive.driver import carry_of
from server.signals.window import Gauge
from tests.collectors._reading import TESTDATA, value

VLLM = TESTDATA / "vllm" / "ray_reported.prom"
SGLANG = TESTDATA / "sglang" / "ray_reported.prom"
ONE, TWO = (("engine", "0"), ("replica", "r7ab")), (("engine", "0"), ("replica", "r9cd"))


def metrics(samples: Iterable[Sample]) -> dict[tuple[str, ...], float]:
    return {(s.metric, *(f"{k}={v}" for k, v in s.labels)): s.value for s in samples}


def read(body: bytes) -> Reading:
    return vllm.parse(body, {}, Limits())


def test_replicas_on_one_page_stay_apart() -> None:
    reading = read(VLLM.read_bytes())
    assert metrics(reading.samples) == {
        ("generator_requests_running", "engine=0", "replica=r7ab"): 12,
        ("generator_requests_running", "engine=0", "replica=r9cd"): 7,
        ("kv_cache_usage_ratio", "engine=0", "replica=r7ab"): 0.5,
        ("kv_cache_usage_ratio", "engine=0", "replica=r9cd"): 0.25,
        ("generator_tokens_total", "engine=0", "replica=r7ab"): 51_200,
        ("generator_requests_finished_total", "engine=0", "reason=stop", "replica=r7ab"): 90,
    }
    (iterations,) = reading.histograms
    assert (iterations.labels, iterations.counts, iterations.total) == (ONE, (100, 160), 1400)
    assert reading.unmapped == {}  # node metrics are another collector's


def test_a_counter_that_never_grew_is_absent_not_zero() -> None:
    """Ray's counter skips inc(0): the second replica has generated nothing yet, and its page says nothing."""
    labels = {s.labels for s in read(VLLM.read_bytes()).samples if s.metric == "generator_tokens_total"}
    assert labels == {ONE}


def test_gauges_missing_from_every_second_page_are_carried() -> None:
    """The node's agent exports a gauge once per report: the page between two reports has the counters only."""
    kept = [line for line in VLLM.read_text().splitlines(keepends=True) if "running" not in line and "perc" not in line]
    between = "".join(kept).encode()
    target = Target("node", "run", "vllm", "generator", url="http://node:8080", interval_seconds=5.0)
    carried = carry_of({"node": (target, vllm.COLLECTOR.report_seconds)})("node")
    gauge, state = Gauge("node", "generator_requests_running", ONE, carried), {}
    for number in range(6):
        reading = vllm.parse(VLLM.read_bytes() if number % 2 == 0 else between, state, Limits())
        found = [s.value for s in reading.samples if (s.metric, s.labels) == ("generator_requests_running", ONE)]
        assert found == ([12] if number % 2 == 0 else [])
        for sample in found:
            gauge.add(1000.0 + 5.0 * number, sample)
        assert gauge.fresh(1000.0 + 5.0 * number)
        assert gauge.last == 12


def test_an_sglang_engine_behind_ray() -> None:
    assert metrics(sglang.parse(SGLANG.read_bytes(), {}, Limits()).samples) == {
        ("generator_requests_running", "replica=s1"): 21,
        ("kv_cache_usage_ratio", "replica=s1"): 0.61,
        ("generator_tokens_total", "replica=s1"): 8000,  # the live one
        ("generator_requests_finished_total", "replica=s1"): 30,
    }


def test_a_worker_without_a_replica_is_told_by_its_own_id() -> None:
    text = 'ray_vllm_num_requests_running{ReplicaId="",WorkerId="w7",engine="0"} 3\n'
    assert value(read(text.encode()), "generator_requests_running", (("engine", "0"), ("replica", "w7"))) == 3


@pytest.mark.parametrize("order", [1, -1])
@pytest.mark.parametrize(
    ("collector", "name"), [(vllm, "ray_vllm_generation_tokens"), (sglang, "ray_sglang_realtime_tokens")]
)
def test_the_older_exporters_doubles_count_once(collector: object, name: str, order: int) -> None:
    """RAY_enable_open_telemetry=0: every counter a second time, as a deprecated gauge without its suffix."""
    label = 'ReplicaId="r",mode="decode"'
    lines = [
        f"# TYPE {name}_total counter\n{name}_total{{{label}}} 10\n",
        f"# TYPE {name} gauge\n{name}{{{label}}} 9\n",
    ]
    reading = collector.parse("".join(lines[::order]).encode(), {}, Limits())
    assert metrics(reading.samples) == {("generator_tokens_total", "replica=r"): 10}


def test_a_page_of_two_engines_is_read_by_two_collectors() -> None:
    """A node may run both: each reads its own and is silent on the other's, which is not unmapped."""
    body = VLLM.read_bytes() + SGLANG.read_bytes()
    ours, theirs = vllm.parse(body, {}, Limits()), sglang.parse(body, {}, Limits())
    assert metrics(ours.samples) == metrics(read(VLLM.read_bytes()).samples)
    assert metrics(theirs.samples) == metrics(sglang.parse(SGLANG.read_bytes(), {}, Limits()).samples)
    assert (ours.unmapped, theirs.unmapped) == ({}, {})
    assert detect_page(body) in ("vllm", "sglang")


def test_sglangs_counters_may_get_a_second_suffix() -> None:
    text = '# TYPE ray_sglang_num_requests_total_total counter\nray_sglang_num_requests_total_total{ReplicaId="r"} 4\n'
    found = metrics(sglang.parse(text.encode(), {}, Limits()).samples)
    assert found == {("generator_requests_finished_total", "replica=r"): 4}
