"""The synchronous run as verl and its vLLM servers tell it, and what our collectors read."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median

import pytest

from collectors.generators import vllm
from collectors.model import Limits, Sample
from collectors.rollouts import verl_rollouts
from collectors.trainers import verl
from demo.faults import Fault
from demo.process import Demo
from demo.scenarios import SCENARIOS
from demo.verl import VerlCluster, VerlObserver, VerlStep
from tests.demo.conftest import SEEDS, START

ROW = SCENARIOS["math-sync-colocated"]


class Recorder(VerlObserver):
    def __init__(self) -> None:
        self.steps: list[VerlStep] = []

    def stepped(self, step: VerlStep) -> None:
        self.steps.append(step)


def run(seed: int, seconds: float, *faults: Fault) -> tuple[VerlCluster, Sequence[VerlStep]]:
    cluster, recorder = VerlCluster(ROW, seed, faults), Recorder()
    cluster.observers.append(recorder)
    cluster.advance(seconds)
    return cluster, recorder.steps


@pytest.mark.parametrize("seed", SEEDS)
def test_it_is_balanced_with_a_tail(seed: int) -> None:
    _, steps = run(seed, 1_900.0)
    assert len(steps) >= 20
    assert 74 < median(step.timing.total for step in steps) < 90
    share = sum(step.timing.generation for step in steps) / sum(step.timing.total for step in steps)
    bubble = median(step.bubble for step in steps)
    assert 0.32 < share < 0.44
    assert 0.35 < bubble < 0.50
    assert share * bubble < 1 / 4, "less than a quarter of the step stands empty"
    assert 0.2 < fmean(step.group_ratio("all", "none") for step in steps) < 0.35


def test_steps_follow_each_other_and_nothing_overlaps() -> None:
    _, steps = run(1, 700.0)
    for before, step in pairwise(steps):
        assert step.start == before.end
        assert step.end - step.start == pytest.approx(step.timing.total)
        begun = step.start + step.timing.generation
        assert max(rollout.finished for rollout in step.rollouts()) == pytest.approx(begun)
        assert len(list(step.rollouts())) == ROW.batch_samples


def test_faults() -> None:
    _, steps = run(1, 700.0, Fault("trainer-hang", 300.0))
    assert max(step.end for step in steps) <= 300.0
    cluster, steps = run(1, 700.0, Fault("engine-crash", 260.0))
    assert cluster.engines[0].is_dead
    assert steps[-1].end > 550.0
    assert {group.engine for group in steps[-1].groups} == {1, 2, 3}


@pytest.fixture
def demo(make_demo: Callable[..., Demo]) -> Demo:
    made = make_demo("math-sync-colocated")
    made.advance(START + 700)
    return made


def told(samples: Sequence[Sample], metric: str, step: int | None = None, **labels: str) -> float:
    (found,) = [
        sample.value for sample in samples
        if (sample.metric, sample.step) == (metric, step) and labels.items() <= dict(sample.labels).items()
    ]  # fmt: skip
    return found


def test_our_collector_reads_the_run(demo: Demo) -> None:
    assert verl.COLLECTOR.tail is not None
    run_dir = Path(str(demo.ready["run_dir"]))
    read = verl.COLLECTOR.tail(run_dir, {}, Limits(), START + 700)
    truth = [json.loads(line) for line in Path(str(demo.ready["truth"])).read_text("utf-8").splitlines()]
    assert read.facts["mode"] == "sync_colocated"
    assert (read.facts["batch_samples"], read.facts["group_size"], read.facts["trainer_gpus"]) == (512, 8, 8)
    assert not read.unmapped
    assert len(truth) >= 7
    for line in truth:
        expected = {
            "trainer_step_seconds": line["step_seconds"],
            "generation_seconds": line["generation_seconds"],
            "trainer_compute_seconds": line["compute_seconds"],
            "trainer_weight_sync_seconds": line["weight_sync_seconds"],
            "reward_mean": line["reward_mean"],
            "response_tokens_mean": line["response_tokens_mean"],
            "processed_tokens": line["total_tokens"],
        }
        assert {name: told(read.samples, name, line["step"]) for name in expected} == pytest.approx(expected)


def test_our_collector_reads_the_generations(demo: Demo) -> None:
    assert verl_rollouts.COLLECTOR.tail is not None
    run_dir = Path(str(demo.ready["run_dir"]))
    read = verl_rollouts.COLLECTOR.tail(run_dir / "rollouts", {}, Limits(), START + 700)
    newest = read.rollouts[0].consumptions[0].version
    by_step = [one for one in read.rollouts if one.consumptions[0].version == newest]
    assert len(by_step) == 512
    assert len({rollout.group_id for rollout in by_step}) == 64
    assert {rollout.reward for rollout in by_step} == {0.0, 1.0}


def test_engines_sleep_while_the_trainer_works(demo: Demo) -> None:
    seen = set()
    for second in range(700, 800, 5):
        demo.advance(START + second)
        engine = demo.cluster.engines[2]
        read = vllm.parse(demo.page(2), {}, Limits())
        asleep = told(read.samples, "generator_asleep")
        assert asleep == engine.is_asleep
        assert told(read.samples, "generator_requests_running") == len(engine.running)
        seen.add((asleep, bool(engine.running)))
    assert seen >= {(1.0, False), (0.0, True)}
    assert (1.0, True) not in seen
