"""The published run as slime and SGLang tell it: its figures, the bytes, and what Rollscope makes of them."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from statistics import median

import httpx
import pytest

from collectors.generators import sglang, sglang_router
from collectors.model import Limits, Reading, Sample
from demo.faults import Fault
from demo.process import Demo
from demo.scenarios import SCENARIOS
from demo.slime import SlimeCluster, SlimeObserver, SlimeStep, mfu
from server.cli.demo import GPUS, OTHER_GPUS
from tests.demo.conftest import START
from tests.demo.watched import Same

ROW = SCENARIOS["qwen3-235b-slime"]
RECORDED = Path(__file__).parent.parent / "testdata/sglang/driven/metrics_1795248877036_load.prom"
# The first steps wait for the first rollout, which nothing was trained beside.
WARM_UP, STEPS, SECONDS = 2, 20, 4_600.0
SEEDS = (1, 2, 3, 4, 5)


class Recorder(SlimeObserver):
    def __init__(self) -> None:
        self.steps: list[SlimeStep] = []

    def trained(self, step: SlimeStep) -> None:
        self.steps.append(step)


@lru_cache
def steps(seed: int) -> Sequence[SlimeStep]:
    return run(seed, SECONDS)[1][WARM_UP:]


def run(seed: int, seconds: float, *faults: Fault) -> tuple[SlimeCluster, Sequence[SlimeStep]]:
    cluster, recorder = SlimeCluster(ROW, seed, faults), Recorder()
    cluster.observers.append(recorder)
    cluster.advance(seconds)
    return cluster, recorder.steps


def of_seeds(measure: Callable[[Sequence[SlimeStep]], float]) -> float:
    """The median of five seeds."""
    assert all(len(steps(seed)) >= STEPS for seed in SEEDS)
    return median(measure(steps(seed)) for seed in SEEDS)


def ratio(part: Callable[[SlimeStep], float], whole: Callable[[SlimeStep], float]) -> float:
    """Ratios are ratios of sums."""
    return of_seeds(lambda many: sum(map(part, many)) / sum(map(whole, many)))


def samples(step: SlimeStep) -> float:
    return sum(1 for _ in step.generation.rollouts())


def total(step: SlimeStep) -> float:
    return step.timing.total


def test_the_published_figures() -> None:
    assert (ROW.train_gpus, ROW.engines * 16) == (64, 192)
    assert ratio(samples, lambda step: step.timing.total - step.timing.wait) == pytest.approx(2.75, rel=0.05)
    assert ratio(samples, total) == pytest.approx(1.95, rel=0.05)
    assert ratio(lambda step: step.timing.wait, total) == pytest.approx(0.30, abs=0.03)
    assert ratio(lambda step: mfu(ROW, step)["mfu_wall"] * step.timing.total, total) == pytest.approx(0.105, abs=0.01)

    def aborted(step: SlimeStep) -> float:
        return sum(1 for _ in step.generation.dropped())

    assert ratio(aborted, lambda step: aborted(step) + samples(step)) == pytest.approx(0.60, abs=0.03)


def test_a_step_is_its_parts_and_steps_follow_each_other() -> None:
    _, many = run(1, 1_500.0)
    for before, step in pairwise(many):
        assert step.start == before.end
        assert step.end - step.start == pytest.approx(step.timing.total)
        assert step.timing.wait >= 0
        assert step.version == step.generation.number
    # The first two are made by the same policy: nothing was trained when the second began.
    assert [step.generation.version for step in many[:4]] == [0, 0, 1, 2]


def test_its_mfu_is_of_the_gpu_it_states() -> None:
    """One sample of 10,000 tokens: 6 x 10,000 x (22e9 + 770,048 x 10,000) FLOP; an H200 makes 989e12 a second."""
    assert ROW.slime is not None
    assert ROW.slime.train_flops([10_000]) == pytest.approx(1.78203e15, rel=1e-5)
    assert ROW.peak_flops == 989e12
    assert OTHER_GPUS.get(ROW.name, GPUS)["gpu_type"] == "H200"


def test_no_request_outlives_its_rollout() -> None:
    cluster, many = run(1, 900.0)
    for step in many:
        made = step.generation
        assert len(made.groups) == ROW.batch_groups
        assert len(made.aborted) == 72
        assert all(made.begun <= rollout.finished <= made.ended for rollout in (*made.rollouts(), *made.dropped()))
    tokens = sum(one.generated for step in many for one in (*step.generation.rollouts(), *step.generation.dropped()))
    assert tokens <= sum(engine.generated_at(900.0) for engine in cluster.engines)


def test_faults() -> None:
    cluster, many = run(1, 1_500.0, Fault("trainer-hang", 700.0))
    assert max(step.end for step in many) <= 700.0
    assert not any(engine.load for engine in cluster.engines), "the next rollout is there, and nobody asks for more"
    cluster, many = run(1, 1_500.0, Fault("engine-crash", 700.0))
    assert cluster.engines[0].is_dead
    assert len(many[-1].generation.groups) == ROW.batch_groups
    assert all(group.engine for group in cluster.open.values()), "nothing is sent to the dead one"


# -- bytes -----------------------------------------------------------------------------------------------------


@pytest.fixture
def demo(make_demo: Callable[..., Demo]) -> Demo:
    made = make_demo("qwen3-235b-slime")
    made.advance(START + 700)
    return made


def test_its_gpus_have_a_price(demo: Demo) -> None:
    assert Same(demo).settings().facts == {"gpu_type": "H200", **demo.ready["facts"]}  # type: ignore[dict-item]


def shape(page: str) -> set[tuple[str, tuple[str, ...]]]:
    """Names with the names of their labels."""
    lines = [line for line in page.splitlines() if line and not line.startswith("#")]
    return {(line.split("{")[0], tuple(re.findall(r'([a-z_]+)="', line))) for line in lines}


def test_the_page_is_the_recorded_one_and_what_slimes_engines_add(demo: Demo) -> None:
    page, recorded = demo.page(0).decode(), RECORDED.read_text("utf-8")
    added = shape(page) - shape(recorded)
    assert shape(recorded) <= shape(page)
    assert {name for name, _ in added} == {"sglang:realtime_tokens_total", "sglang:num_aborted_requests_total"}
    types = [[line for line in text.splitlines() if line.startswith("# TYPE")] for text in (recorded, page)]
    assert types[1][: len(types[0])] == types[0]


def value(samples: Sequence[Sample], metric: str) -> float:
    (found,) = [sample.value for sample in samples if sample.metric == metric]
    return found


def test_our_collector_reads_it(demo: Demo) -> None:
    read: Reading = sglang.parse(demo.page(3), {}, Limits())
    engine = demo.cluster.engines[3]
    expected = {
        "generator_requests_running": len(engine.running),
        "generator_requests_waiting": 0,
        "kv_cache_capacity_tokens": 2_400_000,
        "kv_cache_usage_ratio": engine.kv_tokens_at(700.0) / 2_400_000,
        "generator_tokens_total": engine.generated_at(700.0),
        "generator_requests_finished_total": engine.stats.finished,
        "generator_idle_seconds_total": engine.idle_seconds_at(700.0),
    }
    assert len(engine.running) > 20
    for metric, wanted in expected.items():
        assert value(read.samples, metric) == pytest.approx(wanted, rel=1e-5, abs=1e-5), metric
    assert read.unmapped == sglang.parse(RECORDED.read_bytes(), {}, Limits()).unmapped


def test_our_collector_reads_the_router(demo: Demo) -> None:
    [router] = [target for target in demo.ready["targets"] if target["name"] == "router"]
    page = httpx.get(router["source"] + "/metrics").content
    assert sglang_router.COLLECTOR.matches_page is not None
    assert sglang_router.COLLECTOR.matches_page(page)
    read = sglang_router.parse(page, {}, Limits())
    in_flight = sum(sample.value for sample in read.samples if sample.metric == "router_requests_in_flight")
    assert in_flight == sum(engine.load for engine in demo.cluster.engines) > 200
    assert value(read.samples, "router_workers") == 12
