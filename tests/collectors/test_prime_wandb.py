"""prime-rl runs that log to W&B: its two files alone, and beside metrics.jsonl what only W&B gets."""

import json
from pathlib import Path
from typing import Any

import pytest

from collectors.detect import detect_path
from collectors.model import Limits, Reading
from collectors.trainers.prime_rl import collector as prime_rl
from tests.collectors._sinks import varint
from tests.collectors._wandb import field, item, journal

T0 = 1_795_248_000.0
TRAINER = [
    {"step": 3, "perf/mfu": 31.25, "perf/throughput": 40_000.0},
    {"step": 3, "optim/lr": 1e-6, "optim/grad_norm": 0.25},
    {"step": 3, "time/step": 40.0, "time/wait_for_batch": 24.0, "time/forward_backward": 13.0},
]
GAUGES = {
    "dispatcher/inflight/train": 480.0, "dispatcher/inflight/eval": 32.0, "concurrency/max_inflight": 640.0,
    "watcher/policy_version": 7.0, "dispatcher/cancelled/train": 2.0, "event_loop_lag/mean": 0.01, "new/gauge": 1.0,
}  # fmt: skip
ORCHESTRATOR = [GAUGES, {"step": 3, "progress/rollouts": 512, "off_policy/mean": 1.5, "inference/agg/x": 1.0}]


def configured(**settings: Any) -> bytes:
    return field(5, b"".join(item(key, value) for key, value in settings.items()))


def log(run: Path, name: str, rows: list[dict[str, Any]], *more: bytes, ended: int | None = None) -> Path:
    """A process's file; row n was logged n seconds after T0."""
    stamped = [{**row, "_step": n, "_timestamp": T0 + n, "_runtime": n} for n, row in enumerate(rows)]
    history = [field(2, b"".join(item(key, value) for key, value in row.items())) for row in stamped]
    end = [field(18, b"\x08" + varint(ended))] if ended is not None else []
    path = run / "wandb" / f"run-20261121_080000-{name}" / f"run-{name}.wandb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(journal([*more, *history, *end]))
    return path


def tail(path: Path, cursor: Any = None) -> Reading:
    return prime_rl.tail(path, json.loads(json.dumps(cursor or {})), Limits(), T0 + 100)


def said(reading: Reading) -> dict[tuple[str, str], float]:
    """By axis and metric, labels in words; what belongs to no step has no axis."""
    return {(s.axis, "/".join((s.metric, *(v for _, v in s.labels)))): s.value for s in reading.samples}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    log(tmp_path, "t", TRAINER, configured(max_steps=5))
    log(tmp_path, "o", ORCHESTRATOR, configured(group_size=8, batch_size=512, max_off_policy_steps=4))
    return tmp_path


def test_wandb_alone_is_a_run(run: Path) -> None:
    assert [name for name, _ in detect_path(run)] == ["prime_rl"]
    reading = tail(run)
    found = said(reading)
    assert found["trainer", "trainer_step_seconds"] == 40
    assert found["trainer", "trainer_wait_seconds"] == 24
    assert found["trainer", "trainer_other_seconds"] == 40 - 24 - 13
    assert found["trainer", "trainer_mfu_ratio/busy"] == 0.3125
    assert found["orchestrator", "trainer_samples"] == 512
    assert found["orchestrator", "staleness_versions_mean"] == 1.5
    expected = {"group_size": 8, "batch_samples": 512, "max_staleness_versions": 4, "max_steps": 5, "mode": "async"}
    assert reading.facts == {"framework": "prime_rl"} | expected
    assert tail(run, reading.cursor).samples == ()


def test_what_only_wandb_gets(run: Path) -> None:
    reading = tail(run)
    gauges = {name: value for (axis, name), value in said(reading).items() if axis == ""}
    assert gauges == {
        "in_flight_rollouts/generating": 480, "in_flight_rollouts/eval": 32, "in_flight_capacity_rollouts": 640,
        "generator_policy_version": 7,
    }  # fmt: skip
    assert {s.ts for s in reading.samples if s.axis == ""} == {T0}
    assert reading.unmapped == {"new/gauge": 1}


def test_steps_are_told_once_beside_metrics_jsonl(run: Path) -> None:
    rows = [{**row, "time": T0} for row in TRAINER]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (run / "logs").mkdir()
    (run / "logs" / "orchestrator.log").write_text("08:00:00 INFO Train batch 1/8; 9 inflight episodes (train=9)\n")
    reading = tail(run)
    assert [s.value for s in reading.samples if s.metric == "trainer_step_seconds"] == [40]
    # The log tells what is in flight; the cap and the version are only in W&B.
    assert [s.value for s in reading.samples if s.metric == "in_flight_rollouts"] == [9]
    assert said(reading)["", "in_flight_capacity_rollouts"] == 640


@pytest.mark.parametrize(("code", "expected"), [(0, "finished"), (1, "crashed")])
def test_both_processes_end_the_run(tmp_path: Path, code: int, expected: str) -> None:
    log(tmp_path, "t", TRAINER, ended=0)
    log(tmp_path, "o", ORCHESTRATOR)
    first = tail(tmp_path)
    assert "lifecycle" not in first.facts
    log(tmp_path, "o", ORCHESTRATOR, ended=code)
    second = tail(tmp_path, first.cursor)
    assert (second.facts["lifecycle"], second.samples) == (expected, ())


def test_the_last_step_counts_also_when_the_configuration_was_told_before(tmp_path: Path) -> None:
    log(tmp_path, "t", TRAINER, configured(max_steps=5))
    first = tail(tmp_path)
    log(tmp_path, "t", [*TRAINER, {"step": 4, "time/step": 40.0, "time/wait_for_batch": 1.0}], configured(max_steps=5))
    assert tail(tmp_path, first.cursor).facts["lifecycle"] == "finished"


def test_a_file_of_another_version_costs_itself_alone(run: Path) -> None:
    (run / "wandb" / "run-x").mkdir()
    (run / "wandb" / "run-x" / "run-x.wandb").write_bytes(b"another format altogether")
    reading = tail(run)
    assert said(reading)["trainer", "trainer_step_seconds"] == 40
    assert (reading.dropped, reading.why_dropped) == (1, "run-x.wandb is not a wandb file of a supported version")
    assert tail(run, reading.cursor).dropped == 0


def test_other_peoples_wandb_is_not_ours(tmp_path: Path) -> None:
    log(tmp_path, "t", [{"train/loss": 1.0, "step": 1}])
    assert prime_rl.matches_path(tmp_path) is None
