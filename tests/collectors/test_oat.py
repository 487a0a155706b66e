"""OAT: printed dicts without a step or a time; a learning round takes several updates."""

import json
import pprint
from pathlib import Path

import pytest

from collectors.trainers import oat
from tests.collectors._frameworks import collected, counts, live, tail, values
from tests.collectors._reading import TESTDATA, by_step
from tests.support_writers import run_writer

RUN = TESTDATA / "oat" / "console"
COLLECTOR = oat.COLLECTOR


def printed(**row: float) -> str:
    """As `strategy.pprint` prints it (utils/deepspeed.py)."""
    return "\n\n" + pprint.pformat({key.replace("__", "/"): value for key, value in row.items()}) + "\n\n\n"


def test_a_round_in_numbers() -> None:
    reading = tail(COLLECTOR, RUN)
    assert values(reading, 8) == {
        "trainer_step_seconds": 40.0,  # of misc/elapse, from round to round
        "generation_seconds": 18.0,
        "reward_seconds": 1.0,
        "trainer_compute_seconds": 8.0,  # four updates of 2 s
        "trainer_weight_sync_seconds": 3.0,
        "trainer_other_seconds": 10.0,
        "policy_version": 2.0,
        "reward_mean": 0.375,
        "response_tokens_mean": 700.0,
        "truncation_ratio": 0.03125,  # 4 of 128
        "mismatch_kl_mean": 0.002,
        "mismatch_logprob_difference_max": 1.5,
        "entropy_mean": 0.5,
        "loss_mean": 0.125,
        "clip_ratio": 0.03125,
        "gradient_norm": 0.5,
        "gradient_nonfinite": 0.0,
        "learning_rate": 1e-6,
    }
    # The first round's beginning is not logged.
    assert "trainer_step_seconds" not in values(reading, 4)
    assert sorted({sample.step for sample in reading.samples if sample.step is not None}) == [*range(4, 49, 4)]
    assert values(reading, 20)["gradient_nonfinite"] == 1
    assert reading.unmapped == {}


def test_logging_every_third_round_gives_means(tmp_path: Path) -> None:
    rows = [
        {
            "train__learning_round": r,
            "misc__pi_beta_version": r,
            "misc__policy_sgd_step": 4.0 * r,
            "misc__elapse": 40.0 * r,
        }
        for r in (3.0, 6.0)
    ]
    (tmp_path / "run.log").write_text("".join(printed(**row, train__learn_batch_time=2.0) for row in rows))
    reading = tail(COLLECTOR, tmp_path / "run.log")
    assert by_step(reading.samples, "trainer_step_seconds") == {24: 40.0}
    assert by_step(reading.samples, "trainer_compute_seconds") == {24: 8.0}


def test_an_evaluation_is_no_round(tmp_path: Path) -> None:
    row = {"misc__pi_beta_version": 0.0, "misc__policy_sgd_step": 0.0, "misc__elapse": 9.0, "eval__accuracy": 0.5}
    (tmp_path / "run.log").write_text(printed(**row))
    assert tail(COLLECTOR, tmp_path / "run.log").samples == ()


def test_live_it_is_the_same(tmp_path: Path) -> None:
    whole = collected([tail(COLLECTOR, RUN)])
    grown = live(COLLECTOR, RUN / "run.log", tmp_path / "run.log", 389)
    assert collected(grown) == whole
    assert set(counts(grown, "generation_seconds").values()) == {1}


def test_a_run_that_begins_anew_has_no_negative_round(tmp_path: Path) -> None:
    log, text = tmp_path / "run.log", (RUN / "run.log").read_text()
    log.write_text(text)
    first = tail(COLLECTOR, log)
    with log.open("a") as file:
        file.write(text[: len(text) // 6])
    second = tail(COLLECTOR, log, first.cursor)
    assert by_step(second.samples, "trainer_step_seconds").get(4) is None
    assert by_step(second.samples, "generation_seconds")[4] == 18
    log.write_text(text[: len(text) // 6])
    assert 4 in by_step(tail(COLLECTOR, log, second.cursor).samples, "generation_seconds")


WRITER = """
import json, sys, wandb
config = {"num_samples": 8, "asynchronous": False, "collocate": True}
wandb.init(project="p", config=config, mode="offline", dir=sys.argv[1])
for row in json.loads(sys.argv[2]):
    wandb.log(row)
wandb.finish()
"""


def test_wandb_counts_rows_and_not_steps(tmp_path: Path) -> None:
    """`wandb.log` without a step: its own goes 0, 1, 2; the run's is in the row."""
    common = {"misc/pi_buffer_len": 128.0, "train/all_zero_rewards_count": 2.0, "train/all_one_rewards_count": 4.0}
    rows = [
        {**common, "train/learning_round": r, "misc/policy_sgd_step": 4 * r, "misc/elapse": 40.0 * r} for r in (1, 2, 3)
    ]
    run_writer(WRITER, tmp_path, json.dumps(rows))
    reading = tail(COLLECTOR, tmp_path)
    assert by_step(reading.samples, "trainer_step_seconds") == {8: 40.0, 12: 40.0}
    assert by_step(reading.samples, "groups_all_solved_ratio") == {4: 0.25, 8: 0.25, 12: 0.25}
    assert (reading.facts["mode"], reading.facts["group_size"]) == ("sync_colocated", 8)


def groups(**facts: float) -> dict[str, float]:
    row = {"train/all_zero_rewards_count": 2.0, "train/all_one_rewards_count": 4.0, "misc/pi_buffer_len": 128.0}
    piece = oat.Piece("trainer", 4, 0.0, row)
    return {metric: value for metric, _, value in oat.derive(piece, oat.Context({**facts}, {}, "wandb"))}


def test_groups_need_their_size() -> None:
    assert groups() == {}
    # 128 samples a rank are 16 groups of 8.
    assert groups(group_size=8.0) == {"groups_none_solved_ratio": 0.125, "groups_all_solved_ratio": 0.25}


@pytest.mark.parametrize(
    ("config", "mode"),
    [
        ({"asynchronous": True, "collocate": False}, "one_step"),
        ({"asynchronous": False, "collocate": True}, "sync_colocated"),
        ({"asynchronous": False, "collocate": False}, "sync_split"),
        ({}, None),
    ],
)
def test_the_mode_is_in_the_arguments(config: dict[str, bool], mode: str | None) -> None:
    assert oat.facts(config).get("mode") == mode
