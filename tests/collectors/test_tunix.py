"""Tunix: rollouts on devices of their own, in TensorBoard; the agentic learner, which buffers ahead."""

from pathlib import Path

from collectors.detect import detect_path
from collectors.trainers import tunix
from tests.collectors._frameworks import collected, counts, in_parts, live, tail, values
from tests.collectors._logged import live_tensorboard, write
from tests.collectors._reading import TESTDATA, by_step
from tests.support_writers import run_writer

RUN = TESTDATA / "tunix" / "split"
EVENTS = next(RUN.iterdir())
COLLECTOR = tunix.COLLECTOR

TIMES = {
    "perf/train/global_step_time": 50.0,
    "perf/train/weight_sync_time": 2.0,
    "perf/train/sum/rollout_time": 24.0,
    "perf/train/sum/refer_inference_time": 5.0,
    "perf/train/sum/actor_train_time": 16.0,
    "perf/train/mean/rollout_time": 6.0,
}


def test_a_step_in_numbers() -> None:
    reading = tail(COLLECTOR, RUN)
    assert values(reading, 3) == {
        "trainer_step_seconds": 39.0,  # logged with step 4
        "generation_seconds": 11.0,  # until the first micro-batch, and between them: the rest ran beside training
        "trainer_compute_seconds": 18.0,
        "trainer_logprob_seconds": 4.0,
        "trainer_weight_sync_seconds": 3.0,
        "trainer_other_seconds": 7.0,
        "reward_mean": 0.75,  # of both functions; `rewards/train/mean` is half of it
        'reward_component_mean{function="format_reward"}': 0.5,
        'reward_component_mean{function="answer_reward"}': 0.25,
        "response_tokens_mean": 200.0,
        "response_tokens_max": 768.0,
        "response_tokens_min": 12.0,
        "mismatch_logprob_difference_mean": 0.0078125,
        "mismatch_logprob_difference_max": 0.5,
    }
    assert by_step(reading.samples, "trainer_step_seconds") == {step: 36.0 + step for step in range(6)}
    assert reading.facts == {"framework": "tunix", "mode": "sync_split"}
    assert reading.unmapped == {}
    assert [name for name, _ in detect_path(RUN)] == ["tunix"]


def test_updates_are_counted_by_themselves() -> None:
    """Two per step: fourteen in seven steps, under the same numbers as the steps."""
    reading = tail(COLLECTOR, RUN)
    assert values(reading, 9, "update") == {
        "loss_mean": 0.25,
        "learning_rate": 9.5367431640625e-07,
        "entropy_mean": 0.75,
        "clip_ratio": 0.03125,
        "gradient_norm": 9.5,
        "gradient_nonfinite": 0.0,
    }  # and no KL: it says 0 where there is no reference model
    assert {sample.step for sample in reading.samples if sample.axis == "update"} == set(range(14))
    assert {sample.step for sample in reading.samples if sample.axis == "trainer"} == set(range(7))


def test_in_parts_and_live_it_is_the_same(tmp_path: Path) -> None:
    whole = collected([tail(COLLECTOR, RUN)])
    assert collected(in_parts(COLLECTOR, RUN, 1)) == whole
    grown = live(COLLECTOR, EVENTS, tmp_path / EVENTS.name, 701)
    assert collected(grown) == whole
    assert set(counts(grown, "trainer_step_seconds").values()) == {1}


def test_on_shared_devices_generation_is_all_of_it(tmp_path: Path) -> None:
    """With wandb, whose rows go on; the times are those of the step before."""
    calls = [(step, {**TIMES, "actor/train/kl": 0.25, "rewards/train/sum": 1.5}) for step in (1, 2, 3)]
    reading = tail(COLLECTOR, write("wandb", tmp_path, calls))
    assert values(reading, 2) == {
        "trainer_step_seconds": 50.0,
        "generation_seconds": 24.0,
        "trainer_compute_seconds": 21.0,
        "trainer_logprob_seconds": 5.0,
        "trainer_weight_sync_seconds": 2.0,
        "trainer_other_seconds": 3.0,
        "reward_mean": 1.5,
    }
    assert {sample.step for sample in reading.samples if sample.metric == "trainer_step_seconds"} == {0, 1, 2}
    assert values(reading, 2, "update") == {"reference_kl_mean": 0.25}
    assert reading.facts["usual_mode"] == "sync_colocated"


def test_with_three_meshes_the_gaps_are_no_waiting(tmp_path: Path) -> None:
    """`refer_gap_time` and `actor_gap_time` reach from a begin to the next end."""
    apart = {**TIMES, "perf/train/first_micro_batch_rollout_time": 8.0, "perf/train/sum/refer_gap_time": 30.0,
             "perf/train/sum/actor_gap_time": 40.0}  # fmt: skip
    step = values(tail(COLLECTOR, write("tensorboard", tmp_path, [(1, apart)])), 0)
    assert step == {
        "trainer_step_seconds": 50.0,
        "trainer_weight_sync_seconds": 2.0,
        "trainer_compute_seconds": 16.0,  # the reference has devices of its own
    }


AGENTIC = {
    "rewards/train/sum": 1.0,
    "generation/train/completions/mean_length": 100.0,
    "generation/train/completions/max_raw_length": 900.0,
    "generation/train/completions/clip_ratio": 0.25,
    "generation/train/prompts/mean_length": 512.0,
    "trajectory/train/env_time/reset_latency/mean": 1.5,
    "trajectory/train/env_time/step_latency/mean": 0.125,
    "trajectory/train/reward_time/reward_latency/mean": 0.25,
}


def test_an_agentic_step_that_comes_late_is_no_step_back(tmp_path: Path) -> None:
    """Step 1's last part comes after step 2's first and repeats its keys: the first word stays, the rest is new."""
    late = {"rewards/train/sum": 5.0, "perf/train/global_step_time": 30.0}
    with live_tensorboard(tmp_path) as board:
        board.log(0, AGENTIC)
        board.log(1, AGENTIC)
        board.log(2, AGENTIC)
        first = tail(COLLECTOR, tmp_path, now=2e9)
        board.log(1, late)
        board.log(3, AGENTIC)
        second = tail(COLLECTOR, tmp_path, first.cursor, now=2e9)
    assert values(first, 1) == {
        "reward_mean": 1.0,
        "response_tokens_mean": 100.0,
        "truncation_ratio": 0.25,
        "rollout_setup_seconds_mean": 1.5,
        "tool_call_seconds_mean": 0.125,
        "rollout_scoring_seconds_mean": 0.25,
    }
    assert values(second, 1) == {"trainer_step_seconds": 30.0}
    stamps = {sample.step: sample.ts for sample in (*first.samples, *second.samples)}
    assert list(stamps.values()) == sorted(stamps.values(), key=float)


def test_a_resumed_run_writes_a_file_of_its_own_and_steps_back(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with live_tensorboard(tmp_path / "a") as board:
        for step in range(4):
            board.log(step, AGENTIC)
        first = tail(COLLECTOR, tmp_path, now=2e9)
    with live_tensorboard(tmp_path / "a") as board:
        board.log(2, {**AGENTIC, "rewards/train/sum": 3.0})
        second = tail(COLLECTOR, tmp_path, first.cursor, now=2e9)
    assert {sample.step for sample in second.samples} == {2}
    assert values(second, 2)["reward_mean"] == 3.0


LAGGING = """
import sys
from tensorboardX import SummaryWriter
writer = SummaryWriter(sys.argv[1], flush_secs=120)
for step in range(3):
    writer.add_scalar("perf/train/global_step_time", 30.0 + step, step)
print("nothing is flushed by hand, as by metrax before step 100")
writer.close()
"""


def test_what_tensorboardx_held_back_comes_with_its_own_times(tmp_path: Path) -> None:
    run_writer(LAGGING, tmp_path)
    reading = tail(COLLECTOR, tmp_path, now=2e9)
    assert by_step(reading.samples, "trainer_step_seconds") == {0: 30.0, 1: 31.0, 2: 32.0}
    assert "times_estimated" not in reading.facts
    assert max(sink.lag_seconds for sink in tunix.FRAMEWORK.sinks) == 120.0


def test_a_norm_that_is_none(tmp_path: Path) -> None:
    calls = [(1, {"actor/train/grad_norm": None, "rewards/train/score/mean": 0.5})]
    reading = tail(COLLECTOR, write("tensorboard", tmp_path, calls))
    assert values(reading, 1, "update") == {"gradient_nonfinite": 1.0}


def test_memory_is_bounded() -> None:
    own: dict[str, object] = {}
    for step in range(50):
        tunix._new_values(tunix.Piece("trainer", step, 1.0, {"a": 1.0}), "file", own)
    assert len(own["told"]["trainer"]) == 4  # type: ignore[index]
