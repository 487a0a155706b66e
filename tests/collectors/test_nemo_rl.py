"""NeMo-RL: an asynchronous run in TensorBoard, a synchronous one in wandb, the SingleController in MLflow."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from collectors.detect import detect_path
from collectors.trainers import nemo_rl
from tests.collectors._frameworks import collected, in_parts, live, tail, values
from tests.collectors._logged import live_tensorboard, write
from tests.collectors._reading import TESTDATA

RUN = TESTDATA / "nemo_rl" / "async"
EVENTS = next(RUN.iterdir())
COLLECTOR = nemo_rl.COLLECTOR

CONFIG: dict[str, Any] = {
    "grpo": {
        "num_prompts_per_step": 32,
        "num_generations_per_prompt": 16,
        "max_num_steps": 500,
        "async_grpo": {"enabled": False, "max_trajectory_age_steps": 1},
    },
    "policy": {
        "model_name": "Qwen/Qwen2.5-1.5B",
        "generation": {"max_new_tokens": 2048, "colocated": {"enabled": True, "resources": {"gpus_per_node": None}}},
    },
    "cluster": {"num_nodes": 2, "gpus_per_node": 8},
}
TIMING = {
    "timing/train/total_step_time": 64.0,
    "timing/train/prepare_for_generation/total": 6.0,
    "timing/train/prepare_for_generation/transfer_and_update_weights": 5.0,
    "timing/train/generation": 30.0,
    "timing/train/policy_and_reference_logprobs": 8.0,
    "timing/train/policy_training": 16.0,
}
UPDATE = {
    "train/grad_norm": 0.5,
    "train/approx_entropy": 0.75,
    "train/gen_kl_error": 0.125,
    "train/num_valid_samples": 512,
    "train/global_valid_seqs": 512.0,
    "train/global_valid_toks": 65536.0,
}
ROLLOUTS = {
    "train/total_turns": 512,
    "train/avg_turns_per_sample": 1.0,
    "train/min_total_reward": 0.0,
    "train/max_total_reward": 1.0,
    "train/mean_gen_tokens_per_sample": 128.0,
}
RATE = {"performance/samples_per_sec": 8.0}
SOLVED = {
    "train/baseline_reward/pct_0": 25.0,
    "train/baseline_reward/pct_1": 12.5,
    "train/baseline_reward/pct_mixed": 62.5,
}


def test_an_asynchronous_step_in_numbers() -> None:
    reading = tail(COLLECTOR, RUN)
    assert values(reading, 4) == {
        "trainer_step_seconds": 100.0,
        "trainer_wait_seconds": 30.0,  # the 20 s of buffer starvation are among them
        "trainer_compute_seconds": 54.0,
        "trainer_logprob_seconds": 12.0,
        "trainer_weight_sync_seconds": 6.0,
        "trainer_checkpoint_seconds": 5.0,
        "trainer_other_seconds": 5.0,
        "batch_pack_seconds": 2.0,
        "trainer_samples": 512.0,
        "processed_tokens": 409600.0,
        "trained_tokens": 262144.0,
        'trainer_tokens_per_second{basis="wall"}': 4096.0,
        'trainer_tokens_per_second{basis="busy"}': 8192.0,
        'trainer_mfu_ratio{basis="busy"}': 0.375,
        "queue_groups": 8.0,
        "staleness_versions_mean": 0.75,
        "reward_mean": 0.5,
        "response_tokens_mean": 512.0,
        "response_tokens_max": 2048.0,
        "prompt_tokens_mean": 128.0,
        "truncation_ratio": 0.125,
        "turns_mean": 1.0,
        "turns_max": 1.0,
        # Two updates per step, whose means NeMo-RL adds up.
        "loss_mean": 0.25,
        "entropy_mean": 0.75,
        "mismatch_kl_mean": 0.00390625,
        "importance_ratio_mean": 1.0,
        "reference_kl_mean": 0.03125,
        "learning_rate": 9.5367431640625e-07,
        "gradient_norm": 0.25,
        "gradient_nonfinite": 0.0,
    }
    assert "trainer_checkpoint_seconds" not in values(reading, 5)
    assert reading.facts == {"framework": "nemo_rl", "mode": "async"}
    assert {sample.step for sample in reading.samples} == set(range(1, 13))
    assert reading.unmapped == {}
    assert [name for name, _ in detect_path(RUN)] == ["nemo_rl"]


def test_in_parts_and_live_it_is_the_same(tmp_path: Path) -> None:
    whole = collected([tail(COLLECTOR, RUN)])
    assert collected(in_parts(COLLECTOR, RUN, 1)) == whole
    assert collected(live(COLLECTOR, EVENTS, tmp_path / EVENTS.name, 1301)) == whole


def synchronous(step: int) -> list[tuple[int, dict[str, float]]]:
    """The calls of `grpo_train` for a step."""
    return [(step, ROLLOUTS), (step, {**UPDATE, **SOLVED}), (step, RATE), (step, TIMING)]


def test_a_synchronous_run_in_wandb(tmp_path: Path) -> None:
    calls = [call for step in (1, 2, 3) for call in synchronous(step)]
    reading = tail(COLLECTOR, write("wandb", tmp_path, calls, CONFIG))
    assert values(reading, 2) == {
        "trainer_step_seconds": 64.0,
        "generation_seconds": 30.0,
        "trainer_weight_sync_seconds": 6.0,
        "weight_sync_transfer_seconds": 5.0,
        "trainer_logprob_seconds": 8.0,
        "trainer_compute_seconds": 24.0,
        "trainer_other_seconds": 4.0,
        "trainer_samples": 512.0,
        "trained_tokens": 65536.0,
        "response_tokens_mean": 128.0,
        "turns_mean": 1.0,
        "groups_none_solved_ratio": 0.25,  # percent there
        "groups_all_solved_ratio": 0.125,
        "entropy_mean": 0.75,
        "mismatch_kl_mean": 0.125,
        "gradient_norm": 0.5,
        "gradient_nonfinite": 0.0,
    }
    assert {key: reading.facts[key] for key in reading.facts if not key.startswith("lifecycle")} == {
        "framework": "nemo_rl",
        "mode": "sync_colocated",
        "group_size": 16.0,
        "batch_samples": 512.0,
        "max_steps": 500.0,
        "max_response_tokens": 2048.0,
        "trainer_gpus": 16.0,
        "model": "Qwen2.5-1.5B",
        "run_name": "exp",
    }


CONTROLLER: dict[str, Any] = {
    **CONFIG,
    "grpo": {"num_prompts_per_step": 32, "num_generations_per_prompt": 16},
    "async_rl": {"max_inflight_prompts": 48, "sampler": {"name": "in_order", "max_lookahead_versions": 1}},
    "policy": {"generation": {"colocated": {"enabled": False, "resources": {"gpus_per_node": 8, "num_nodes": None}}}},
}
CLOSED = {
    "timing/train/total_step_time": 50.0,
    "timing/train/exposed_generation": 20.0,
    "timing/train/policy_and_reference_logprobs": 5.0,
    "timing/train/policy_training": 15.0,
    "timing/train/weight_sync": 4.0,
}
EVICTED = {
    **UPDATE,
    "train/evicted_stale_prompt_groups": 2.0,
    "train/aborted_stale_inflight_groups": 1.0,
    "train/dropped_prompt_groups": 0.0,
}


def clock(inflight: float, errors: float, again: float) -> dict[str, float]:
    """What the watchdog reports, whatever step is on."""
    return {
        "rollout/inflight": inflight,
        "rollout/idle_s": 3.0,
        "rollout/train_steps": 1.0,
        "rollout/redispatch_total": again,
        "rollout/redispatch_total/TimeoutError": again,
        "rollout/data_failures_total": errors,
        "rollout/data_failures_total/ValueError": errors,
        "gen_fleet/serving_shards": 2.0,
    }


def test_the_single_controllers_clock_makes_no_steps(tmp_path: Path) -> None:
    """Reports by the clock carry the number of steps done: they are gauges, and totals since the start."""
    calls = [
        (0, {"timing/setup/total": 60.0}),
        (0, clock(40.0, 1.0, 2.0)),
        (1, EVICTED),
        (1, CLOSED),
        (1, clock(41.0, 1.0, 4.0)),
        (1, clock(42.0, 3.0, 5.0)),
        (2, EVICTED),
        (2, CLOSED),
        (2, clock(44.0, 3.0, 5.0)),
    ]
    reading = tail(COLLECTOR, write("mlflow", tmp_path, calls, CONTROLLER))
    assert values(reading, 0) == {}
    second = values(reading, 2)
    assert second["rollout_retries"] == 3.0  # 5 - 2
    assert second['rollout_errors{type="ValueError"}'] == 32.0  # two prompts of sixteen rollouts
    assert "rollout_retries" not in values(reading, 1)  # since when is not known
    assert second["stale_dropped_rollouts"] == 48.0  # three groups
    assert (second["trainer_wait_seconds"], second["trainer_other_seconds"]) == (20.0, 6.0)
    assert second["trainer_samples"] == 512.0
    flying = [sample.value for sample in reading.samples if sample.metric == "in_flight_rollouts"]
    assert flying == [640.0, 656.0, 672.0, 704.0]
    assert reading.facts["mode"] == "async"
    assert (reading.facts["max_in_flight"], reading.facts["max_staleness_versions"]) == (768.0, 1.0)
    assert (reading.facts["trainer_gpus"], reading.facts["generator_gpus"]) == (8.0, 8.0)
    assert reading.unmapped == {}


def one(tmp_path: Path, calls: list[tuple[int, dict[str, float | None]]]) -> dict[str, float]:
    return values(tail(COLLECTOR, write("wandb", tmp_path, calls)), 1)


def test_percentages_of_other_rewards_say_nothing_of_groups(tmp_path: Path) -> None:
    """A mean of 0 is "nobody solved it" for rewards from 0 to 1 alone."""
    signed = {**ROLLOUTS, "train/min_total_reward": -1.0}
    step = one(tmp_path, [(1, signed), (1, {**UPDATE, **SOLVED}), (1, TIMING)])
    assert not [name for name in step if name.startswith("groups_")]


def test_dynamic_sampling_counts_what_it_threw_away(tmp_path: Path) -> None:
    """Three batches of 512 for 512 + 64 that differ; the percentages are of those that were kept."""
    kept = {
        **UPDATE,
        **SOLVED,
        "train/filtered_reward": 0.5,
        "train/dynamic_sampling_num_gen_batches": 3,
        "train/dynamic_sampling_num_discarded_valid_samples": 64,
    }
    step = one(tmp_path, [(1, ROLLOUTS), (1, ROLLOUTS), (1, ROLLOUTS), (1, kept), (1, RATE), (1, TIMING)])
    assert {name: value for name, value in step.items() if name.startswith("groups_")} == {
        "groups_zero_advantage_ratio": 0.625
    }


def test_a_norm_that_is_none(tmp_path: Path) -> None:
    step = one(tmp_path, [(1, {**UPDATE, "train/grad_norm": None}), (1, TIMING)])
    assert step["gradient_nonfinite"] == 1.0
    assert "gradient_norm" not in step


def test_a_run_that_is_resumed_begins_a_folder_and_steps_back(tmp_path: Path) -> None:
    """`exp_001`, `exp_002`, ...: the newest is followed, from the checkpoint's step on."""
    with live_tensorboard(tmp_path / "exp_001" / "tensorboard") as board:
        for step in (1, 2, 3):
            board.log(step, {**UPDATE, **TIMING})
        first = tail(COLLECTOR, tmp_path, now=2e9)
        board.log(4, {**UPDATE, **TIMING})
        later = tail(COLLECTOR, tmp_path, first.cursor, now=2e9)
    assert [{s.step for s in reading.samples} for reading in (first, later)] == [{1, 2, 3}, {4}]
    with live_tensorboard(tmp_path / "exp_002" / "tensorboard") as board:
        board.log(3, {**UPDATE, **TIMING, "timing/train/total_step_time": 80.0})
        again = tail(COLLECTOR, tmp_path, later.cursor, now=2e9)
    assert {sample.step for sample in again.samples} == {3}
    assert values(again, 3)["trainer_step_seconds"] == 80.0


def test_modes_by_configuration() -> None:
    def mode(enabled: bool, together: bool) -> object:
        grpo = {"async_grpo": {"enabled": enabled, "max_trajectory_age_steps": 4}}
        return nemo_rl.facts({"grpo": grpo, "policy": {"generation": {"colocated": {"enabled": together}}}})

    assert mode(True, False) == {"mode": "async", "max_staleness_versions": 4.0}
    assert mode(True, True) == {"mode": "async_colocated", "max_staleness_versions": 4.0}
    assert mode(False, True) == {"mode": "sync_colocated"}
    assert mode(False, False) == {"mode": "sync_split"}


@pytest.mark.parametrize("keys", [{"timing/train/policy_training": 1.0, "train/loss": 0.5}])
def test_supervised_runs_are_not_ours(tmp_path: Path, keys: dict[str, float]) -> None:
    assert COLLECTOR.matches_path(write("tensorboard", tmp_path, [(1, keys)])) is None


def test_a_file_cut_in_a_record_loses_only_that(tmp_path: Path) -> None:
    shutil.copytree(RUN, tmp_path / "cut")
    events = next((tmp_path / "cut").iterdir())
    data = events.read_bytes()
    events.write_bytes(data[:-40])
    first = tail(COLLECTOR, tmp_path / "cut")
    events.write_bytes(data)
    second = tail(COLLECTOR, tmp_path / "cut", first.cursor)
    assert collected([first, second]) == collected([tail(COLLECTOR, RUN)])
