"""OpenRLHF: both trainers from every sink, the wait that only follows, the filter's rate, what wandb does to steps."""

import json
import shutil
from pathlib import Path

import pytest

from collectors.model import Limits, Reading
from collectors.trainers import openrlhf
from tests.collectors._reading import TESTDATA, by_step

ASYNC, SYNC = TESTDATA / "openrlhf" / "async", TESTDATA / "openrlhf" / "sync"

# Written down from the script that logged them (tests/testdata/openrlhf/README.md).
COMMON = {
    "trainer_weight_sync_seconds": 1.0, "trainer_compute_seconds": 14.0, "trainer_samples": 1024.0,
    "reward_mean": 0.12, "reward_std": 0.5, "reward_group_std_mean": 0.4, "response_tokens_mean": 512.0,
    "truncation_ratio": 0.125, "trained_tokens": 524_288.0, "policy_version": 12.0, "loss_mean": -0.12,
    "gradient_norm": 0.25, "gradient_nonfinite": 0.0, "learning_rate": 1e-6, "entropy_mean": 0.6,
    "clip_ratio": 0.02, "reference_kl_mean": 0.0125, "mismatch_kl_mean": 0.003,
}  # fmt: skip
ASYNC_ONLY = {"trainer_step_seconds": 20.0, "trainer_wait_seconds": 5.0}
SYNC_ONLY = {"trainer_step_seconds": 27.0, "generation_seconds": 12.0}


def tail(path: Path, cursor: dict | None = None, **limits: int) -> Reading:
    return openrlhf.COLLECTOR.tail(path, json.loads(json.dumps(cursor or {})), Limits(**limits), 1_800_000_000.0)


def at(reading: Reading, step: int) -> dict[str, float]:
    return {sample.metric: sample.value for sample in reading.samples if sample.step == step}


@pytest.mark.parametrize(
    ("path", "only", "mode"),
    [
        (ASYNC, ASYNC_ONLY | {"trainable_ratio": 0.75}, "async"),
        (ASYNC / "train.log", ASYNC_ONLY, "async"),  # without a group size the filter's rate says nothing
        (SYNC, SYNC_ONLY, "sync_colocated"),
        (SYNC / "train.log", SYNC_ONLY, "sync_colocated"),
    ],
)
def test_every_sink_tells_the_step(path: Path, only: dict[str, float], mode: str) -> None:
    reading = tail(path)
    assert at(reading, 12) == pytest.approx(COMMON | only, rel=1e-6)
    assert sorted(by_step(reading.samples, "trainer_step_seconds")) == list(range(1, 13))
    known = reading.facts.get("mode", reading.facts.get("usual_mode"))
    assert (known, reading.unmapped) == (mode, {})
    assert openrlhf.COLLECTOR.matches_path(path)


@pytest.mark.parametrize("path", [ASYNC, ASYNC / "train.log", SYNC, SYNC / "train.log"])
def test_a_gradient_that_is_no_number_is_said(path: Path) -> None:
    reading = tail(path)
    assert [step for step, value in by_step(reading.samples, "gradient_nonfinite").items() if value] == [7]
    assert 7 not in by_step(reading.samples, "gradient_norm")


def test_facts_from_the_arguments() -> None:
    facts = tail(ASYNC).facts
    assert {key: facts[key] for key in ("group_size", "batch_samples", "max_response_tokens", "model")} == {
        "group_size": 8, "batch_samples": 1024, "max_response_tokens": 1024, "model": "Qwen/Qwen3-8B",
    }  # fmt: skip
    assert (facts["trainer_gpus"], facts["generator_gpus"], facts["lifecycle"]) == (8, 8, "finished")


def test_an_evaluation_is_an_event() -> None:
    for folder in (ASYNC, SYNC):
        assert [event.kind for event in tail(folder).events] == ["eval"]


@pytest.mark.parametrize("path", [ASYNC, SYNC, SYNC / "train.log"])
def test_in_parts_it_is_the_same(path: Path) -> None:
    whole, cursor, samples = tail(path), {}, []
    while True:
        reading = tail(path, cursor, tail_rows=5)
        samples += reading.samples
        cursor = reading.cursor
        if not reading.more:
            break
    assert {(s.metric, s.step): s.value for s in samples} == {(s.metric, s.step): s.value for s in whole.samples}
    assert len(samples) == len(whole.samples)


def test_a_console_that_grows_and_goes_back(tmp_path: Path) -> None:
    """Resumed from a checkpoint at step 5 into the same file."""
    lines = (SYNC / "train.log").read_text().splitlines(keepends=True)
    log = tmp_path / "train.log"
    log.write_text("".join(lines[:8]) + lines[8][:40])
    first = tail(log)
    log.write_text("".join(lines[:9]) + lines[6])
    second = tail(log, first.cursor)
    steps = [[s.step for s in r.samples if s.metric == "trainer_step_seconds"] for r in (first, second)]
    assert steps == [[1, 2, 3, 4, 5, 6, 7], [8, 6]]


@pytest.mark.parametrize(
    ("train", "mode"),
    [
        ("namespace(async_enable=True, colocate_all=False)", "async"),
        ("namespace(async_enable=False, colocate_all=True)", "sync_colocated"),
        ("namespace(async_enable=False, colocate_all=False, steps=inf)", "sync_split"),
        ("namespace(async_enable=", None),
        ("namespace(async_enable=__import__('os'))", None),
    ],
)
def test_modes_from_arguments_as_wandb_prints_them(train: str, mode: str | None) -> None:
    assert openrlhf.facts({"train": train}).get("mode") == mode


def test_the_filters_rate_counts_samples_per_prompt() -> None:
    """All of 8 samples kept of every prompt is 800, not 100."""
    assert openrlhf.batch_share(800.0, 8.0) == 1.0
    assert openrlhf.batch_share(600.0, 8.0) == 0.75
    assert openrlhf.batch_share(600.0, None) is None


def test_what_cannot_be_known_is_absent() -> None:
    found = {sample.metric for sample in tail(ASYNC).samples}
    assert not {metric for metric in found if metric.startswith(("groups_", "staleness", "queue"))}
    assert "generation_seconds" not in found  # it runs beside the step there
    assert "trainer_wait_seconds" not in {sample.metric for sample in tail(SYNC).samples}


def test_other_consoles_are_not_ours(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("Global step 3: {'loss': 0.5}\n" * 3)
    assert openrlhf.COLLECTOR.matches_path(tmp_path) is None
    shutil.copy(SYNC / "train.log", tmp_path)
    assert openrlhf.COLLECTOR.matches_path(tmp_path) == "console train.log with timing/ppo_train"


def test_the_window_is_a_fact() -> None:
    """wandb keeps the group as it is printed; the console's rows, one for each step, need none."""
    printed = {"logger": "namespace(logging_steps=10, log_path='./out')"}
    assert openrlhf.facts(printed)["logging_steps"] == 10
    assert "logging_steps" not in openrlhf.facts({"logger": "namespace(log_path='./out')"})
