"""One TRL run logged to five sinks at once: each alone tells the same, and a folder with all of them is read once."""

import json
import lzma
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from statistics import fmean

import pytest

from collectors.detect import detect_path
from collectors.model import Limits, Reading
from collectors.trainers import trl
from tests.collectors._reading import TESTDATA, by_step
from tests.support_writers import live_writer

PACKED = TESTDATA / "trl_sinks"
SINKS = ("trackio", "mlflow", "wandb", "tensorboard", "trainer_state.json")
PHASES = {"generation_seconds", "reward_seconds", "trainer_compute_seconds", "trainer_other_seconds"}
WORK = {"trainer_samples", "trained_tokens"}


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recorded run's directory, as it was: ninety steps into all five sinks."""
    folder = tmp_path_factory.mktemp("sync")
    for name, path in (
        ("mlflow.db", folder / "mlflow"),
        ("run-rlq6wr5s.wandb", folder / "wandb" / "offline-run-20261121_074212-rlq6wr5s"),
        ("events.out.tfevents.1795246932.vm.12003.0", folder / "tensorboard"),
    ):
        path.mkdir(parents=True)
        (path / name).write_bytes(lzma.decompress((PACKED / f"{name}.xz").read_bytes()))
    (folder / "trackio").mkdir()
    shutil.copy(TESTDATA / "trl" / "sync" / "grpo-tiny.db", folder / "trackio")
    (folder / "trainer_state.json").mkdir()
    shutil.copy(TESTDATA / "trl" / "sync" / "trainer_state.json", folder / "trainer_state.json")
    return folder


def tail(path: Path, cursor: dict | None = None, **limits: int) -> Reading:
    return trl.COLLECTOR.tail(path, json.loads(json.dumps(cursor or {})), Limits(**limits), 1_800_000_000.0)


def last_ten(reading: Reading, metric: str) -> float:
    return fmean(list(by_step(reading.samples, metric).values())[-10:])


@pytest.mark.parametrize("sink", SINKS)
def test_each_sink_alone_tells_the_run(run: Path, sink: str) -> None:
    reading = tail(run / sink)
    assert last_ten(reading, "groups_zero_advantage_ratio") == 0.125
    assert last_ten(reading, "response_tokens_mean") == pytest.approx(39.39, abs=0.005)
    assert last_ten(reading, "reward_mean") == pytest.approx(1.148, abs=0.0005)
    assert last_ten(reading, "trainer_step_seconds") == pytest.approx(0.381, abs=0.0005)
    assert sorted(by_step(reading.samples, "trainer_step_seconds")) == list(range(1, 91))
    assert (reading.facts["mode"], reading.facts["lifecycle"]) == ("sync_colocated", "finished")
    assert (reading.facts["max_steps"], reading.unmapped, reading.dropped) == (90, {}, 0)
    assert trl.COLLECTOR.matches_path(run / sink)


@pytest.mark.parametrize("sink", SINKS)
def test_each_sink_alone_has_the_same_values(run: Path, sink: str) -> None:
    """What a sink lacks is absent, never zero: only those with profiling rows know the phases."""

    def values(path: Path) -> dict:
        return {(s.metric, s.labels, s.step): s.value for s in tail(path).samples}

    full, own = values(run / "trackio"), values(run / sink)
    # TensorBoard keeps 32-bit floats.
    assert own == pytest.approx({key: full[key] for key in own}, rel=1e-6, abs=1e-9)
    lacks = {"tensorboard": PHASES, "trainer_state.json": PHASES | WORK}.get(sink, set())
    assert {metric for metric, _, _ in full.keys() - own.keys()} == lacks


def test_a_folder_with_all_of_them_is_read_once(run: Path) -> None:
    reading = tail(run)
    assert len(reading.samples) == 2160 == len(tail(run / "trackio").samples)
    assert tail(run, reading.cursor).samples == ()
    assert detect_path(run)[0] == ("trl", "trackio grpo-tiny.db with frac_reward_zero_std")


@pytest.mark.parametrize("sink", ["mlflow", "wandb", "tensorboard"])
def test_in_parts_it_is_the_same(run: Path, sink: str) -> None:
    whole, cursor, samples = tail(run / sink), {}, []
    while True:
        reading = tail(run / sink, cursor, tail_rows=7)  # splits profiling rows from their step
        samples += reading.samples
        cursor = reading.cursor
        if not reading.more:
            break
    assert {(s.metric, s.labels, s.step): s.value for s in samples} == {
        (s.metric, s.labels, s.step): s.value for s in whole.samples
    }


def test_the_arguments_in_tensorboard_give_the_facts(run: Path) -> None:
    facts = tail(run / "tensorboard").facts
    assert (facts["group_size"], facts["batch_samples"], facts["max_response_tokens"]) == (4, 32, 48)


MLFLOW = """
import sys, mlflow
mlflow.set_tracking_uri("sqlite:///" + sys.argv[1])
mlflow.start_run(run_name="late")
mlflow.log_params({"num_generations": 4})
print("ready", flush=True)
for line in sys.stdin:
    kind, step = line.split()
    if kind == "profile":
        mlflow.log_metrics({"profiling/Time taken: GRPOTrainer.vLLM.generate": 3.0 + int(step)}, step=int(step))
    elif kind == "end":
        mlflow.end_run()
    else:
        mlflow.log_metrics({"step_time": 9.0, "reward": 0.5, "grad_norm": float("nan")}, step=int(step))
    print(line, flush=True)
"""


def test_steps_that_mlflow_writes_late_get_their_own_phases(tmp_path: Path) -> None:
    """HF logs steps from a thread: step 1 may land behind the profiling rows of step 2 (they say 1: steps done)."""
    with live_writer(MLFLOW, tmp_path / "mlflow.db") as writer:
        assert writer.process.stdout is not None and writer.process.stdout.readline() == "ready\n"
        for line in ("profile 0", "profile 1", "step 1"):
            writer.say(line)
            writer.process.stdout.readline()
        first = tail(tmp_path)
        for line in ("step 2", "end 0"):
            writer.say(line)
            writer.process.stdout.readline()
        second = tail(tmp_path, first.cursor)
    assert by_step(first.samples, "generation_seconds") == {1: 3.0}
    assert by_step(second.samples, "generation_seconds") == {2: 4.0}
    assert by_step(second.samples, "trainer_compute_seconds") == {2: 5.0}
    assert by_step(second.samples, "gradient_nonfinite") == {2: 1.0}
    assert (second.facts["lifecycle"], second.facts["lifecycle_why"]) == ("finished", "MLflow's run finished")


def test_without_profiling_no_phase_is_invented(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "x.db")) as database:
        database.executescript(
            "CREATE TABLE runs (run_uuid TEXT, name TEXT, status TEXT, start_time BIGINT, lifecycle_stage TEXT);"
            "CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT);"
            "CREATE TABLE metrics (key TEXT, value FLOAT, timestamp BIGINT, run_uuid TEXT, step BIGINT, is_nan BOOL);"
            "INSERT INTO runs VALUES ('a', 'A', 'RUNNING', 1, 'active');"
            "INSERT INTO metrics VALUES ('frac_reward_zero_std', 0.5, 1795246937000, 'a', 1, 0),"
            " ('step_time', 2.0, 1795246937000, 'a', 1, 0)"
        )
    reading = tail(tmp_path)
    assert {s.metric: s.value for s in reading.samples} == {
        "groups_zero_advantage_ratio": 0.5,
        "trainer_step_seconds": 2.0,
    }
    assert "lifecycle" not in reading.facts
