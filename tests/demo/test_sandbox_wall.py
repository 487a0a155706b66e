"""`gb300-sandbox-wall`: what was published of such a run, and that it is the boots that hold it back."""

import dataclasses
import json
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from demo.cluster import Cluster
from demo.process import Demo
from demo.scenarios import SCENARIOS
from tests.demo.conftest import START, Recorder, simulated

WALL = SCENARIOS["gb300-sandbox-wall"]
# The run is 20 min old when the clock begins; its ramp is over 35 min later.
HOUR, RAMPED = START + 3_600.0, START + 2_400.0
Line = dict[str, Any]


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Line], list[Line]]:
    """Lines of every 30 s and of every step, of the first hour; other seeds are in `test_scenarios`."""
    demo = Demo(WALL.name, 2, tmp_path_factory.mktemp("wall") / "demo", START)
    demo.advance(HOUR)
    found = tuple(
        [json.loads(line) for line in Path(str(demo.ready[name])).read_text().splitlines()]
        for name in ("truth_sandboxes", "truth")
    )
    demo.close()
    return found[0], found[1]


@pytest.mark.long
def test_concurrency_goes_from_96_to_960(truth: tuple[list[Line], list[Line]]) -> None:
    lines, _ = truth
    assert {line["in_flight"] for line in lines if line["t"] <= START + 300} == {96}
    assert {line["in_flight"] for line in lines if line["t"] >= START + 2_130} == {960}
    assert all(now["in_flight"] >= before["in_flight"] for before, now in pairwise(lines))


@pytest.mark.parametrize(
    ("now", "cap"),
    [
        (0.0, 96),
        (1_500.0, 96),
        (1_502.0, 96),
        (1_502.1, 97),
        (2_400.0, 528),
        (3_299.9, 959),
        (3_300.0, 960),
        (1e9, 960),
    ],
)
def test_the_ramp_is_a_straight_line(now: float, cap: int) -> None:
    """864 more in 1,800 s: one every 2.08 s."""
    assert WALL.sandboxes is not None
    assert WALL.sandboxes.in_flight_cap(now) == cap


@pytest.mark.long
def test_completed_spin_ups_look_fine_while_the_oldest_pending_grows(truth: tuple[list[Line], list[Line]]) -> None:
    lines, _ = truth
    at_the_wall = [line for line in lines if line["t"] >= RAMPED]
    assert 19 < median(line["spinup_p50_seconds"] for line in at_the_wall) < 24
    assert median(line["spinup_p95_seconds"] for line in at_the_wall) < 75
    assert max(line["spinup_p95_seconds"] for line in at_the_wall) < 180
    ages = [line["oldest_pending_seconds"] for line in lines if line["t"] >= START]
    assert ages[0] <= 1_200
    assert ages[-1] > 3_600
    assert all(now - before == pytest.approx(30.0) for before, now in pairwise(ages)), "it only grows"


@pytest.mark.long
def test_the_starting_limit_binds_and_most_of_them_wait(truth: tuple[list[Line], list[Line]]) -> None:
    lines, _ = truth
    assert max(line["starting"] for line in lines) == 128
    at_the_wall = [line for line in lines if line["t"] >= RAMPED]
    assert {line["starting"] for line in at_the_wall} == {128}
    assert min(line["states"]["pending"] for line in at_the_wall) > 400
    assert max(line["states"]["running"] for line in at_the_wall) < 450


@pytest.mark.long
def test_failures_of_every_cause(truth: tuple[list[Line], list[Line]]) -> None:
    lines, _ = truth
    failures, created = lines[-1]["failures"], lines[-1]["created"]
    assert set(failures) == {"IMAGE_PULL_FAILED", "OOM_KILLED", "TIMEOUT", "quota"}
    shares = {cause: count / created for cause, count in failures.items()}
    for cause, low, high in (
        ("IMAGE_PULL_FAILED", 0.005, 0.011),
        ("OOM_KILLED", 0.004, 0.009),
        ("TIMEOUT", 0.002, 0.006),
        ("quota", 0.002, 0.05),
    ):
        assert low < shares[cause] < high, cause
    assert all(now["failures"].get(c, 0) >= n for before, now in pairwise(lines) for c, n in before["failures"].items())


@pytest.mark.long
def test_credit_falls_with_use(truth: tuple[list[Line], list[Line]]) -> None:
    """What runs is billed at 0.12 USD an hour, the 14 left over too."""
    lines, _ = truth
    for before, now in pairwise(lines):
        running = (before["states"]["running"] + now["states"]["running"]) / 2
        assert before["credit_usd"] - now["credit_usd"] == pytest.approx(running * 0.12 / 120, rel=0.2)


@pytest.mark.long
def test_step_lines_carry_the_sandboxes_too(truth: tuple[list[Line], list[Line]]) -> None:
    lines, steps = truth
    assert steps[-1]["sandboxes"].keys() == lines[-1].keys() - {"t", "in_flight", "census"}
    assert steps[-1]["sandboxes"]["oldest_pending_seconds"] > 3_400


@pytest.mark.long
def test_engines_are_quiet_and_the_trainer_waits(truth: tuple[list[Line], list[Line]]) -> None:
    _, steps = truth
    last = [step for step in steps if step["start"] >= RAMPED]
    assert len(last) >= 20
    assert 0.42 < median(step["wait_seconds"] / step["step_seconds"] for step in last) < 0.6
    assert max(step["requests_waiting"] for step in last) < 5
    assert max(step["kv_usage"] for step in last) < 0.2
    assert median(step["requests_running"] for step in last) < 0.15 * 960


@cache
def without(**changes: object) -> float:
    """Samples per second of the same run with another provider, at 960 in flight."""
    assert WALL.sandboxes is not None
    plan = dataclasses.replace(WALL.sandboxes, concurrency=((0.0, 960),), **changes)  # type: ignore[arg-type]
    cluster = Cluster(dataclasses.replace(WALL, sandboxes=plan), 1)
    recorder = Recorder()
    cluster.observers.append(recorder)
    cluster.advance(2_400.0)
    steps = [step for step in recorder.steps if step.start > 1_200]  # images are built by then
    return 256 * len(steps) / (steps[-1].end - steps[0].start)


@pytest.mark.long
def test_with_other_limits_the_same_run_keeps_its_trainer_busy() -> None:
    """The counterfactual: with no limit on starts the trainer gets most of what it can take, else not half of it."""
    capacity = 256 / (256 * (900 + 4 * 280 + WALL.mean_response_tokens) / WALL.train_tokens_per_second + 2.35)
    assert without(starting_limit=10_000, concurrent_limit=10_000) > 0.8 * capacity
    assert without(concurrent_limit=10_000) < 0.5 * capacity


@pytest.mark.long
def test_boots_are_bounded_by_the_limit_over_the_time_of_a_start() -> None:
    """Little's law of the starting slots: 128 = starts per second x mean seconds in a slot."""
    cluster, _ = simulated(WALL.name, 1, 5_400.0)
    assert cluster.orchestrator.harness is not None
    provider = cluster.orchestrator.harness.provider
    begun = [s for s in provider.records.values() if s.started is not None and 3_700 <= s.started < 5_300]
    failed = [s for s in provider.records.values() if s.fate in ("IMAGE_PULL_FAILED", "TIMEOUT") and s.ended]
    in_slots = sum(s.start_seconds for s in begun)
    in_slots += sum(s.start_seconds for s in failed if s.ended and 3_700 <= s.ended < 5_300 and s.error_type)
    assert in_slots / 1_600 == pytest.approx(128, rel=0.03)


def test_siblings_share_an_image_and_sandboxes_are_named_after_traces() -> None:
    cluster, _ = simulated(WALL.name, 1, 1_800.0)
    assert cluster.orchestrator.harness is not None
    records = cluster.orchestrator.harness.provider.records.values()
    names = {sandbox.name for sandbox in records}
    assert all(len(name) == 32 and set(name) <= set("0123456789abcdef") for name in names)
    own = [sandbox for sandbox in records if sandbox.label == WALL.run]
    images = {sandbox.name: sandbox.image for sandbox in own}
    assert all(images[sandbox.name] == sandbox.image for sandbox in own), "a retry is of the same task"
    assert len(set(images.values())) > 30


def test_a_rollouts_turns_add_up() -> None:
    cluster, steps = simulated(WALL.name, 1, 1_800.0)
    rollouts = [rollout for step in steps for rollout in step.batch.rollouts()]
    for rollout in rollouts:
        assert rollout.generated == rollout.response_tokens
        assert rollout.dispatched < rollout.ready < rollout.first_token < rollout.finished < rollout.scored
        assert 0 <= rollout.tool_seconds < rollout.agent_seconds
        assert 3 <= rollout.turns <= 7
        assert 80 * (rollout.turns - 1) <= rollout.tool_tokens <= 480 * (rollout.turns - 1)
    # Its agent begins once the sandbox is set up: an engine that is not full answers at once.
    assert median(rollout.first_token - rollout.ready for rollout in rollouts) < 0.2
    assert sum(rollout.turns for rollout in rollouts) / len(rollouts) == pytest.approx(5.0, rel=0.02)
    finished = sum(engine.stats.finished for engine in cluster.engines)
    assert finished > sum(rollout.turns for rollout in rollouts), "an engine counts turns"
