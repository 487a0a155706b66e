"""Tinker cookbook: rows without a time, waiting between the steps, groups removed before they are counted."""

import json
import os
import shutil
from pathlib import Path

import pytest

from collectors.model import Reading
from collectors.trainers import tinker_cookbook
from tests.collectors._frameworks import NOW, collected, in_parts, live, tail, values
from tests.collectors._reading import TESTDATA, by_step

ASYNC, SYNC = TESTDATA / "tinker_cookbook" / "async", TESTDATA / "tinker_cookbook" / "sync"
COLLECTOR = tinker_cookbook.COLLECTOR
COMMON = {
    "reward_mean": 0.625,
    "groups_mixed_ratio": 0.625,
    "groups_all_solved_ratio": 0.25,
    "groups_none_solved_ratio": 0.125,
    "groups_zero_advantage_ratio": 0.375,
    "response_tokens_mean": 512.0,
    "turns_mean": 2.0,
    "trainer_samples": 32.0,
    "trained_tokens": 16384.0,
    "mismatch_kl_mean": 0.001,
    "entropy_mean": 0.5,
    "learning_rate": 1e-5,
    "trainer_weight_sync_seconds": 4.0,
}
LOST = {'rollout_errors{type="SandboxError"}': 2.0}  # counted since the start


def watched(folder: Path, lines: list[str], moments: list[float]) -> list[Reading]:
    """Readings of a run that is watched: each line is read when it was written."""
    readings: list[Reading] = []
    for line, moment in zip(lines, moments, strict=True):
        with (folder / "metrics.jsonl").open("a") as file:
            file.write(line)
        os.utime(folder / "metrics.jsonl", (moment, moment))
        readings.append(tail(COLLECTOR, folder, readings[-1].cursor if readings else {}, moment + 1))
    return readings


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    shutil.copy(ASYNC / "config.json", tmp_path)
    return tmp_path


def steps(folder: Path) -> list[str]:
    return [line for line in (folder / "metrics.jsonl").read_text().splitlines(keepends=True) if '"step"' in line]


def test_a_synchronous_step_in_numbers() -> None:
    reading = tail(COLLECTOR, SYNC)
    phases = {"trainer_step_seconds": 60.0, "generation_seconds": 36.0, "trainer_compute_seconds": 20.0}
    assert values(reading, 1) == {**COMMON, **phases, **LOST}
    assert values(reading, 0)["trainer_other_seconds"] == 10  # evaluated before the step
    assert reading.facts["usual_mode"] == "sync_split"
    assert reading.unmapped == {}


def test_facts() -> None:
    assert tail(COLLECTOR, ASYNC).facts == {
        "framework": "tinker_cookbook",
        "mode": "async",
        "group_size": 4.0,
        "batch_samples": 32.0,
        "max_staleness_versions": 2.0,
        "max_response_tokens": 2048.0,
        "model": "Qwen/Qwen3-8B",
        "max_steps": 12.0,
        "times_estimated": 1.0,
        "lifecycle": "finished",
        "lifecycle_why": "step 11 is the last of 12",
    }


def test_an_asynchronous_step_read_afterwards_has_no_length() -> None:
    """`time/total` leaves the waiting out, and the rows have no times that would tell it."""
    staleness = {"staleness_versions_mean": 1.0, "staleness_versions_max": 2.0, "stale_dropped_rollouts": 0.0}
    assert values(tail(COLLECTOR, ASYNC), 5) == {**COMMON, **LOST, **staleness, "trainer_compute_seconds": 16.0}


def test_a_step_that_was_watched_has_its_waiting(empty: Path) -> None:
    readings = watched(empty, steps(ASYNC)[:4], [1_000.0, 1_050.0, 1_075.0, 1_170.0])
    taken = [by_step(reading.samples, "trainer_step_seconds") for reading in readings]
    assert taken == [{}, {1: 50.0}, {2: 25.0}, {3: 95.0}]
    waited = [by_step(reading.samples, "trainer_wait_seconds") for reading in readings]
    assert waited == [{}, {1: 30.0}, {2: 5.0}, {3: 75.0}]
    assert [{sample.ts for sample in reading.samples} for reading in readings] == [{1_000}, {1_050}, {1_075}, {1_170}]


def test_after_a_gap_the_waiting_is_unknown_until_two_steps_were_watched(empty: Path) -> None:
    lines = steps(ASYNC)
    readings = watched(empty, [lines[0], "".join(lines[1:4]), lines[4]], [1_000.0, 1_300.0, 1_340.0])
    assert by_step(readings[1].samples, "trainer_wait_seconds") == {}
    assert by_step(readings[2].samples, "trainer_wait_seconds") == {4: 20.0}


def test_streamed_minibatches_hide_the_waiting(empty: Path) -> None:
    rows = [json.loads(line) | {"time/train/fwd_bwd_substep_0_mb_1_consume": 3.0} for line in steps(ASYNC)[:2]]
    readings = watched(empty, [json.dumps(row) + "\n" for row in rows], [1_000.0, 1_050.0])
    assert by_step(readings[1].samples, "trainer_wait_seconds") == {}


@pytest.mark.parametrize("config", ['{"remove_constant_reward_groups": true}', "{}", "nonsense", None])
def test_groups_removed_before_they_are_counted_are_unknown(tmp_path: Path, config: str | None) -> None:
    """Removed ones leave a share of mixed groups of 1: that is no run without zero-advantage groups."""
    shutil.copy(SYNC / "metrics.jsonl", tmp_path)
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    found = values(tail(COLLECTOR, tmp_path), 3)
    assert not {name for name in found if name.startswith("groups_")}
    assert found["reward_mean"] == 0.625


def test_rows_that_are_no_steps() -> None:
    reading = tail(COLLECTOR, ASYNC)
    assert {sample.step for sample in reading.samples if sample.axis == "trainer"} == set(
        range(12)
    )  # 12 is an evaluation


def test_in_parts_and_live_it_is_the_same(tmp_path: Path) -> None:
    whole = collected([tail(COLLECTOR, SYNC)])
    assert collected(in_parts(COLLECTOR, SYNC, 5)) == whole
    shutil.copy(SYNC / "config.json", tmp_path)
    assert collected(live(COLLECTOR, SYNC / "metrics.jsonl", tmp_path / "metrics.jsonl")) == whole


def test_a_resumed_run_cuts_the_file_back(tmp_path: Path) -> None:
    """Rows from the checkpoint on are dropped, the old file is kept beside it (utils/ml_log.py)."""
    shutil.copytree(SYNC, tmp_path / "run")
    path, lines = tmp_path / "run" / "metrics.jsonl", steps(SYNC)
    first = tail(COLLECTOR, tmp_path / "run")
    path.rename(path.with_name("metrics.jsonl.pre_resume_8"))
    again = json.dumps({**json.loads(lines[8]), "env/all/reward/total": 0.75}) + "\n"
    path.write_text("".join(lines[:8]) + again)
    os.utime(path, (NOW, NOW))
    second = tail(COLLECTOR, tmp_path / "run", first.cursor)
    assert by_step(second.samples, "reward_mean")[8] == 0.75
    with path.open("a") as file:
        file.write(lines[9])
    third = tail(COLLECTOR, tmp_path / "run", second.cursor)
    assert sorted(by_step(third.samples, "reward_mean")) == [9]


def test_somebody_elses_metrics_file_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "time/step": 2.0, "perf/mfu": 30.0}\n')
    assert COLLECTOR.matches_path is not None
    assert COLLECTOR.matches_path(tmp_path) is None
