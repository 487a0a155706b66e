"""What each scenario must show: medians over at least 20 steps after warm-up, for three seeds."""

from collections.abc import Callable
from statistics import fmean, median

import pytest

from demo.cluster import Cluster
from demo.records import Step
from demo.scenarios import SCENARIOS
from demo.truth import expected
from tests.demo.conftest import BASE, EACH_SEED, PRIME, SEEDS, simulated

WARM_UP = 10  # the first steps wait for the first rollouts and fill the buffer
SECONDS = {"gb300-sandbox-wall": 5_400.0, "trainer-bound": 2_000.0, "reward-bound": 2_600.0}
# Its ramp ends after 3,300 s; only then is it what its name says.
BEGINS = {"gb300-sandbox-wall": 3_600.0}

# scenario -> measure -> (low, high); ratios 0..1, buffer in batches, staleness in versions
RANGES = {
    "trainer-bound": {
        "step_seconds": (52, 62),
        "wait_ratio": (0.015, 0.04),
        # Full: the gate lets the orchestrator be two and a half batches ahead, one of which the trainer has.
        "buffer_batches": (1.6, 2.2),
        "staleness": (1.8, 2.6),
        "kv_usage": (0.05, 0.2),
        "waiting": (0, 4),
        "response_tokens": (880, 980),
    },
    "reward-bound": {
        "step_seconds": (68, 82),
        "wait_ratio": (0.5, 0.63),
        "buffer_batches": (0.4, 0.6),
        "staleness": (0.7, 1.5),
        "kv_usage": (0.05, 0.1),
        "waiting": (0, 1),
        "response_tokens": (880, 980),
    },
    "healthy": {
        "step_seconds": (28, 36),
        "wait_ratio": (0.03, 0.08),
        "buffer_batches": (1.0, 1.6),
        "staleness": (1.0, 2.2),
        "kv_usage": (0.1, 0.3),
        "waiting": (0, 4),
        "response_tokens": (880, 980),
    },
    "generator-bound": {
        "step_seconds": (26, 34),
        "wait_ratio": (0.58, 0.68),
        "buffer_batches": (0.35, 0.65),
        "staleness": (2.4, 4.0),
        "kv_usage": (0.86, 0.95),
        "waiting": (80, 160),
        "response_tokens": (2_500, 2_850),
    },
    "gb300-sandbox-wall": {
        "step_seconds": (46, 62),
        "wait_ratio": (0.42, 0.58),
        "buffer_batches": (0.35, 0.6),
        "staleness": (2.6, 4.2),
        "kv_usage": (0.05, 0.12),
        "waiting": (0, 1),
        "response_tokens": (1_900, 2_050),
    },
}
# An hour and a half of a thousand sandboxes.
LONG = {"gb300-sandbox-wall": pytest.mark.long}
EACH = [pytest.param(scenario, marks=LONG.get(scenario, ())) for scenario in RANGES]
MEASURES: dict[str, Callable[[Step], float]] = {
    "step_seconds": lambda step: step.end - step.start,
    "wait_ratio": lambda step: step.timing.wait / step.timing.total,
    "buffer_batches": lambda step: step.means.queue / 256,
    "staleness": lambda step: fmean(total for total, _, _ in step.batch.staleness()),
    "kv_usage": lambda step: step.means.kv_usage,
    "waiting": lambda step: step.means.waiting,
    "response_tokens": lambda step: step.batch.response_tokens / 256,
}


def steady(scenario: str, seed: int) -> tuple[Step, ...]:
    steps = run(scenario, seed)[1][WARM_UP:]
    steps = tuple(step for step in steps if step.start >= BEGINS.get(scenario, 0.0))
    assert len(steps) >= 20
    return steps


def run(scenario: str, seed: int) -> tuple[Cluster, tuple[Step, ...]]:
    return simulated(scenario, seed, SECONDS.get(scenario, 1_300.0))


def test_every_scenario_has_ranges() -> None:
    """`stalled` is `healthy` until it stalls; other stacks have files of their own."""
    assert {*RANGES, "stalled"} == set(PRIME)


@EACH_SEED
@pytest.mark.parametrize(
    ("scenario", "measure"), [pytest.param(s, m, marks=LONG.get(s, ())) for s, ranges in RANGES.items() for m in ranges]
)
def test_median(scenario: str, measure: str, seed: int) -> None:
    low, high = RANGES[scenario][measure]
    assert low <= median(map(MEASURES[measure], steady(scenario, seed))) <= high


@EACH_SEED
def test_generator_bound_engines_are_full(seed: int) -> None:
    cluster, steps = run("generator-bound", seed)
    finished = sum(engine.stats.finished for engine in cluster.engines)
    preemptions = sum(engine.stats.preemptions for engine in cluster.engines)
    assert 0.03 < preemptions / finished < 0.25, "some preemptions, no thrashing"
    assert all(step.means.queue < 256 for step in steps[WARM_UP:]), "the buffer never holds a batch on average"


@EACH_SEED
def test_healthy_preempts_nobody(seed: int) -> None:
    cluster, _ = run("healthy", seed)
    assert sum(engine.stats.preemptions for engine in cluster.engines) == 0


@EACH_SEED
@pytest.mark.parametrize("scenario", EACH)
def test_groups_are_mixed_solved_and_unsolved(scenario: str, seed: int) -> None:
    steps = steady(scenario, seed)
    for outcome, low, high in (("all", 0.05, 0.3), ("none", 0.05, 0.3), ("some", 0.5, 0.9)):
        assert low < fmean(step.batch.group_ratio(outcome) for step in steps) < high


@EACH_SEED
@pytest.mark.parametrize("scenario", EACH)
def test_capacity_is_what_the_parameters_predict(scenario: str, seed: int) -> None:
    steps = steady(scenario, seed)
    capacity = 256 * len(steps) / sum(step.timing.total - step.timing.wait for step in steps)
    assert capacity == pytest.approx(expected(SCENARIOS[scenario])["capacity_samples_per_second"], rel=0.05)


@pytest.mark.parametrize(
    "scenario", [pytest.param(name, marks=() if name in BASE else pytest.mark.long) for name in RANGES]
)
def test_seeds_differ(scenario: str) -> None:
    # The first of its steps takes longest where every rollout boots a sandbox first.
    seconds = 1_200.0 if SCENARIOS[scenario].sandboxes else 400.0
    ends = [[step.end for step in simulated(scenario, seed, seconds)[1]] for seed in SEEDS]
    assert all(ends) and ends[0] != ends[1] != ends[2]
