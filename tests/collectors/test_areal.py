"""AReaL: TensorBoard, the printed tables, and what its keys do not mean."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.formats import console
from collectors.trainers import areal, oat, skyrl, torchforge
from tests.collectors._frameworks import collected, in_parts, live, tail, values
from tests.collectors._reading import TESTDATA
from tests.support_writers import run_writer

RUN = TESTDATA / "areal" / "tensorboard"
COLLECTOR = areal.COLLECTOR
BEGAN = 1_795_250_000.0


def table(row: dict[str, float], columns: int = 4) -> str:
    """As `tabulate_stats` prints it (utils/printing.py): column by column, four pairs a row, floats `.4e`."""
    items = [(key, f"{value:.4e}") for key, value in row.items()]
    count = -(-len(items) // columns)
    pairs = [[items[i + j * count] for j in range(columns) if i + j * count < len(items)] for i in range(count)]
    lines = ["│ " + " │ ".join(f"{key:<60} │ {value:>12}" for key, value in line) + " │" for line in pairs]
    rule = "─" * 20
    return "\n".join([f"╒{rule}╕", f"\n├{rule}┤\n".join(lines), f"╘{rule}╛"])


def printed(step: int, row: dict[str, float], prefix: str = "") -> str:
    stamp = time.strftime("%Y%m%d-%H:%M:%S", time.localtime(BEGAN + 60 * step))
    head = f"(AReaL) {stamp}.250 StatsLogger INFO: "
    done = f"Epoch 1/2 Step {step + 1}/50 Train step {step + 1}/100 done."
    text = f"{head}{done}\n{head}Stats (1/1):\n{head}\n{table(row)}\n"
    return "".join(f"{prefix}{line}\n" for line in text.splitlines())


ROW = {
    "timeperf/rollout": 24.0,
    "timeperf/recompute_logp": 4.0,
    "timeperf/compute_advantage": 0.5,
    "timeperf/train_step": 20.0,
    "timeperf/update_weights": 6.0,
    "timeperf/save": 0.25,
    "timeperf/checkpoint_for_recover": 0.75,
    "timeperf/eval": 1.0,
    "timeperf/clear_batches": 0.5,
    "ppo_actor/task_reward/avg": 0.25,
    "ppo_actor/update/grad_norm": 0.125,
    "ppo_actor/seq_len/avg": 640.0,
    "ppo_actor/prompt_len/avg": 128.0,
    "rollout/accepted": 1.0,
}


def test_a_step_in_numbers() -> None:
    reading = tail(COLLECTOR, RUN)
    assert values(reading, 5) == {
        "trainer_step_seconds": 59.0,  # no key says it: the sum of the timers
        "trainer_wait_seconds": 24.0,
        "trainer_compute_seconds": 26.5,
        "trainer_logprob_seconds": 6.0,
        "trainer_weight_sync_seconds": 6.0,
        "trainer_checkpoint_seconds": 1.0,
        "trainer_eval_seconds": 1.0,
        "trainer_other_seconds": 1.5,
        "trainer_samples": 64.0,
        "trained_tokens": 32768.0,
        "processed_tokens": 65536.0,
        "reward_mean": 0.25,
        "solve_ratio": 0.25,
        "response_tokens_mean": 512.0,  # the sequence without its prompt
        "prompt_tokens_mean": 128.0,
        "truncation_ratio": 0.0625,
        "token_staleness_versions_mean": 1.25,
        "staleness_versions_max": 2.0,
        "policy_version": 5.0,
        "loss_mean": 0.5,
        "entropy_mean": 0.75,
        "clip_ratio": 0.125,
        "importance_ratio_mean": 1.0,
        "mismatch_kl_mean": 0.03125,
        "learning_rate": pytest.approx(1e-5),
        "gradient_norm": 0.25,
        "gradient_nonfinite": 0.0,
    }
    assert reading.facts == {"framework": "areal", "usual_mode": "async"}
    assert reading.unmapped == {}
    assert {sample.step for sample in reading.samples} == set(range(12))


def test_accepted_and_rejected_are_means_of_ones_and_read_by_nobody() -> None:
    metrics = {name for _, _, name in collected([tail(COLLECTOR, RUN)])}
    assert not metrics & {"stale_dropped_rollouts", "trainable_ratio", "groups_zero_advantage_ratio"}


def test_in_parts_and_live_it_is_the_same(tmp_path: Path) -> None:
    whole = collected([tail(COLLECTOR, RUN)])
    assert collected(in_parts(COLLECTOR, RUN, 1)) == whole
    events = next(RUN.iterdir())
    assert collected(live(COLLECTOR, events, tmp_path / events.name, 1301)) == whole


@pytest.mark.parametrize("prefix", ["", "(TrainController pid=9, ip=10.0.0.2) "])
def test_the_printed_table(tmp_path: Path, prefix: str) -> None:
    log = tmp_path / "trainer.log"
    log.write_text("loading\n" + printed(0, ROW, prefix) + printed(1, ROW, prefix))
    reading = tail(COLLECTOR, log)
    assert values(reading, 1) == {
        "trainer_step_seconds": 57.0,
        "trainer_wait_seconds": 24.0,
        "trainer_compute_seconds": 24.5,
        "trainer_logprob_seconds": 4.0,
        "trainer_weight_sync_seconds": 6.0,
        "trainer_checkpoint_seconds": 1.0,
        "trainer_eval_seconds": 1.0,
        "trainer_other_seconds": 1.5,
        "reward_mean": 0.25,
        "response_tokens_mean": 512.0,
        "prompt_tokens_mean": 128.0,
        "gradient_norm": 0.125,
        "gradient_nonfinite": 0.0,
    }
    assert {sample.ts for sample in reading.samples if sample.step == 1} == {BEGAN + 60.25}


WRITER = """
import json, os, sys
os.environ["TRACKIO_DIR"] = sys.argv[1]
import trackio
trackio.init(project="p", name="t", config=json.loads(sys.argv[3]))
for step in range(3):
    trackio.log(json.loads(sys.argv[2]), step=step)
trackio.finish()
"""


def test_the_same_from_trackio_with_its_configuration(tmp_path: Path) -> None:
    config = {"rollout": {"max_head_offpolicyness": 2}, "gconfig": {"n_samples": 4}}
    run_writer(WRITER, tmp_path, json.dumps(ROW), json.dumps(config))
    reading = tail(COLLECTOR, tmp_path)
    assert values(reading, 2)["trainer_step_seconds"] == 57
    assert {sample.step for sample in reading.samples} == {0, 1, 2}
    assert (reading.facts["mode"], reading.facts["max_staleness_versions"], reading.facts["group_size"]) == (
        "async",
        2,
        4,
    )


SAYING = (areal.parse_line, oat.parse_line, skyrl.parse_line, torchforge.parse_line)
HEADS = (
    "",
    "│ a │ ",
    "╘",
    "(AReaL) 20260821-10:00:00.1 Train step 1/2 done.",
    "x - Step 1: ",
    "{",
    "{'misc/policy_sgd_step': ",
    "=== [G] - METRICS STEP 1 ===",
    "  a: ",
    "=====",
)


@given(st.lists(st.tuples(st.sampled_from(HEADS), st.text(max_size=20)), max_size=12))
def test_no_text_breaks_a_parser_or_its_memory(parts: list[tuple[str, str]]) -> None:
    for say in SAYING:
        memory: dict[str, object] = {}
        for head, text in parts:
            assert say(console.ConsoleLine(head + text), memory) is None or json.dumps(memory)
        json.dumps(memory)


def test_a_table_that_is_still_printed_waits(tmp_path: Path) -> None:
    source = tmp_path / "all.txt"
    source.write_text("".join(printed(step, ROW) for step in range(4)))
    whole = collected([tail(COLLECTOR, source)])
    grown = live(COLLECTOR, source, tmp_path / "trainer.log", 211)
    assert collected(grown) == whole
    assert {step for _, step, _ in whole} == {0, 1, 2, 3}


def test_a_resumed_run_steps_back(tmp_path: Path) -> None:
    log = tmp_path / "trainer.log"
    log.write_text("".join(printed(step, ROW) for step in (0, 1, 2)))
    first = tail(COLLECTOR, log)
    with log.open("a") as file:
        file.write(printed(1, {**ROW, "timeperf/rollout": 30.0}))
    second = tail(COLLECTOR, log, first.cursor)
    assert values(second, 1)["trainer_wait_seconds"] == 30
    assert {sample.step for sample in second.samples} == {1}


def test_with_no_staleness_allowed_waiting_is_generation() -> None:
    config = {
        "rollout": {"max_head_offpolicyness": 0, "max_concurrent_rollouts": 128},
        "gconfig": {"n_samples": 4, "max_new_tokens": 2048},
        "train_dataset": {"batch_size": 16},
        "total_train_steps": 100,
        "actor": {"path": "Qwen/Qwen3-8B"},
    }
    facts = areal.facts(config)
    assert facts == {
        "mode": "sync_split",
        "group_size": 4.0,
        "batch_samples": 64.0,
        "max_in_flight": 128.0,
        "max_steps": 100.0,
        "max_response_tokens": 2048.0,
        "model": "Qwen/Qwen3-8B",
    }
    assert areal.facts({"rollout": {"max_head_offpolicyness": 4}}) == {
        "mode": "async",
        "max_staleness_versions": 4.0,
    }
    context = areal.Context(dict(facts), {}, "wandb")
    out = {metric: value for metric, _, value in areal.derive(areal.Piece("trainer", 0, 0.0, ROW), context)}
    assert out["generation_seconds"] == 24
    assert "trainer_wait_seconds" not in out
