"""Each scenario from outside, as a user meets it: signals against the truth file, and the verdict it is made for."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from server.store import Store
from tests.demo.watched import Watched, watch

LAST = 10


@pytest.fixture
def own_store(tmp_path: Path, migrated_file: Path) -> Iterator[Store]:
    """SQLite alone: the same signals on both kinds of database are another test's business."""
    shutil.copyfile(migrated_file, tmp_path / "store.db")
    opened = Store.open(f"sqlite:///{tmp_path}/store.db")
    yield opened
    opened.close()


def total(rows: list[dict[str, Any]], key: str) -> float:
    return float(sum(row[key] for row in rows))


def agrees(found: Watched, batch: int, *, seconds: float = 1e-3) -> None:
    """What the trainer tells of its last ten steps."""
    last = found.truth[-LAST:]
    step, wait = total(last, "step_seconds"), total(last, "wait_seconds")
    expected = {
        "trainer_step_seconds": step / LAST,
        "trainer_wait_ratio": wait / step,
        'trainer_phase_seconds{phase="compute"}': total(last, "compute_seconds") / LAST,
        "weight_sync_seconds": total(last, "weight_sync_seconds") / LAST,
        "capacity_samples_per_second": batch * LAST / (step - wait),
        "trainer_samples_per_second": batch * LAST / step,
        "truncation_ratio": total(last, "truncated_ratio") / LAST,
    }
    assert {name: found.values[name] for name in expected} == pytest.approx(expected, rel=seconds, abs=1e-6)


def said(found: Watched) -> tuple[str, str]:
    return found.verdict.outcome, found.verdict.cause


@pytest.mark.long
def test_a_slow_trainer(tmp_path: Path, own_store: Store) -> None:
    found = watch("trainer-bound", 1, 2_000.0, own_store, tmp_path / "demo", steps=14)
    agrees(found, 256)
    assert said(found) == ("trainer_bound", "compute")
    assert found.verdict.confidence >= 0.6
    held, batches = found.values['generation_held_ratio{by="gate"}'], found.values["queue_batches"]
    assert held is not None
    assert held > 0.4
    assert batches == pytest.approx(total(found.truth[-LAST:], "queue_samples") / LAST / 256, rel=0.05)


@pytest.mark.long
def test_slow_scoring(tmp_path: Path, own_store: Store) -> None:
    found = watch("reward-bound", 1, 2_000.0, own_store, tmp_path / "demo", steps=13)
    agrees(found, 256)
    assert said(found) == ("reward_bound", "scoring")
    assert found.verdict.confidence >= 0.6
    assert found.values['rollout_phase_seconds{phase="scoring"}'] == pytest.approx(29.3, rel=0.05)


@pytest.mark.long
def test_a_trainer_that_hangs(tmp_path: Path, own_store: Store) -> None:
    """As `stalled`, earlier. Half an hour is the least that a step may take before it is called so.

    Long before, its open step is what is told: with its batches in the queue it is nobody else who is slow.
    """
    found = watch("healthy", 1, 2_250.0, own_store, tmp_path / "demo", inject=["trainer-hang@400"])
    since = found.truth[-1]["end"] - found.about["start"]
    assert said(found) == ("stalled", "no_progress")
    first = next(at for at, verdict in found.verdicts if verdict.outcome == "stalled")
    assert 1_800.0 <= first - since <= 1_810.0
    late = [(at - since, verdict) for at, verdict in found.verdicts if at > since]
    early = next(at for at, verdict in late if verdict.cause == "open_step")
    # Three usual steps (the median, as the rule counts them), and ten seconds between two looks.
    usual = median(row["step_seconds"] for row in found.truth[-LAST:])
    assert 3 * usual <= early <= 3.3 * usual + 20.0
    between = [verdict for at, verdict in late if early <= at < first - since]
    assert {(one.outcome, one.cause) for one in between} == {("trainer_bound", "open_step")}
    assert min(one.confidence for one in between) >= 0.6
    assert "times its usual length" in between[-1].summary and "batches wait in the queue" in between[-1].summary
    assert all(verdict.outcome != "orchestrator_bound" for _, verdict in late)
    assert found.lifecycle == "running"
    assert found.values['generator_requests{state="running"}'] == 0.0


@pytest.mark.long
def test_the_published_slime_run(tmp_path: Path, own_store: Store) -> None:
    found = watch("qwen3-235b-slime", 1, 4_000.0, own_store, tmp_path / "demo", steps=12)
    assert not found.down
    assert found.mode == "one_step"
    agrees(found, 384)
    assert said(found) == ("generator_bound", "long_tail")
    assert found.verdict.confidence >= 0.6
    last = found.truth[-LAST:]
    exact = {
        'rollout_exit_ratio{exit="aborted_oversample"}': 0.6,
        'staleness_versions{level="trajectory",stat="mean"}': total(last, "staleness_mean") / LAST,
        'zero_advantage_ratio{basis="admitted"}': total(last, "zero_advantage_ratio") / LAST,
        'response_tokens{stat="mean"}': total(last, "response_tokens_mean") / LAST,
        'reward{stat="mean"}': total(last, "reward_mean") / LAST,
    }
    assert {name: found.values[name] for name in exact} == pytest.approx(exact, rel=1e-6, abs=1e-9)
    running = sum(row["requests_running"] * row["step_seconds"] for row in last) / total(last, "step_seconds")
    assert found.values['generator_requests{state="running"}'] == pytest.approx(running, rel=0.15)
    assert found.values["generator_generated_tokens_total"] == pytest.approx(last[-1]["generation_tokens"], rel=0.03)
    assert found.values['generator_engines{state="up"}'] == 12.0


@pytest.mark.long
def test_a_synchronous_run_without_sandboxes(tmp_path: Path, own_store: Store) -> None:
    found = watch("math-sync-colocated", 1, 2_000.0, own_store, tmp_path / "demo", steps=14, every=5.0)
    last = found.truth[-LAST:]
    assert not found.down
    assert found.mode == "sync_colocated"
    exact = {
        "trainer_step_seconds": total(last, "step_seconds") / LAST,
        'trainer_phase_seconds{phase="generation"}': total(last, "generation_seconds") / LAST,
        'trainer_phase_seconds{phase="compute"}': total(last, "compute_seconds") / LAST,
        "weight_sync_seconds": total(last, "weight_sync_seconds") / LAST,
        'zero_advantage_ratio{basis="completed"}': total(last, "zero_advantage_ratio") / LAST,
        'response_tokens{stat="mean"}': total(last, "response_tokens_mean") / LAST,
    }
    assert {name: found.values[name] for name in exact} == pytest.approx(exact, rel=1e-6)
    # Of pages every 5 s over a generation of half a minute.
    assert found.values["tail_bubble_ratio"] == pytest.approx(total(last, "tail_bubble_ratio") / LAST, abs=0.08)
    assert said(found) == ("balanced", "")
    assert found.verdict.confidence >= 0.6
    assert {one.cause for one in found.verdict.limiters} >= {"long_tail"}
    assert found.values["sandboxes"] is None
    assert found.why["sandboxes"] == "this task uses no sandbox"
    assert found.values["trainer_wait_ratio"] is None
    assert "take turns" in found.why["trainer_wait_ratio"]


def test_tasks_that_are_too_easy(tmp_path: Path, own_store: Store) -> None:
    found = watch("glm5-easy-curriculum", 1, 2_400.0, own_store, tmp_path / "demo", steps=22)
    assert not found.down
    assert found.mode == "async"
    last = found.truth[-LAST:]
    step, wait = total(last, "step_seconds"), total(last, "wait_seconds")
    exact = {
        "trainer_wait_ratio": wait / step,
        "compute_capacity_samples_per_second": 128 * LAST / total(last, "compute_seconds"),
        'staleness_versions{level="trajectory",stat="max"}': max(row["staleness_max"] for row in last),
    }
    assert {name: found.values[name] for name in exact} == pytest.approx(exact, rel=1e-3)
    # Records tell the batch that the trainer has now too.
    assert found.values['tool_calls{stat="mean"}'] == pytest.approx(total(last, "tool_calls_mean") / LAST, rel=0.1)
    solved = found.values['zero_advantage_group_ratio{basis="completed",cause="all_solved"}']
    assert solved == pytest.approx(last[-1]["completed_all_solved_ratio"], abs=0.04)
    assert said(found) in (("curriculum_bound", "too_easy"), ("orchestrator_bound", "concurrency_cap"))
    # Two limits of nearly the same size: which is the larger is said, and that it is not sure.
    assert found.verdict.confidence >= 0.4
    shares = {one.outcome: one.share for one in found.verdict.limiters}
    assert {"curriculum_bound", "orchestrator_bound"} <= set(shares)
    assert min(shares["curriculum_bound"], shares["orchestrator_bound"]) > 0.2
