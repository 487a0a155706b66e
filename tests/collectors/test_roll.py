"""ROLL: an asynchronous RLVR run of two domains in TensorBoard, agentic ones elsewhere, and resumed runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.detect import detect_path
from collectors.formats import console
from collectors.trainers import roll
from tests.collectors._frameworks import collected, counts, in_parts, live, tail, values
from tests.collectors._logged import live_tensorboard, write
from tests.collectors._reading import TESTDATA, by_step
from tests.support_writers import run_writer

RUN = TESTDATA / "roll" / "rlvr_async"
EVENTS = next(RUN.iterdir())
COLLECTOR = roll.COLLECTOR

BEGAN = 1_795_250_000.0
AGENTIC = {
    "time/step_model_update": 5.0,
    "time/step_rollout": 40.0,
    "time/step_ref_log_probs_values_reward": 4.0,
    "time/step_old_log_probs_values": 3.0,
    "time/step_adv": 1.0,
    "time/step_train": 12.0,
    "time/step_total": 70.0,
    "actor/max_len_mask_ratio": 1.0,
    "actor/samples_used": 128.0,
    "actor/samples_total": 128.0,
    "scheduler/group_filter_count": 3,
    "env/sokoban/num_actions": 6.5,
    "env/sokoban/traj_time_total": 22.0,
    "critic/score/mean": 0.5,
    "critic/entropy/mean": 0.0,
    "tokens/response_length/mean": 256.0,
}
CONFIG: dict[str, Any] = {
    "exp_name": "sokoban",
    "rollout_batch_size": 128,
    "async_generation_ratio": 0,
    "max_steps": 200,
    "pretrain": "/models/Qwen2.5-7B-Instruct",
    "train_env_manager": {"group_size": 8},
}


def lines(steps: dict[int, dict[str, float]]) -> str:
    """As StdoutTracker prints them, one a minute."""
    head = "[2026-11-21 10:{:02d}:00] [tracking.py (195)] [INFO] [DRIVER 0 / 1]metrics_tag: {}\n"
    return "".join(head.format(step, json.dumps({"step": step, "metrics": row})) for step, row in steps.items())


def test_an_asynchronous_step_in_numbers() -> None:
    reading = tail(COLLECTOR, RUN)
    assert values(reading, 4) == {
        "trainer_step_seconds": 64.0,  # said by the row of step 5
        "trainer_wait_seconds": 20.0,
        "trainer_compute_seconds": 29.0,
        "trainer_logprob_seconds": 11.0,
        "trainer_weight_sync_seconds": 4.0,
        "trainer_other_seconds": 11.0,
        "trainer_samples": 512.0,
        "trained_tokens": 163840.0,
        "trainable_ratio": 1.0,
        # Two domains, of 48 and 16 prompts.
        "staleness_versions_mean": 0.75,
        "rollout_model_seconds_mean": 10.0,
        "rollout_scoring_seconds_mean": 0.75,
        "reward_mean": 0.3125,
        "solve_ratio": 0.3125,
        "groups_all_solved_ratio": 0.125,
        "groups_none_solved_ratio": 0.375,
        "response_tokens_mean": 320.0,
        "response_tokens_max": 1024.0,
        "response_tokens_min": 8.0,
        "prompt_tokens_mean": 96.0,
        "truncation_ratio": 0.125,  # 64 of 512 as long as may be
        "entropy_mean": 0.375,
        "importance_ratio_mean": 1.0,
        "reference_kl_mean": 0.0625,
        "learning_rate": 9.5367431640625e-07,
        "gradient_norm": 0.5,
        "gradient_nonfinite": 0.0,
    }
    assert by_step(reading.samples, "trainer_step_seconds") == {step: 60.0 + step for step in range(12)}
    assert reading.facts == {"framework": "roll", "mode": "async"}
    assert reading.unmapped == {}
    assert [name for name, _ in detect_path(RUN)] == ["roll"]


def test_in_parts_and_live_it_is_the_same(tmp_path: Path) -> None:
    whole = collected([tail(COLLECTOR, RUN)])
    assert collected(in_parts(COLLECTOR, RUN, 1)) == whole
    grown = live(COLLECTOR, EVENTS, tmp_path / EVENTS.name, 1301)
    assert collected(grown) == whole
    assert set(counts(grown, "trainer_step_seconds").values()) == {1}


def test_an_agentic_step_is_its_own(tmp_path: Path) -> None:
    calls = [(step, {**AGENTIC, "_timestamp": BEGAN + 70.0 * step}) for step in range(3)]
    reading = tail(COLLECTOR, write("wandb", tmp_path, calls, CONFIG))
    assert values(reading, 1) == {
        "trainer_step_seconds": 70.0,
        "generation_seconds": 40.0,
        "trainer_compute_seconds": 20.0,
        "trainer_logprob_seconds": 7.0,
        "trainer_weight_sync_seconds": 5.0,
        "trainer_other_seconds": 5.0,
        "trainer_samples": 128.0,
        "filtered_groups": 3.0,
        "turns_mean": 6.5,
        "rollout_seconds_mean": 22.0,
        "reward_mean": 0.5,
        "response_tokens_mean": 256.0,
    }
    facts = {key: reading.facts[key] for key in ("mode", "group_size", "batch_samples", "max_steps", "model")}
    assert facts == {
        "mode": "sync_colocated",
        "group_size": 8.0,
        "batch_samples": 128.0,
        "max_steps": 200.0,
        "model": "Qwen2.5-7B-Instruct",
    }


def test_lines_of_the_stdout_tracker(tmp_path: Path) -> None:
    log = tmp_path / "log_rank_DRIVER_0_1.log"
    log.write_text("[2026-11-21 09:59:00] [x.py (1)] [INFO] start\n" + lines({step: AGENTIC for step in range(3)}))
    reading = tail(COLLECTOR, log)
    assert values(reading, 2)["generation_seconds"] == 40.0
    assert {sample.step for sample in reading.samples} == {0, 1, 2}


# Phases of no time: what a test writes within a millisecond is no replay then.
QUICK = {key: 0.0 if key.startswith("time/") else value for key, value in AGENTIC.items()}

TRACKIO = """
import json, os, sys
os.environ["TRACKIO_DIR"] = sys.argv[1]
import trackio
run = trackio.init(project="p", name="t", config=json.loads(sys.argv[3]), auto_log_gpu=False)
for step in range(10, 13):
    run.log({**json.loads(sys.argv[2]), "step": step})
trackio.finish()
"""


def test_trackios_own_counter_is_not_the_step(tmp_path: Path) -> None:
    run_writer(TRACKIO, tmp_path, json.dumps(QUICK), json.dumps({**CONFIG, "async_generation_ratio": 2}))
    reading = tail(COLLECTOR, tmp_path, now=2e9)
    assert {sample.step for sample in reading.samples} == {10, 11, 12}
    assert "trainer_wait_seconds" in values(reading, 11)
    assert (reading.facts["mode"], reading.facts["max_staleness_versions"]) == ("async", 2.0)


def test_a_row_that_is_still_written_is_one_step(tmp_path: Path) -> None:
    """Two domains of one step, read in between: the mean is over both."""
    math = {
        "time/step_model_update": 0.0,
        "time/step_generate": 0.0,
        "math/scheduler/off_policy_ratio": 0.5,
        "math/scheduler/collect_query_count": 48,
    }
    code = {"code/scheduler/off_policy_ratio": 1.5, "code/scheduler/collect_query_count": 16, "time/step_train": 0.0}
    with live_tensorboard(tmp_path) as board:
        board.log(0, {**math, **code})
        board.log(1, math)
        first = tail(COLLECTOR, tmp_path, now=2e9)
        board.log(1, code)
        second = tail(COLLECTOR, tmp_path, first.cursor, now=2e9)
    assert values(first, 0)["staleness_versions_mean"] == 0.75
    assert collected([first, second])[("trainer", 1, "staleness_versions_mean")] == 0.75


def test_a_resumed_run_tells_its_history_again_and_nobody_listens(tmp_path: Path) -> None:
    """The tracker gets the whole history at once, then the steps after the checkpoint."""
    calls = [(step, {**AGENTIC, "_timestamp": BEGAN + 70.0 * step}) for step in range(6)]
    first = tail(COLLECTOR, write("wandb", tmp_path, calls, CONFIG))
    again = [(step, {**AGENTIC, "_timestamp": BEGAN + 1000.0 + step / 256}) for step in range(4)]
    again += [
        (step, {**AGENTIC, "time/step_train": 13.0, "_timestamp": BEGAN + 800.0 + 70.0 * step}) for step in (4, 5)
    ]
    second = tail(COLLECTOR, write("wandb", tmp_path, again, CONFIG), first.cursor)
    assert {sample.step for sample in first.samples} == {0, 1, 2, 3, 4, 5}
    assert {sample.step for sample in second.samples} == {4, 5}
    assert values(second, 5)["trainer_compute_seconds"] == 21.0


def test_the_first_step_of_a_resumed_run_has_no_total(tmp_path: Path) -> None:
    """RLVR starts with 0 for "the step before": that is none, not a step of no time."""
    row = {"time/step_model_update": 1.0, "time/step_generate": 20.0, "time/step_train": 18.0}
    steps = {7: {"time/step_total": 0.0, **row}, 8: {"time/step_total": 41.0, **row}}
    log = tmp_path / "console.log"
    log.write_text(lines(steps))
    assert by_step(tail(COLLECTOR, log).samples, "trainer_step_seconds") == {7: 41.0}


def test_several_environments_have_no_mean() -> None:
    found = roll._domains({"env/a/num_actions": 4.0, "env/b/num_actions": 6.0, "env/a/traj_time_total": 9.0})
    assert found == {roll.TRAJECTORY: 9.0}


def test_domains_without_a_weight_have_no_mean() -> None:
    found = roll._domains({"a/scheduler/off_policy_ratio": 1.0, "b/scheduler/off_policy_ratio": 0.0})
    assert found == {}


@pytest.mark.parametrize("masked", [256.0, 512.0])
def test_masked_samples_train_nothing(masked: float) -> None:
    found = roll._domains({"math/actor/samples_used": masked, "math/actor/samples_total": 512.0})
    assert found == {roll.KEPT: masked / 512.0}


HEADS = ("metrics_tag: ", 'metrics_tag: {"step": 1, "metrics": ', "x ", "{")


@given(st.sampled_from(HEADS), st.text(max_size=40))
def test_no_line_breaks_the_parser(head: str, text: str) -> None:
    memory: dict[str, object] = {}
    found = roll.parse_line(console.ConsoleLine(head + text), memory)
    assert found is None or isinstance(found, roll.Logged)
    assert memory == {}
