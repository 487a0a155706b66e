"""TorchForge: the console's blocks; what is nested in a step is not counted twice."""

import json
from pathlib import Path

from collectors.formats import console
from collectors.trainers import torchforge
from tests.collectors._frameworks import collected, counts, in_parts, live, tail, values
from tests.collectors._reading import TESTDATA
from tests.support_writers import run_writer

RUN = TESTDATA / "torchforge" / "console"
COLLECTOR = torchforge.COLLECTOR


def test_a_step_in_numbers() -> None:
    reading = tail(COLLECTOR, RUN)
    assert values(reading, 4) == {
        "trainer_step_seconds": 20.0,
        "trainer_wait_seconds": 8.0,
        "trainer_compute_seconds": 6.0,  # train_step, the checkpoint of 1 s inside it taken off
        "trainer_checkpoint_seconds": 1.0,
        "trainer_weight_sync_seconds": 3.5,
        "trainer_other_seconds": 1.5,
        "staleness_versions_mean": 0.75,
        "staleness_versions_max": 1.0,
        "stale_dropped_rollouts": 4.0,
        "reward_mean": 0.5,
        'reward_component_mean{function="MathReward"}': 0.5,
        "response_tokens_mean": 300.0,
        "rollout_tokens_per_second": 600.0,
        "rollout_seconds_mean": 11.0,
        "rollout_seconds_max": 14.0,
        "rollout_model_seconds_mean": 10.0,
        "rollout_scoring_seconds_mean": 0.5,
        "loss_mean": 0.125,
        "learning_rate": 1e-5,
    }
    assert reading.facts == {"framework": "torchforge", "mode": "async"}
    assert reading.unmapped == {}
    assert {sample.ts for sample in reading.samples if sample.step == 4} == {1_795_250_080}
    assert {sample.step for sample in reading.samples} == set(range(1, 13))


def test_in_parts_and_live_it_is_the_same(tmp_path: Path) -> None:
    whole = collected([tail(COLLECTOR, RUN)])
    assert collected(in_parts(COLLECTOR, RUN, 11)) == whole  # a block is longer than that
    grown = live(COLLECTOR, RUN / "train.log", tmp_path / "train.log", 173)
    assert collected(grown) == whole
    assert set(counts(grown, "trainer_step_seconds").values()) == {1}


def test_a_resumed_run_and_a_log_written_anew(tmp_path: Path) -> None:
    log, text = tmp_path / "train.log", (RUN / "train.log").read_text()
    block = text[
        text.index("=== [GlobalReduce] - METRICS STEP 7 ") - 25 : text.index("=== [GlobalReduce] - METRICS STEP 8 ")
        - 25
    ]
    log.write_text(text)
    first = tail(COLLECTOR, log)
    with log.open("a") as file:
        file.write(block.replace("waiting_for_buffer/duration_avg_s: 8.0", "waiting_for_buffer/duration_avg_s: 9.0"))
    second = tail(COLLECTOR, log, first.cursor)
    assert values(second, 7)["trainer_wait_seconds"] == 9
    log.write_text(block)
    assert {sample.step for sample in tail(COLLECTOR, log, second.cursor).samples} == {7}


WRITER = """
import json, sys, wandb
wandb.init(project="p", mode="offline", dir=sys.argv[1])
for step, row in json.loads(sys.argv[2]):
    wandb.log(row, step=step)
wandb.finish()
"""


def test_the_same_from_wandb(tmp_path: Path) -> None:
    row = {torchforge.STEP: 20.0, torchforge.WAIT: 8.0, torchforge.TRAIN: 7.0, torchforge.SYNC[0]: 2.0}
    run_writer(WRITER, tmp_path, json.dumps([(step, row) for step in (1, 2, 3)]))
    reading = tail(COLLECTOR, tmp_path)
    assert values(reading, 2) == {
        "trainer_step_seconds": 20.0,
        "trainer_wait_seconds": 8.0,
        "trainer_compute_seconds": 7.0,
        "trainer_weight_sync_seconds": 2.0,
        "trainer_other_seconds": 3.0,
    }
    assert {sample.step for sample in reading.samples} == {1, 2, 3}


def test_a_block_that_lost_its_end_does_not_swallow_the_next() -> None:
    memory: dict[str, object] = {}
    lines = [
        "=== [G] - METRICS STEP 1 ===",
        "  a: 1.0",
        "=== [G] - METRICS STEP 2 ===",
        "  b: nan",
        "  c: 2.0",
        "=====" * 6,
    ]
    said = [torchforge.parse_line(console.ConsoleLine(line), memory) for line in lines]
    (row,) = [one for one in said if one is not None]
    assert (row.step, row.values) == (2, {"b": None, "c": 2.0})  # type: ignore[union-attr]
