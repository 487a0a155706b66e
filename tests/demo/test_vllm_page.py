"""The page of an engine: the recorded page's shape, the simulation's numbers."""

import re
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from demo.cluster import Cluster
from demo.pages import Page, number
from demo.scenarios import SCENARIOS
from tests.demo.conftest import BASE, START, simulated

# Names and label keys of the page recorded from vLLM 0.32.0 (testdata vllm_real/default).
RECORDED = Path(__file__).with_name("vllm_0_32_0_shape.txt").read_text().splitlines()
Key = tuple[str, tuple[tuple[str, str], ...]]


def families(page: bytes) -> list[Metric]:
    return list(text_string_to_metric_families(page.decode()))


def samples(page: bytes) -> dict[Key, float]:
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families(page) for s in family.samples}


def value(page: bytes, name: str, **labels: str) -> float:
    """The only sample of that name with these labels."""
    found = [v for (n, own), v in samples(page).items() if n == name and labels.items() <= dict(own).items()]
    assert len(found) == 1, (name, labels, found)
    return found[0]


def page_of(scenario: str, seconds: float) -> tuple[Cluster, bytes]:
    cluster, _ = simulated(scenario, 1, seconds)
    return cluster, Page(cluster.engines[0], START).render(seconds)


@pytest.mark.parametrize("scenario", BASE)
def test_shape_is_the_recorded_one(scenario: str) -> None:
    _, page = page_of(scenario, 600.0)
    shape = set()
    for line in page.decode().splitlines():
        if match := re.match(r"([^#{ ]+)(?:\{(.*)\})? \S+$", line):
            keys = ",".join(re.findall(r'(\w+)="', match[2] or ""))
            shape.add(f"{match[1]}{{{keys}}}")
    assert sorted(shape) == RECORDED
    assert 48_000 < len(page) < 70_000


def test_page_before_the_first_event_parses() -> None:
    page = Page(Cluster(SCENARIOS["healthy"], 1).engines[0], START).render(0.0)
    assert value(page, "vllm:num_requests_running") == 0
    assert value(page, "vllm:generation_tokens_total") == 0


@pytest.mark.parametrize("scenario", BASE)
def test_counters_never_decrease(scenario: str) -> None:
    cluster = Cluster(SCENARIOS[scenario], 3)
    page = Page(cluster.engines[1], START)
    before: dict[Key, float] = {}
    for moment in range(0, 240, 3):
        cluster.advance(moment + 0.5)
        for family in families(page.render(moment + 0.5)):
            if family.type in ("counter", "histogram", "summary"):
                for s in family.samples:
                    key = (s.name, tuple(sorted(s.labels.items())))
                    assert s.value >= before.get(key, 0.0), key
                    before[key] = s.value


@pytest.mark.parametrize("scenario", BASE)
def test_buckets_are_cumulative_and_end_at_the_count(scenario: str) -> None:
    _, page = page_of(scenario, 600.0)
    for family in families(page):
        if family.type != "histogram":
            continue
        series: dict[tuple[tuple[str, str], ...], list[float]] = {}
        counts = {}
        for s in family.samples:
            key = tuple(sorted((k, v) for k, v in s.labels.items() if k != "le"))
            if s.name.endswith("_bucket"):
                series.setdefault(key, []).append(s.value)
            elif s.name.endswith("_count"):
                counts[key] = s.value
        for key, buckets in series.items():
            assert buckets == sorted(buckets)
            assert buckets[-1] == counts[key]


def test_page_shows_the_state_of_the_engine() -> None:
    cluster, page = page_of("generator-bound", 600.0)
    engine = cluster.engines[0]
    assert value(page, "vllm:num_requests_running") == len(engine.running) > 0
    assert value(page, "vllm:num_requests_waiting") == len(engine.waiting)
    assert value(page, "vllm:num_requests_waiting_by_reason", reason="capacity") == len(engine.waiting)
    assert value(page, "vllm:generation_tokens_total") == engine.generated_at(600.0)
    usage = engine.kv_tokens_at(600.0) / cluster.scenario.kv_tokens
    assert value(page, "vllm:kv_cache_usage_perc") == pytest.approx(usage, abs=0.01)
    assert value(page, "vllm:num_preemptions_total") == engine.stats.preemptions > 0
    by_reason = [value(page, "vllm:request_success_total", finished_reason=r) for r in ("stop", "length")]
    assert sum(by_reason) == engine.stats.finished
    assert min(by_reason) > 0


def test_weight_updates_show_as_handler_calls() -> None:
    cluster, page = page_of("healthy", 600.0)
    for handler in ("/pause", "/update_weights", "/resume"):
        assert value(page, "http_requests_total", handler=handler) == cluster.orchestrator.version


def test_gauges_freeze_while_the_weights_load() -> None:
    cluster = Cluster(SCENARIOS["generator-bound"], 1)
    while not cluster.engines[0].pauses:
        cluster.advance(cluster.now + 0.25)
    page = Page(cluster.engines[0], START)
    first = page.render(cluster.now)
    cluster.advance(cluster.now + 0.25)
    second = page.render(cluster.now)
    for name in ("vllm:generation_tokens_total", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"):
        assert value(first, name) == value(second, name)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (0, "0.0"),
        (0.5, "0.5"),
        (1599, "1599.0"),
        (10748.007372567994, "10748.007372567994"),
        (1317733, "1.317733e+06"),
        (1795246694.9, "1.7952466949e+09"),
        (2041540608, "2.041540608e+09"),
    ],
)
def test_numbers_are_written_as_recorded(raw: float, text: str) -> None:
    assert number(raw) == text
