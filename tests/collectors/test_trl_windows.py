"""TRL rows that stand for several steps (`logging_steps`), and rows of one step that come in parts."""

import json
from contextlib import closing
from pathlib import Path

import pytest

from collectors.model import Limits, Reading
from collectors.trainers import trl
from tests.collectors._events import event, name, record, simple
from tests.collectors._reading import by_step
from tests.collectors.test_trackio import log, make

ROW = {"train/perf/rollout_wait_s": 4.0, "train/sample/staleness_mean": 2.0, "train/batch/samples_per_step": 16.0}
SUMS = {
    "train/sample/dropped_stale_total": 40.0,
    "train/rollout/vllm_retry_total": 20.0,
    "train/batch/dropped_oversize_total": 10.0,
}


def tail(path: Path, cursor: dict | None = None) -> Reading:
    return trl.COLLECTOR.tail(path, json.loads(json.dumps(cursor or {})), Limits(), 2_000_000_000.0)


def run(path: Path, config: dict, *rows: dict) -> Reading:
    with closing(make(path / "x.db")) as writer:
        writer.execute("INSERT INTO configs (run_id, run_name, config) VALUES ('a', 'A', ?)", (json.dumps(config),))
        for row in rows:
            log(writer, "a", row)
    return tail(path)


def windowed(path: Path, config: dict, *steps: int) -> Reading:
    return run(path, config, *({**ROW, **SUMS, "train/global_step": step} for step in steps))


def test_sums_of_a_window_are_told_per_step(tmp_path: Path) -> None:
    """40 rollouts dropped in 10 steps of 16 samples: 4 a step, a share of 4 / (4 + 16) = 0.2."""
    reading = windowed(tmp_path, {"logging_steps": 10, "max_staleness": 4}, 10, 20)
    assert by_step(reading.samples, "stale_dropped_rollouts") == {10: 4.0, 20: 4.0}
    assert by_step(reading.samples, "rollout_retries") == {10: 2.0, 20: 2.0}
    assert by_step(reading.samples, "oversize_dropped_samples") == {10: 1.0, 20: 1.0}
    assert by_step(reading.samples, "trainer_samples") == {10: 16.0, 20: 16.0}  # a mean already


def test_the_window_is_at_most_the_steps_since_the_row_before(tmp_path: Path) -> None:
    reading = windowed(tmp_path, {"logging_steps": 10, "logging_first_step": True}, 1, 10, 30)
    # Step 1 alone, 9 behind it; the row of step 20 is missing, and what it summed with it.
    assert by_step(reading.samples, "stale_dropped_rollouts") == {1: 40.0, 10: pytest.approx(40 / 9), 30: 4.0}


def test_a_first_row_of_an_unknown_window_tells_no_sums(tmp_path: Path) -> None:
    reading = windowed(tmp_path, {"max_staleness": 4}, 10, 20)
    assert by_step(reading.samples, "rollout_retries") == {20: 2.0}
    assert by_step(reading.samples, "staleness_versions_mean") == {10: 2.0, 20: 2.0}


def test_first_phases_are_per_step_where_the_window_is_set(tmp_path: Path) -> None:
    generate = {"profiling/Time taken: GRPOTrainer.vLLM.generate": 3.0}
    rewards = {"profiling/Time taken: GRPOTrainer._calculate_rewards": 0.5}
    row = {"train/global_step": 2, "train/step_time": 5.0}
    reading = run(tmp_path, {"logging_steps": 2}, generate, rewards, generate, rewards, row)
    found = {sample.metric: sample.value for sample in reading.samples}
    assert (found["generation_seconds"], found["trainer_other_seconds"]) == (3.0, 0.5)
    assert found["trainer_compute_seconds"] == 1.5


def test_a_step_met_in_parts_keeps_what_it_dropped(tmp_path: Path) -> None:
    """The poll falls between two keys of step 10: the part without the sum does not overwrite it."""
    path = tmp_path / name(1_800_000_000)

    def write(step: int, values: dict[str, float]) -> None:
        with path.open("ab") as file:
            for tag, value in values.items():
                file.write(record(event(1_800_000_000.0 + step, step, simple(tag, value))))

    write(1, {**ROW, **SUMS})
    write(10, {"train/sample/dropped_stale_total": 45.0, "train/perf/rollout_wait_s": 4.0})
    first = tail(tmp_path)
    write(10, {"train/sample/staleness_mean": 2.0, "train/rollout/vllm_retry_total": 18.0})
    write(11, ROW)
    second = tail(tmp_path, first.cursor)
    both = (*first.samples, *second.samples)
    # Nine steps; and TRL leaves the sum out where nothing was dropped.
    assert by_step(both, "stale_dropped_rollouts") == {1: 40.0, 10: 5.0, 11: 0.0}
    assert by_step(both, "rollout_retries") == {1: 20.0, 10: 2.0}


@pytest.mark.parametrize(
    ("config", "steps"),
    [
        ({"logging_steps": 10}, 10.0),
        ({"logging_steps": 0.05, "max_steps": 90}, 5.0),  # HF rounds 4.5 up
        ({"logging_steps": 0.05, "max_steps": -1}, None),
        ({"logging_steps": 500, "logging_strategy": "epoch"}, None),
        ({"logging_steps": 0}, None),
    ],
)
def test_the_window_by_the_settings(config: dict, steps: float | None) -> None:
    assert trl.facts(config).get("logging_steps") == steps
