"""TRL runs: recorded truth of a synchronous and an asynchronous run, state files, and the traps of trackio."""

import json
import os
import shutil
import sqlite3
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from collectors.model import Limits, Reading, ScrapeError
from collectors.trainers import trl
from tests.collectors._reading import TESTDATA, by_step, steps_json
from tests.collectors.test_trackio import log, make

SYNC, ASYNC = TESTDATA / "trl" / "sync", TESTDATA / "trl" / "async"


def tail(path: Path, cursor: dict | None = None, **limits: int) -> Reading:
    return trl.COLLECTOR.tail(path, json.loads(json.dumps(cursor or {})), Limits(**limits), 1_000.0)


def last_ten(reading: Reading, metric: str) -> float:
    return fmean(list(by_step(reading.samples, metric).values())[-10:])


def history(path: Path, rows: list[dict], **state: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    step = rows[-1]["step"] if rows else 0
    path.write_text(json.dumps({"global_step": step, "max_steps": 100, "log_history": rows, **state}))
    os.utime(path, (5_000, 5_000))


@pytest.mark.parametrize("name", ["sync", "async"])
def test_the_recorded_runs_as_expected(name: str) -> None:
    expected = json.loads((TESTDATA / "trl" / name / "expected.json").read_text())
    assert json.loads(json.dumps(steps_json(tail(TESTDATA / "trl" / name), (1, 2, 20, 40, 90)))) == expected


def test_the_synchronous_run_in_numbers() -> None:
    reading = tail(SYNC)
    assert last_ten(reading, "groups_zero_advantage_ratio") == 0.125
    assert last_ten(reading, "response_tokens_mean") == pytest.approx(39.39, abs=0.005)
    assert last_ten(reading, "reward_mean") == pytest.approx(1.148, abs=0.0005)
    assert last_ten(reading, "trainer_step_seconds") == pytest.approx(0.381, abs=0.0005)
    assert last_ten(reading, "trainer_samples") == 32
    assert (reading.facts["lifecycle"], reading.facts["mode"]) == ("finished", "sync_colocated")
    assert (reading.facts["group_size"], reading.facts["max_steps"], reading.facts["model"]) == (4, 90, "tiny")
    assert len(by_step(reading.samples, "trainer_step_seconds")) == 90
    assert reading.unmapped == {}


def test_profiling_rows_belong_to_the_step_that_follows() -> None:
    reading = tail(SYNC)
    assert by_step(reading.samples, "generation_seconds")[1] == 0.21757718099979684
    assert by_step(reading.samples, "reward_seconds")[1] == 0.015411565000022165
    assert by_step(reading.samples, "trainer_other_seconds")[1] == 0.015411565000022165  # the rewards'
    parts = [by_step(reading.samples, f"{part}_seconds") for part in ("generation", "trainer_other", "trainer_compute")]
    assert sum(part[1] for part in parts) == pytest.approx(by_step(reading.samples, "trainer_step_seconds")[1])


def test_the_asynchronous_run_in_numbers() -> None:
    """Against the recording script's own log, over the steps the run had settled."""
    reading = tail(ASYNC)
    rows = [json.loads(line) for line in (ASYNC / "truth.jsonl").read_text().splitlines()]
    truth = {row["step"]: row for row in rows if "perf/rollout_wait_s" in row}

    def settled(metric: str) -> float:
        return fmean(value for step, value in by_step(reading.samples, metric).items() if 6 <= step <= 41)

    assert settled("trainer_step_seconds") == pytest.approx(0.97, abs=0.005)
    assert settled("trainer_wait_seconds") == pytest.approx(0.125, abs=0.001)
    assert settled("queue_samples") == 10.5
    assert set(by_step(reading.samples, "staleness_versions_max").values()) == {0, 1, 2, 3}
    assert settled("staleness_versions_max") == 3 == reading.facts["max_staleness_versions"]
    drops = by_step(reading.samples, "stale_dropped_rollouts")
    assert drops == {step: row.get("sample/dropped_stale_total", 0.0) for step, row in truth.items()}
    assert fmean(drops.values()) == 8.9
    assert (reading.facts["mode"], reading.facts["lifecycle"]) == ("async", "finished")
    assert sum(event.kind == "weights_published" for event in reading.events) == 40
    # Version 1 is published before the first step, one more after each; the third update tells that it is each.
    versions = {event.detail: event.version for event in reading.events if event.kind == "weights_published"}
    assert versions == {f"step {step}": step + 1 if step > 2 else None for step in range(1, 41)}


def test_async_percentages_and_phases() -> None:
    reading = tail(ASYNC)
    wall = by_step(reading.samples, "trainer_mfu_ratio", (("basis", "wall"),))
    assert wall[40] == pytest.approx(0.007093675395809619)  # 0.709 %
    step, wait, compute, sync, other = (
        by_step(reading.samples, f"trainer_{part}_seconds")[40]
        for part in ("step", "wait", "compute", "weight_sync", "other")
    )
    assert step == pytest.approx(wait + compute + sync + other)
    assert compute == pytest.approx(0.4027062909999586 + 0.0008229139994000434)


def test_no_rest_is_invented_for_the_first_async_step() -> None:
    assert 1 not in by_step(tail(ASYNC).samples, "trainer_other_seconds")


@pytest.mark.parametrize("folder", [SYNC, ASYNC])
def test_in_parts_it_is_the_same(folder: Path) -> None:
    whole, cursor, samples, events = tail(folder), {}, [], []
    while True:
        reading = tail(folder, cursor, tail_rows=7)  # splits profiling rows from their step
        samples += reading.samples
        events += reading.events
        cursor = reading.cursor
        if not reading.more:
            break
    assert (tuple(samples), tuple(events)) == (whole.samples, whole.events)
    assert tail(folder, cursor).samples == ()


def test_times_rise_strictly() -> None:
    """trackio stamps rows with the flush, which several share."""
    times = {sample.step: sample.ts for sample in tail(ASYNC).samples}
    ordered = [times[step] for step in sorted(times)]
    assert all(before < after for before, after in pairwise(ordered))
    assert ordered[0] == pytest.approx(1795250165.7936)


def test_the_database_itself_and_its_folder_are_sources(tmp_path: Path) -> None:
    (tmp_path / "run" / "trackio").mkdir(parents=True)
    shutil.copy(SYNC / "grpo-tiny.db", tmp_path / "run" / "trackio")
    with closing(sqlite3.connect(tmp_path / "run" / "mlflow.db")) as foreign:
        foreign.execute("CREATE TABLE metrics (key TEXT, value REAL)")
    expected = tail(SYNC / "grpo-tiny.db").samples
    assert len(expected) == 2160
    for path in (tmp_path / "run", tmp_path / "run" / "trackio"):
        assert tail(path).samples == expected


def test_state_file_alone_dates_steps_backwards(tmp_path: Path) -> None:
    rows = [{"step": step, "reward": step / 10, "step_time": 2.0} for step in (1, 2, 3)]
    history(tmp_path / "trainer_state.json", rows)
    reading = tail(tmp_path)
    assert [(s.step, s.ts) for s in reading.samples if s.metric == "reward_mean"] == [(1, 4996), (2, 4998), (3, 5000)]
    assert reading.facts["times_estimated"] == 1
    assert "lifecycle" not in reading.facts


def test_state_file_with_a_logging_window(tmp_path: Path) -> None:
    rows = [{"step": step, "reward": 1.0, "step_time": 2.0} for step in (10, 20)]
    history(tmp_path / "trainer_state.json", rows)
    assert [s.ts for s in tail(tmp_path).samples if s.metric == "reward_mean"] == [4980, 5000]


def test_state_file_that_grows_and_is_rewound(tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    rows = [{"step": step, "reward": float(step), "step_time": 1.0} for step in range(1, 7)]
    history(path, rows[:4])
    first = tail(tmp_path)
    history(path, rows)
    second = tail(tmp_path, first.cursor)
    assert sorted(by_step(second.samples, "reward_mean")) == [5, 6]
    history(path, rows[:2])  # resumed from checkpoint 2
    third = tail(tmp_path, second.cursor)
    history(path, rows[:3])
    assert sorted(by_step(tail(tmp_path, third.cursor).samples, "reward_mean")) == [3]


def test_the_newest_checkpoint_is_read(tmp_path: Path) -> None:
    for step in (9, 10):  # by number, not by name
        history(tmp_path / f"checkpoint-{step}" / "trainer_state.json", [{"step": step, "reward": float(step)}])
    assert sorted(by_step(tail(tmp_path).samples, "reward_mean")) == [10]


@pytest.mark.parametrize(
    ("rows", "state"),
    [
        ([{"step": 100, "reward": 1.0}], {}),
        ([{"step": 7, "reward": 1.0}, {"step": 7, "train_runtime": 88.4}], {"max_steps": -1}),
    ],
)
def test_the_end_needs_evidence(tmp_path: Path, rows: list[dict], state: dict) -> None:
    history(tmp_path / "trainer_state.json", rows, **state)
    facts = tail(tmp_path).facts
    assert facts["lifecycle"] == "finished"
    assert "trainer_state.json" in str(facts["lifecycle_why"])


def test_a_stale_state_file_does_not_end_a_live_run(tmp_path: Path) -> None:
    """The folder of a finished run is used again: the old state says 100 of 100, trackio is at step 3."""
    history(tmp_path / "trainer_state.json", [{"step": 100, "reward": 1.0}])
    with closing(make(tmp_path / "x.db")) as writer:
        log(writer, "a", {"train/global_step": 3, "train/reward": 0.5, "train/step_time": 1.0})
    reading = tail(tmp_path)
    assert "lifecycle" not in reading.facts
    assert sorted(by_step(reading.samples, "reward_mean")) == [3]


def test_rows_of_trackio_that_are_no_steps(tmp_path: Path) -> None:
    with closing(make(tmp_path / "x.db")) as writer:
        log(writer, "a", {})  # a trace leaves an empty row
        log(writer, "a", {"eval/reward": 0.9, "train/global_step": 1})
        log(writer, "a", {"train/reward": "NaN", "train/loss": 0.1, "train/step_time": 1.0, "train/global_step": 1})
        log(writer, "a", {"train/train/reward": 5.0, "train/global_step": 2, "train/step_time": 1.0})
    reading = tail(tmp_path)
    assert by_step(reading.samples, "reward_mean") == {}
    assert by_step(reading.samples, "loss_mean") == {1: 0.1}
    assert [event.kind for event in reading.events] == ["eval"]
    assert reading.unmapped == {"train/reward": 1}  # the prefix comes off once


def test_profiling_over_a_logging_window_is_per_step(tmp_path: Path) -> None:
    with closing(make(tmp_path / "x.db")) as writer:
        for step in (2, 4):
            for _ in range(2):
                log(writer, "a", {"profiling/Time taken: GRPOTrainer.vLLM.generate": 3.0})
                log(writer, "a", {"profiling/Time taken: GRPOTrainer._prepare_inputs": 9.0})
            log(writer, "a", {"train/global_step": step, "train/step_time": 5.0})
    reading = tail(tmp_path)
    assert by_step(reading.samples, "generation_seconds")[4] == 3.0
    assert by_step(reading.samples, "trainer_compute_seconds")[4] == 2.0
    assert by_step(reading.samples, "trainer_other_seconds")[4] == 0.0  # profiled, and no reward among it
    assert sorted(by_step(reading.samples, "generation_seconds")) == [4]  # the first row's window is in no setting


# Steps that go back show the restart without an event.
@pytest.mark.parametrize(("begins", "events"), [(1, []), (6, ["restart"])])
def test_a_second_run_in_the_database_takes_over(tmp_path: Path, begins: int, events: list[str]) -> None:
    row = {"train/global_step": 5, "train/step_time": 1.0, "train/reward": 0.1}
    with closing(make(tmp_path / "x.db")) as writer:
        log(writer, "a", row)
        first = tail(tmp_path)
        log(writer, "b", {**row, "train/global_step": begins})
        second = tail(tmp_path, first.cursor)
    assert (first.facts["run_name"], second.facts["run_name"]) == ("A", "B")
    assert sorted(by_step(second.samples, "reward_mean")) == [begins]
    assert [event.kind for event in second.events] == events


def test_a_finished_run_that_goes_on_runs(tmp_path: Path) -> None:
    row = {"train/step_time": 1.0, "train/reward": 0.1}
    with closing(make(tmp_path / "x.db")) as writer:
        log(writer, "a", {**row, "train/global_step": 1})
        log(writer, "a", {"train/epoch": 1.0, "train/global_step": 1})
        first = tail(tmp_path)
        log(writer, "a", {**row, "train/global_step": 2})
        second = tail(tmp_path, first.cursor)
    assert (first.facts["lifecycle"], second.facts["lifecycle"]) == ("finished", "running")


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        ({"use_vllm": False, "vllm_mode": "server"}, "sync_colocated"),
        ({"use_vllm": True, "vllm_mode": "colocate"}, "sync_colocated"),
        ({"use_vllm": True, "vllm_mode": "server"}, "sync_split"),
        ({"max_staleness": 4}, "async"),
    ],
)
def test_modes(tmp_path: Path, config: dict, mode: str) -> None:
    with closing(make(tmp_path / "x.db")) as writer:
        writer.execute("INSERT INTO configs (run_id, run_name, config) VALUES ('a', 'A', ?)", (json.dumps(config),))
    assert tail(tmp_path).facts["mode"] == mode


def test_batch_follows_from_the_generation_batch(tmp_path: Path) -> None:
    """8 ranks x 4 per device x 4 steps per generation; 2 accumulated: 64 samples an optimizer step."""
    config = {
        "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
        "generation_batch_size": 128, "steps_per_generation": 4, "max_steps": -1, "max_inflight_tasks": -1,
    }  # fmt: skip
    with closing(make(tmp_path / "x.db")) as writer:
        writer.execute("INSERT INTO configs (run_id, run_name, config) VALUES ('a', 'A', ?)", (json.dumps(config),))
    facts = tail(tmp_path).facts
    assert facts["batch_samples"] == 64
    assert "max_steps" not in facts and "max_in_flight" not in facts


def test_no_run_says_what_was_looked_for(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(ScrapeError, match=r"trainer_state\.json") as caught:
        tail(tmp_path)
    assert caught.value.kind == "not_a_run"
    with pytest.raises(ScrapeError) as caught:
        tail(tmp_path / "absent")
    assert caught.value.kind == "missing"


def test_supervised_fine_tuning_is_not_ours(tmp_path: Path) -> None:
    history(tmp_path / "trainer_state.json", [{"step": 1, "loss": 0.5, "mean_token_accuracy": 0.7}])
    assert trl.COLLECTOR.matches_path(tmp_path) is None
    history(tmp_path / "trainer_state.json", [{"step": 1, "reward": 0.5, "completions/mean_length": 7.0}])
    assert trl.COLLECTOR.matches_path(tmp_path) == "trainer_state.json with GRPO's keys"


def published(steps: list[int], own: dict[str, Any], window: float | None = 1.0) -> list[int | None]:
    """Versions of the updates after these steps, which each had a row."""
    found = []
    for step in steps:
        found.append(trl._version(step, window, own))
        own["step"] = step
    return found


def test_versions_are_counted_by_how_often_weights_are_sent() -> None:
    # Every second step: the first row holds the update before it, 2 and 4 tell the distance.
    assert published([1, 2, 4, 6, 8], {}) == [None, None, 3, 4, 5]
    assert published([1, 3, 6, 9], {}) == [None, None, 3, 4]
    # A log that begins later, rows of several steps, a run that goes back: what was published before is not known.
    assert published([7, 8, 9], {}) == [None] * 3
    assert published([1, 2, 3], {}, window=5.0) == [None] * 3
    assert published([1, 2, 3, 4, 2, 3, 4], {}) == [None, None, 4, 5, None, None, None]
