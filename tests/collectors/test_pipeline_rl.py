"""PipelineRL: streams and the trainer's log together; lags in samples, totals of waiting, rows without a time."""

import json
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.model import Limits, ScrapeError
from collectors.trainers import pipeline_rl
from tests.collectors._frameworks import Values, collected, in_parts, tail, values
from tests.collectors._reading import TESTDATA, value
from tests.support_writers import run_writer

RUN = TESTDATA / "pipeline_rl" / "run"
STATS = Path("streams/stats/0/0/0.jsonl")
PREPROCESSOR = Path("streams/preprocessor_stats/0/0/0.jsonl")
WEIGHTS = Path("streams/weight_update_request/0/0/0.jsonl")
LOG = Path("finetune/log/info_0.log")
COLLECTOR = pipeline_rl.COLLECTOR
WRITTEN = 1_795_250_361.0


def dated(run: Path) -> Path:
    """The run as it was left: its files last changed with their last rows."""
    for file in (STATS, PREPROCESSOR, WEIGHTS, LOG):
        if (run / file).exists():
            os.utime(run / file, (WRITTEN, WRITTEN))
    return run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    shutil.copytree(RUN, tmp_path / "run")
    return dated(tmp_path / "run")


def test_the_trainers_step_in_numbers(run: Path) -> None:
    reading = tail(COLLECTOR, run)
    assert values(reading, 3) == {
        "trainer_step_seconds": 28.0,
        "trainer_wait_seconds": 10.5,  # 31.5 - 21.0: the log has the total
        "trainer_compute_seconds": 16.0,  # 16 passes of 1 s
        "trainer_other_seconds": 1.5,
        "trainer_samples": 256.0,
        "trained_tokens": 131072.0,
        "processed_tokens": 204800.0,
        'trainer_tokens_per_second{basis="busy"}': 25600.0,
        'trainer_tokens_per_second{basis="wall"}': pytest.approx(204800 / 28),
        "staleness_versions_max": 2.0,  # 512 samples behind, 256 samples a version
        "stale_dropped_rollouts": 0.0,
        "loss_mean": 0.125,
        "entropy_mean": 0.5,
        "mismatch_kl_mean": 0.002,
        "mismatch_logprob_difference_mean": 0.01,
        "importance_ratio_mean": 1.0,
        "effective_sample_ratio": 0.875,
        "learning_rate": 1e-6,
        "gradient_norm": 0.25,
        "gradient_nonfinite": 0.0,
    }
    # The first step's total is its own.
    assert values(reading, 1)["trainer_wait_seconds"] == 10.5


def test_what_the_actor_says_of_a_version(run: Path) -> None:
    reading = tail(COLLECTOR, run)
    assert values(reading, 3, "orchestrator") == {
        "reward_mean": 0.5,
        "reward_std": 0.5,
        "solve_ratio": 0.5,
        "groups_all_solved_ratio": 0.25,
        "groups_none_solved_ratio": 0.125,
        "groups_mixed_ratio": 0.625,
        "truncation_ratio": 0.125,
        "rollout_error_ratio": 0.03125,
        "response_tokens_mean": 512.0,
        "response_tokens_max": 2048.0,
        "response_tokens_min": 32.0,
        "prompt_tokens_mean": 100.0,
        "turns_mean": 1.0,
        "turns_max": 1.0,
        "rollout_seconds_mean": 12.0,
        "rollout_seconds_max": 40.0,
        "rollout_tokens_per_second": 5120.0,
    }
    # Without any spread PipelineRL leaves the variance out: that is a deviation of zero, not an unknown one.
    assert values(reading, 2, "orchestrator")["reward_std"] == 0


def test_facts_queue_and_times(run: Path) -> None:
    reading = tail(COLLECTOR, run)
    assert reading.facts == {
        "framework": "pipeline_rl",
        "mode": "async",
        "group_size": 8.0,
        "batch_samples": 256.0,
        "max_steps": 12.0,
        "max_response_tokens": 2048.0,
        "model": "Qwen/Qwen2.5-7B",
        "lifecycle": "finished",
        "lifecycle_why": "step 12 is the last of 12",
    }
    assert value(reading, "queue_samples") == 44  # the newest row's
    assert reading.unmapped == {}
    times = {(s.axis, s.step): s.ts for s in reading.samples}
    assert times["orchestrator", 12] == WRITTEN
    assert times["orchestrator", 1] == WRITTEN - 330
    assert times["trainer", 2] == 1_795_250_060.5


def test_an_actors_row_belongs_to_the_step_its_version_followed(run: Path) -> None:
    """In samples it would be far ahead of the trainer, and nothing of it counted as consumed."""
    steps = {s.step for s in tail(COLLECTOR, run).samples if s.axis == "orchestrator"}
    assert steps == set(range(1, 13))
    (run / "conf" / "exp_config.yaml").unlink()
    assert {s.step for s in tail(COLLECTOR, run).samples if s.axis == "orchestrator"} == steps


def test_without_published_versions_the_staleness_is_unknown(run: Path) -> None:
    (run / WEIGHTS).unlink()
    assert "staleness_versions_max" not in values(tail(COLLECTOR, run), 5)


def test_the_renamed_lags() -> None:
    context = pipeline_rl.Context({}, {"samples_per_version": 128}, "streams")
    row = {"throughput/sec_per_step": 1.0, "stats/lag_min": 0.0, "stats/lag_mean": 192.0, "stats/lag_max": 384.0}
    out = dict(
        (metric, number) for metric, _, number in pipeline_rl.derive(pipeline_rl.Piece("trainer", 1, 0.0, row), context)
    )
    assert (out["staleness_versions_mean"], out["staleness_versions_max"]) == (1.5, 3.0)


def test_rollouts_of_several_turns_have_the_tokens_of_all_of_them() -> None:
    row = {"num_turns_mean": 4.0, "num_turns_var": 1.0, "num_turns_max": 9.0, "output_tokens_mean": 100.0}
    piece = pipeline_rl.Piece("orchestrator", 1, 0.0, {**row, "output_tokens_max": 400.0})
    out = {metric: number for metric, _, number in pipeline_rl.derive(piece, pipeline_rl.Context({}, {}, ""))}
    assert out == {"response_tokens_mean": 400.0, "turns_max": 9.0}  # the longest rollout is not reported


def test_a_step_that_was_not_logged_leaves_its_waiting_unknown(run: Path) -> None:
    lines = (run / LOG).read_text().splitlines(keepends=True)
    (run / LOG).write_text("".join(line for line in lines if "Completed steps 5:" not in line))
    reading = tail(COLLECTOR, run)
    assert "trainer_wait_seconds" not in values(reading, 6)
    assert values(reading, 7)["trainer_wait_seconds"] == 10.5


def grown(source: Path, target: Path, parts: int) -> Values:
    """The run as it is read while all its files grow."""
    cursor, readings = {}, []
    for part in range(1, parts + 1):
        for file in (WEIGHTS, STATS, PREPROCESSOR, LOG):
            data = (source / file).read_bytes()
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            with (target / file).open("ab") as out:
                out.write(data[len(data) * (part - 1) // parts : len(data) * part // parts])
        try:
            readings.append(tail(COLLECTOR, target, cursor))
        except ScrapeError as error:
            assert error.kind == "not_a_run" and not cursor
            continue
        cursor = readings[-1].cursor
    return collected(readings)


def test_in_parts_and_live_it_is_the_same(run: Path, tmp_path: Path) -> None:
    whole = collected([tail(COLLECTOR, run)])
    assert collected(in_parts(COLLECTOR, run, 9)) == whole
    # A second version is published after the first step: what one stands for is not known before.
    unknown = whole.pop(("trainer", 1, "staleness_versions_max"))
    assert unknown == 2
    assert grown(run, tmp_path / "live", 41) == whole


def test_a_resumed_trainer_steps_back(run: Path) -> None:
    first = tail(COLLECTOR, run)
    line = next(line for line in (run / LOG).read_text().splitlines() if "Completed steps 9:" in line)
    with (run / LOG).open("a") as file:
        file.write(line.replace("'throughput/sec_per_step': '28.000'", "'throughput/sec_per_step': '35.000'") + "\n")
    second = tail(COLLECTOR, run, first.cursor)
    assert values(second, 9)["trainer_step_seconds"] == 35
    assert {s.step for s in second.samples if s.axis == "trainer"} == {9}


def test_an_actor_that_began_anew_is_dated_before_its_next_life(tmp_path: Path) -> None:
    file = tmp_path / STATS
    file.parent.mkdir(parents=True)
    rows = [(256, 100.0), (512, 130.0), (512, 20.0), (768, 50.0)]
    lines = [{"never_success": 0.0, "trainer_model_version": v, "time_since_start": t} for v, t in rows]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    os.utime(file, (10_000, 10_000))
    logs = pipeline_rl.sink().read(file, {}, Limits())
    assert [row.ts for row in logs.rows] == [9_920, 9_950, 9_970, 10_000]


WRITER = """
import json, sys, wandb
config = {"finetune.attempts": 8, "model_path": "Qwen/Qwen2.5-7B"}
config |= {"finetune.gradient_accumulation_passes": 256, "finetune.train_batch_size": 1}
wandb.init(project="p", config=config, mode="offline", dir=sys.argv[1])
for step, row in json.loads(sys.argv[2]):
    wandb.log(row, step=step) if step else wandb.log(row)
wandb.finish()
"""


def test_the_trainers_wandb_run(tmp_path: Path) -> None:
    row = {"throughput/sec_per_step": 28.0, "stats/lag": 512.0, "stats/grad_norm": 0.25}
    rows = [(step, {**row, "stats/time_waiting_for_data": 10.0 * step}) for step in (1, 2, 3)]
    run_writer(WRITER, tmp_path, json.dumps(rows))
    reading = tail(COLLECTOR, tmp_path)
    assert values(reading, 3) == {
        "trainer_step_seconds": 28.0,
        "trainer_wait_seconds": 10.0,
        "gradient_norm": 0.25,
        "gradient_nonfinite": 0.0,
    }
    assert (reading.facts["group_size"], reading.facts["model"]) == (8, "Qwen/Qwen2.5-7B")


def test_the_actors_wandb_run(tmp_path: Path) -> None:
    rows = [(0, {"actor/never_success": 0.125, "actor/trainer_model_version": 256 * n}) for n in (1, 2)]
    run_writer(WRITER, tmp_path, json.dumps(rows))
    reading = tail(COLLECTOR, tmp_path)
    assert collected([reading]) == {("orchestrator", n, "groups_none_solved_ratio"): 0.125 for n in (1, 2)}


def test_the_end_as_the_trainer_says_it(run: Path) -> None:
    with (run / WEIGHTS).open("a") as file:
        file.write('{"kind":"training_done","timestamp":1.0}\n')
    assert tail(COLLECTOR, run).facts["lifecycle_why"] == "the trainer wrote training_done"


@pytest.mark.parametrize("path", [STATS, LOG])
def test_one_file_of_the_run_leads_to_the_others(run: Path, path: Path) -> None:
    assert collected([tail(COLLECTOR, run / path)]) == collected([tail(COLLECTOR, run)])


@given(st.text())
def test_a_line_that_only_begins_like_a_step_is_harmless(text: str) -> None:
    assert isinstance(pipeline_rl._numbers("{" + text + "}"), dict)


def test_a_copy_has_the_times_of_its_log(run: Path) -> None:
    """The streams have no times of their own; a copy, made two days later, gives all files one time."""
    original = tail(COLLECTOR, run, {})
    for file in (STATS, PREPROCESSOR, WEIGHTS, LOG):
        os.utime(run / file, (WRITTEN + 172_800, WRITTEN + 172_800))
    copy = tail(COLLECTOR, run, {})
    newest = max(sample.ts or 0.0 for sample in original.samples)
    assert max(sample.ts or 0.0 for sample in copy.samples) == pytest.approx(newest, abs=1.0)
