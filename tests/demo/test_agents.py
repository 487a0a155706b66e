"""The run with too easy tasks and ever more tool calls, as verl's asynchronous trainer tells it."""

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from statistics import fmean, median

import pytest

from collectors.model import Limits
from collectors.trainers import verl
from demo.cluster import Cluster
from demo.process import Demo
from demo.records import Step
from demo.scenarios import SCENARIOS
from tests.demo.conftest import START, Recorder

ROW = SCENARIOS["glm5-easy-curriculum"]
SEEDS = (1, 2, 3, 4, 5)
WARM_UP, STEPS, SECONDS = 5, 20, 3_700.0


class Groups(Recorder):
    """Steps, and what became of every group that was complete."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[str] = []

    def scored(self, now: float, rollout: object) -> None:
        group = getattr(rollout, "group")  # noqa: B009  Recorder knows no rollouts
        if group.scored == group.size:
            self.outcomes.append(group.outcome)


@lru_cache
def run(seed: int) -> tuple[Cluster, Groups]:
    cluster, seen = Cluster(ROW, seed), Groups()
    cluster.observers.append(seen)
    cluster.advance(SECONDS)
    return cluster, seen


def calls(step: Step) -> float:
    return fmean(rollout.turns - 1 for rollout in step.batch.rollouts())


def of_seeds(measure: Callable[[Sequence[Step]], float]) -> float:
    """The median of five seeds."""
    runs = [run(seed)[1].steps[WARM_UP:] for seed in SEEDS]
    assert all(len(steps) >= STEPS for steps in runs)
    return median(map(measure, runs))


def test_the_published_figures() -> None:
    def middle(part: Callable[[Step], float]) -> float:
        return of_seeds(lambda steps: median(map(part, steps)))

    assert middle(lambda step: step.timing.wait / step.timing.total) == pytest.approx(0.74, abs=0.04)
    assert middle(lambda step: step.timing.total / step.timing.compute) == pytest.approx(5.0, abs=0.5)
    assert middle(lambda step: (step.timing.broadcast + step.timing.checkpoint) / step.timing.total) == pytest.approx(
        0.06, abs=0.01
    )
    assert of_seeds(lambda steps: fmean(map(calls, steps[:5]))) == pytest.approx(20, rel=0.10)
    assert of_seeds(lambda steps: fmean(map(calls, steps[-5:]))) == pytest.approx(51, rel=0.10)
    solved = [seen.outcomes.count("all") / len(seen.outcomes) for _, seen in map(run, SEEDS)]
    assert median(solved) == pytest.approx(0.55, abs=0.03)


def test_what_has_no_gradient_never_reaches_the_trainer() -> None:
    cluster, seen = run(1)
    assert all(group.outcome == "some" for step in seen.steps for group in step.batch.groups)
    assert sum(outcome != "some" for outcome in seen.outcomes) == cluster.orchestrator.filtered_groups
    census = cluster.orchestrator.census()
    assert sum(census.values()) == cluster.orchestrator.dispatched
    assert census["filtered"] == 8 * cluster.orchestrator.filtered_groups


def test_our_collector_reads_it(make_demo: Callable[..., Demo]) -> None:
    demo = make_demo("glm5-easy-curriculum")
    demo.advance(START + 500)
    assert verl.COLLECTOR.tail is not None
    read = verl.COLLECTOR.tail(Path(str(demo.ready["run_dir"])), {}, Limits(), START + 500)
    truth = [json.loads(line) for line in Path(str(demo.ready["truth"])).read_text("utf-8").splitlines()]
    facts = {"mode": "async", "batch_samples": 128, "group_size": 8, "trainer_gpus": 64, "generator_gpus": 48}
    assert {name: read.facts[name] for name in facts} == facts
    assert not read.unmapped
    assert len(truth) >= 5
    for line in truth:
        expected = {
            "trainer_step_seconds": line["step_seconds"],
            "trainer_wait_seconds": line["wait_seconds"],
            "trainer_compute_seconds": line["compute_seconds"],
            "trainer_weight_sync_seconds": line["weight_sync_seconds"],
            "tool_calls_mean": line["tool_calls_mean"],
            "staleness_versions_mean": line["staleness_mean"],
            "staleness_versions_max": line["staleness_max"],
        }
        told = {one.metric: one.value for one in read.samples if one.step == line["step"]}
        assert {name: told[name] for name in expected} == pytest.approx(expected)


def test_what_is_posted_says_what_no_file_does(make_demo: Callable[..., Demo]) -> None:
    demo = make_demo("glm5-easy-curriculum")
    demo.advance(START + 500)
    lines = [json.loads(line) for line in demo.instrument.take()]
    exits = [line["exit"] for line in lines if "exit" in line]
    orchestrator = demo.cluster.orchestrator
    assert exits.count("zero_advantage") == orchestrator.filtered
    assert exits.count("trained") == orchestrator.trained
    ended = [line for line in lines if "turns" in line]
    assert fmean(line["tool_calls"] for line in ended) == pytest.approx(fmean(line["turns"] for line in ended) - 1)
    assert 15 < fmean(line["tool_calls"] for line in ended) < 25


def test_a_rollout_without_a_sandbox_starts_at_its_dispatch(make_demo: Callable[..., Demo]) -> None:
    demo = make_demo("glm5-easy-curriculum")
    demo.advance(START + 300)
    demo.instrument.take()
    demo.go_live()
    begun = [json.loads(line) for line in demo.instrument.take()]
    orchestrator = demo.cluster.orchestrator
    under_way = [one for group in orchestrator.incomplete.values() for one in group.rollouts if not one.scored]
    assert len(begun) == len(under_way) >= 330
    assert not any("spans" in line for line in begun)
    assert all(line["started_at"] == line["dispatched_at"] for line in begun)
