"""prime-rl runs: the recorded files, two writers in one file, agent levels, the log's clothings and dates."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest

from collectors.model import Limits, Reading, ScrapeError
from collectors.trainers.prime_rl import collector as prime_rl
from tests.collectors._reading import TESTDATA, by_step, steps_json

RUN = TESTDATA / "prime_rl" / "driven"
T0 = 1_795_248_000.0  # 2026-11-21 08:00:00 UTC

TRAINER_ROWS = [
    {"perf/throughput": 40_000.0, "perf/mfu": 31.2},
    {"optim/lr": 1e-6, "optim/grad_norm": 0.3},
    {"loss/mean": -0.01, "entropy/all/mean": 0.6, "mismatch_kl/all/mean": 0.002},
    {"time/step": 40.0, "time/wait_for_batch": 24.0, "time/forward_backward": 13.0, "time/broadcast_weights": 1.5,
     "time/save_ckpt": 0.5, "time/load_data": 0.2},
    {"system/disk_free_gib": 800.0},
]  # fmt: skip
ORCHESTRATOR_ROW = {"progress/rollouts": 512, "time/step": 39.0, "time/save_ckpt": 0.1, "off_policy/mean": 1.5}


@pytest.fixture
def utc() -> Iterator[None]:
    """The log's times are local; the tests' numbers are for UTC."""
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    yield
    os.environ.pop("TZ")
    if before is not None:
        os.environ["TZ"] = before
    time.tzset()


def tail(path: Path, cursor: dict | None = None, **limits: int) -> Reading:
    return prime_rl.tail(path, json.loads(json.dumps(cursor or {})), Limits(**limits), 1_000.0)


def write(path: Path, *rows: dict, step: int = 0, ts: float = T0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for row in rows:
            file.write(json.dumps({"step": step, "time": ts, **row}) + "\n")


def configure(run: Path, text: str = "{}", modified: float = T0) -> None:
    path = run / "configs" / "rl.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (modified, modified))


def log(run: Path, *lines: str, name: str = "logs/latest/orchestrator.log") -> Path:
    path = run / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write("".join(line + "\n" for line in lines))
    return path


def gauge(reading: Reading, metric: str) -> list[tuple[float | None, float]]:
    return [(s.ts, s.value) for s in reading.samples if s.metric == metric]


PIPELINE = (
    "Train batch 57/128 (44.5%) (+12 buffered) | math 57/128 (44.5%); 512 inflight episodes (train=480, eval=32 | m=1)"
)


def test_the_recorded_run_as_expected() -> None:
    expected = json.loads((RUN / "expected.json").read_text())
    assert json.loads(json.dumps(steps_json(tail(RUN), (0, 7, 20, 39)))) == expected


def test_the_recorded_run_against_its_truth() -> None:
    """truth.jsonl names what limited each step; wait share and the dispatch gate must say the same."""
    truth = {row["step"]: row["bound"] for row in map(json.loads, (RUN / "truth.jsonl").read_text().splitlines())}
    reading = tail(RUN)
    step, wait, compute = (by_step(reading.samples, f"trainer_{part}_seconds") for part in ("step", "wait", "compute"))
    gate = by_step(reading.samples, "dispatch_gate_wait_seconds", axis="orchestrator")
    assert set(step) == set(truth) == set(range(40))
    share = {bound: fmean(wait[s] / step[s] for s in truth if truth[s] == bound) for bound in set(truth.values())}
    held = {bound: fmean(gate[s] for s in truth if truth[s] == bound) for bound in set(truth.values())}
    assert share["gen"] > 0.5 and share["env"] > 0.5 and share["train"] < 0.1
    assert held["train"] > 5 and held["gen"] < 1
    assert step[0] == 38.75198109057722 and compute[0] == 12.941715404680664
    assert by_step(reading.samples, "trainer_mfu_ratio", (("basis", "busy"),))[0] == pytest.approx(0.312)


def test_a_non_finite_value_is_absent_not_zero() -> None:
    """The monitor drops NaN keys: step 7 has no mismatch KL (console.log says so)."""
    found = by_step(tail(RUN).samples, "mismatch_kl_mean")
    assert 7 not in found and len(found) == 39


def test_two_writers_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, *TRAINER_ROWS, step=4)
    write(path, ORCHESTRATOR_ROW, step=5)
    reading = tail(tmp_path)
    assert by_step(reading.samples, "trainer_step_seconds") == {4: 40.0}
    assert by_step(reading.samples, "orchestrator_step_seconds", axis="orchestrator") == {5: 39.0}
    assert by_step(reading.samples, "trainer_samples", axis="orchestrator") == {5: 512}
    assert by_step(reading.samples, "trainer_checkpoint_seconds") == {4: 0.5}  # not the orchestrator's 0.1


def test_five_rows_are_one_step(tmp_path: Path) -> None:
    write(tmp_path / "metrics.jsonl", *TRAINER_ROWS, step=4)
    reading = tail(tmp_path)
    assert {(s.step, s.ts) for s in reading.samples} == {(4, T0)}
    assert by_step(reading.samples, "trainer_other_seconds") == {4: 1.0}
    assert by_step(reading.samples, "gradient_norm") == {4: 0.3}
    assert {(event.kind, event.version) for event in reading.events} == {("weights_published", 4), ("checkpoint", None)}


def test_the_rest_is_never_negative(tmp_path: Path) -> None:
    write(tmp_path / "metrics.jsonl", {"time/step": 1.0, "time/wait_for_batch": 1.5, "time/forward_backward": 0.1})
    assert by_step(tail(tmp_path).samples, "trainer_other_seconds") == {0: 0.0}


def test_in_parts_it_is_the_same() -> None:
    whole, cursor, samples = tail(RUN), {}, []
    while True:
        reading = tail(RUN, cursor, tail_rows=14)  # 7 rows a file: steps of five rows are torn
        samples += reading.samples
        cursor = reading.cursor
        if not reading.more:
            break

    def numbers(found: list) -> list:
        return sorted((s.axis, s.step, s.metric, s.value) for s in found)

    assert numbers(samples) == numbers(whole.samples)
    assert tail(RUN, cursor).samples == ()


def test_steps_of_an_axis_come_in_order() -> None:
    for axis in ("trainer", "orchestrator"):
        steps = [s.step for s in tail(RUN).samples if s.axis == axis]
        assert steps == sorted(steps)


def test_a_resumed_run_writes_a_step_twice(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    for step, ts in ((1, T0), (2, T0 + 40), (1, T0 + 500)):
        write(path, {"time/step": float(ts - T0), "time/forward_backward": 1.0}, step=step, ts=ts)
    reading = tail(tmp_path)
    assert [(s.step, s.value) for s in reading.samples if s.metric == "trainer_step_seconds"] == [
        (1, 0),
        (2, 40),
        (1, 500),
    ]


def test_eval_rows_do_not_move_the_step(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, ORCHESTRATOR_ROW, step=9)
    write(path, {"eval/math/effective/avg@4": 0.5, "progress/ckpt_step": 3}, step=3)
    reading = tail(tmp_path)
    assert {s.step for s in reading.samples} == {9}
    assert [(event.kind, event.ts) for event in reading.events] == [("eval", T0)]
    assert reading.unmapped == {}


@pytest.mark.parametrize("agent", ["", "solver/"])
def test_aggregates_with_and_without_the_agent_level(tmp_path: Path, agent: str) -> None:
    row = {
        f"train/agg/all/{agent}solved_none": 0.25,
        f"train/agg/all/{agent}solved_all": 0.125,
        f"train/agg/all/{agent}solved_some": 0.625,
        f"train/agg/all/{agent}reward/mean": 0.4,
        f"train/agg/effective/{agent}reward/mean": 0.5,
        f"train/agg/effective/{agent}num_output_tokens/p90": 900.0,
        f"train/agg/effective/{agent}is_truncated/mean": 0.04,
        f"train/agg/all/{agent}error/SandboxError": 3.0,
        f"train/agg/all/{agent}timing/agent/model/mean": 12.5,
        "train/math/all/reward/mean": 0.9,
        f"train/agg/effective/{agent}num_answer_tokens/mean": 5.0,
    }
    write(tmp_path / "orchestrator" / "metrics.jsonl", row)
    reading = tail(tmp_path)
    found = {(s.metric, s.labels): s.value for s in reading.samples}
    assert found == {
        ("groups_none_solved_ratio", ()): 0.25,
        ("groups_all_solved_ratio", ()): 0.125,
        ("groups_mixed_ratio", ()): 0.625,
        ("reward_mean", ()): 0.5,  # what was trained on, where both are given
        ("response_tokens_p90", ()): 900.0,
        ("truncation_ratio", ()): 0.04,
        ("rollout_errors", (("type", "SandboxError"),)): 3.0,
        ("rollout_model_seconds_mean", ()): 12.5,
    }
    assert reading.unmapped == {f"train/agg/effective/{agent}num_answer_tokens/mean": 1}  # a renamed key is seen


def test_groups_come_from_all_rollouts_only(tmp_path: Path) -> None:
    """`effective` groups are those the filter left: of these none is unsolved."""
    write(tmp_path / "orchestrator" / "metrics.jsonl", {"train/agg/effective/a/solved_none": 0.0, "off_policy/mean": 1})
    assert not any("groups" in s.metric for s in tail(tmp_path).samples)


def test_the_origin_is_the_key_that_was_read(tmp_path: Path) -> None:
    """`effective` is wanted; where only `all` is written, or an agent's own, that is what is named."""
    write(
        tmp_path / "metrics.jsonl",
        {"train/agg/all/reward/mean": 0.5, "train/agg/all/num_turns/mean": 2.0, "progress/rollouts": 64},
    )
    write(
        tmp_path / "metrics.jsonl", {"train/agg/effective/num_turns/mean": 3.0, "train/agg/all/math/solved_none": 0.25}
    )
    origins = tail(tmp_path).origins
    assert origins["reward_mean"] == "train/agg/all/reward/mean"
    assert origins["turns_mean"] == "train/agg/effective/num_turns/mean"
    assert origins["groups_none_solved_ratio"] == "train/agg/all/math/solved_none"


def test_several_agents_are_told_apart(tmp_path: Path) -> None:
    row = {"train/agg/all/solver/solved_none": 0.2, "train/agg/all/judge/solved_none": 0.4}
    write(tmp_path / "orchestrator" / "metrics.jsonl", row)
    found = {s.labels: s.value for s in tail(tmp_path).samples}
    assert found == {(("agent", "solver"),): 0.2, (("agent", "judge"),): 0.4}


@pytest.mark.parametrize(
    "prefix",
    [
        "08:01:10 INFO ",
        "\x1b[32m08:01:10\x1b[0m \x1b[1mINFO\x1b[0m ",
        "2026-11-21 08:01:10.250 | INFO     | a.b:run:1 - ",
    ],
)
def test_queue_and_in_flight_from_the_log(tmp_path: Path, utc: None, prefix: str) -> None:
    configure(tmp_path)
    log(tmp_path, prefix + "something else", prefix + PIPELINE)
    reading = tail(tmp_path)
    ts = T0 + 70 + (0.25 if "2026" in prefix else 0)
    assert gauge(reading, "queue_samples") == [(ts, 69)]
    flying = {s.labels: s.value for s in reading.samples if s.metric == "in_flight_rollouts"}
    assert flying == {(("state", "generating"),): 480, (("state", "eval"),): 32}


@pytest.mark.parametrize("stamp", [T0 + 70, "2026-11-21T08:01:10+00:00", "2026-11-21T08:01:10"])
def test_json_logging(tmp_path: Path, utc: None, stamp: object) -> None:
    configure(tmp_path)
    log(tmp_path, json.dumps({"timestamp": stamp, "level": "INFO", "message": PIPELINE}), "{broken")
    assert gauge(tail(tmp_path), "queue_samples") == [(T0 + 70, 69)]


@pytest.mark.parametrize(
    ("line", "queue", "flying"),
    [
        ("Train batch 0/128 (0.0%) | math 0/128; 96 inflight episodes", 0, 96),
        ("Train batch 128/128 (100.0%) (+512 buffered) | 5 inflight rollouts (train=5)", 640, 5),
    ],
)
def test_shorter_pipeline_lines(tmp_path: Path, utc: None, line: str, queue: float, flying: float) -> None:
    configure(tmp_path)
    log(tmp_path, f"08:00:05 INFO {line}", name="logs/orchestrator.log")
    reading = tail(tmp_path)
    assert gauge(reading, "queue_samples") == [(T0 + 5, queue)]
    assert gauge(reading, "in_flight_rollouts") == [(T0 + 5, flying)]


def test_a_batch_counted_in_tokens_is_no_queue_of_samples(tmp_path: Path, utc: None) -> None:
    configure(tmp_path, '{"orchestrator": {"token_batch_size": 1000000}}')
    log(tmp_path, f"08:00:05 INFO {PIPELINE}")
    reading = tail(tmp_path)
    assert gauge(reading, "queue_samples") == []
    assert len(gauge(reading, "in_flight_rollouts")) == 2


def test_midnight_moves_the_date_on(tmp_path: Path, utc: None) -> None:
    """08:00 the run began; the log goes on past midnight twice, read in two calls."""
    configure(tmp_path)
    log(tmp_path, *(f"{clock} INFO {PIPELINE}" for clock in ("08:00:10", "16:00:00", "23:59:50", "00:00:10")))
    first = tail(tmp_path)
    log(tmp_path, *(f"{clock} INFO {PIPELINE}" for clock in ("09:00:00", "20:00:00", "00:00:05")))
    second = tail(tmp_path, first.cursor)
    day = 16 * 3600 + T0  # the next midnight
    assert [ts for ts, _ in gauge(first, "queue_samples")] == [T0 + 10, T0 + 8 * 3600, day - 10, day + 10]
    assert [ts for ts, _ in gauge(second, "queue_samples")] == [day + 9 * 3600, day + 20 * 3600, day + 86400 + 5]


def test_a_line_written_just_before_the_configs(tmp_path: Path, utc: None) -> None:
    configure(tmp_path, modified=T0 + 16 * 3600 + 2)  # 00:00:02
    log(tmp_path, f"23:59:59 INFO {PIPELINE}")
    assert [ts for ts, _ in gauge(tail(tmp_path), "queue_samples")] == [T0 + 16 * 3600 - 1]


def test_without_configs_the_date_is_reckoned_from_the_logs_age(tmp_path: Path, utc: None) -> None:
    path = log(tmp_path, *(f"{clock} INFO {PIPELINE}" for clock in ("20:00:00", "23:00:00", "01:00:00", "07:59:50")))
    os.utime(path, (T0, T0))
    expected = [T0 - 12 * 3600, T0 - 9 * 3600, T0 - 7 * 3600, T0 - 10]
    assert [ts for ts, _ in gauge(tail(tmp_path), "queue_samples")] == expected


@pytest.mark.parametrize(
    ("configured", "clock", "expected"),
    [
        (T0, "08:00:00", T0 + 86400),  # configs untouched: on from the log before, which ended 23:00
        (T0 + 3 * 86400, "07:59:00", T0 + 3 * 86400 - 60),  # written anew three days later
    ],
)
def test_the_log_of_a_resumed_run(tmp_path: Path, utc: None, configured: float, clock: str, expected: float) -> None:
    configure(tmp_path)
    old = log(tmp_path, f"08:00:10 INFO {PIPELINE}", f"23:00:00 INFO {PIPELINE}")
    first = tail(tmp_path)
    configure(tmp_path, modified=configured)
    os.replace(old, tmp_path / "old.log")
    log(tmp_path, f"{clock} INFO {PIPELINE}")
    assert [ts for ts, _ in gauge(tail(tmp_path, first.cursor), "queue_samples")] == [expected]


CONFIG = {
    "max_steps": 32,
    "deployment": {"type": "single_node", "num_train_gpus": 2, "num_infer_gpus": 6, "gpus_per_node": 8},
    "trainer": {"model": {"name": "Qwen/Qwen3-8B"}},
    "orchestrator": {"batch_size": 512, "group_size": 8, "max_off_policy_steps": 8},
}


def test_facts_from_the_configs(tmp_path: Path) -> None:
    configure(tmp_path, json.dumps(CONFIG))
    reading = tail(tmp_path)
    assert reading.facts == {
        "framework": "prime_rl", "mode": "async", "group_size": 8, "batch_samples": 512, "max_staleness_versions": 8,
        "max_steps": 32, "trainer_gpus": 2, "generator_gpus": 6, "model": "Qwen/Qwen3-8B",
    }  # fmt: skip
    assert "group_size" not in tail(tmp_path, reading.cursor).facts  # told once


def test_facts_of_separate_files_and_several_nodes(tmp_path: Path) -> None:
    configure(tmp_path, json.dumps({"deployment": {"gpus_per_node": 8, "num_train_nodes": 2, "num_infer_nodes": 3,
                                                   "num_infer_replicas": 2}}))  # fmt: skip
    (tmp_path / "configs" / "orchestrator.json").write_text('{"group_size": 16, "batch_size": null}')
    (tmp_path / "configs" / "trainer.json").write_text("{half written")
    facts = tail(tmp_path).facts
    assert (facts["trainer_gpus"], facts["generator_gpus"], facts["group_size"]) == (16, 48, 16)
    assert "batch_samples" not in facts


@pytest.mark.parametrize(("step", "over"), [(30, False), (31, True)])
def test_the_last_step_is_the_end(tmp_path: Path, step: int, over: bool) -> None:
    configure(tmp_path, json.dumps(CONFIG))
    write(tmp_path / "metrics.jsonl", *TRAINER_ROWS, step=step)
    assert ("lifecycle" in tail(tmp_path).facts) == over


def test_the_orchestrators_step_ends_nothing(tmp_path: Path) -> None:
    configure(tmp_path, json.dumps(CONFIG))
    write(tmp_path / "metrics.jsonl", ORCHESTRATOR_ROW, step=32)
    assert "lifecycle" not in tail(tmp_path).facts


def test_the_trainers_log_says_the_end_and_a_resume_undoes_it(tmp_path: Path) -> None:
    write(tmp_path / "metrics.jsonl", *TRAINER_ROWS, step=3)
    log(tmp_path, "09:00:00 \x1b[32mSUCCESS\x1b[0m RL trainer finished!", name="logs/latest/trainer.log")
    first = tail(tmp_path)
    assert first.facts["lifecycle"] == "finished"
    (tmp_path / "logs/latest/trainer.log").write_text("09:10:00 INFO Starting\n")
    write(tmp_path / "metrics.jsonl", *TRAINER_ROWS, step=4, ts=T0 + 600)
    assert tail(tmp_path, first.cursor).facts["lifecycle"] == "running"


def test_broken_rows_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, *TRAINER_ROWS)
    with path.open("a") as file:
        file.write('{"torn": \n{"no_step": 1}\n{"step": "x", "perf/mfu": 1}\n{"step": 5, "time": 1, "mystery": 2}\n')
    reading = tail(tmp_path)
    assert reading.dropped == 4
    assert "metrics.jsonl" in reading.why_dropped
    assert {s.step for s in reading.samples} == {0}


def test_unmapped_keys_are_counted_and_shown(tmp_path: Path) -> None:
    write(tmp_path / "trainer" / "metrics.jsonl", {"perf/new_thing": 1.0, "perf/mfu": 10.0})
    assert tail(tmp_path).unmapped == {"perf/new_thing": 1}


def test_no_run_says_what_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(ScrapeError, match=r"metrics\.jsonl.*configs/rl\.json"):
        tail(tmp_path)
    with pytest.raises(ScrapeError, match="absent"):
        tail(tmp_path / "absent")


def test_other_peoples_metrics_jsonl_is_not_ours(tmp_path: Path) -> None:
    write(tmp_path / "metrics.jsonl", {"loss": 1.0}, {"progress/batch": 1, "env/all/reward/total": 0.5})
    assert prime_rl.matches_path(tmp_path) is None
    write(tmp_path / "metrics.jsonl", TRAINER_ROWS[3])
    assert prime_rl.matches_path(tmp_path) == "metrics.jsonl with prime-rl's keys"
