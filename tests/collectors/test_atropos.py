"""Atropos: the API server, asked on a wire that counts; its example trainer and an environment in wandb."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from collectors.detect import detect_path
from collectors.model import Limits, ScrapeError
from collectors.trainers import atropos
from server.targets.model import RunSettings, TargetSettings
from server.targets.resolve import attach
from tests.collectors._frameworks import collected, in_parts, live, tail, values
from tests.collectors._logged import write
from tests.collectors._reading import TESTDATA
from tests.collectors._served import served

RUN = TESTDATA / "atropos" / "trainer"
LOG = next(RUN.iterdir())
COLLECTOR = atropos.COLLECTOR

# What the server answers, on every path it has (api/server.py). Those that take or destroy something answer too.
SERVER: dict[str, Any] = {
    "/": {"message": "AtroposLib API"},
    "/info": {"batch_size": 32, "max_token_len": 2048},
    "/status": {"current_step": 7, "queue_size": 5},
    "/status-env": {"current_step": 7, "queue_size": 5},
    "/wandb_info": {"group": "g", "project": "p"},
    "/latest_example": {"tokens": []},
    "/batch": {"batch": None},
    "/reset_data": "Reset successful",
    "/register": {"uuid": 1},
}
HARMLESS = {("GET", "/info"), ("GET", "/status")}
CONFIG = {"group_size": 8, "batch_size": -1, "max_batches_offpolicy": 3, "total_steps": 1000}
ENVIRONMENT = {
    "gsm8k_train/completion_lengths": 320.0,
    "gsm8k_train/completion_lengths_std": 64.0,
    "gsm8k_train/completion_lengths_max": 1024,
    "gsm8k_train/completion_lengths_min": 16,
    "gsm8k_train/completion_lengths_p95": 0.125,
    "gsm8k_train/percent_correct": 0.5,
    "gsm8k_train/items_sent_to_api": 12,
    "gsm8k_train/items_rejected": 4,
    "gsm8k_train_perf/task_duration_mean": 9.0,
    "gsm8k_train_perf/mainloop_timings_mean": 0.25,
    "gsm8k_eval/percent_correct": 0.75,
    "server/server_0_request_time_avg": 2.0,
}


def test_a_poll_asks_what_changes_nothing_and_that_alone() -> None:
    """`/batch` takes a batch away from the trainer, `/reset_data` ends the run, `/status-env` writes."""
    with served(SERVER) as site:
        for _ in range(3):
            reading = asyncio.run(site.poll(COLLECTOR))
        assert site.asked == [("GET", "/info"), ("GET", "/status")] * 3
    assert [(sample.metric, sample.value) for sample in reading.samples] == [("queue_groups", 5.0)]
    assert reading.facts == {"framework": "atropos", "batch_samples": 32.0}


def test_watch_recognises_the_server_and_takes_nothing() -> None:
    """Every collector's question reaches it until one knows it: none may be one that takes or changes something."""
    with served(SERVER) as site:
        (target,) = attach(RunSettings(name="r", targets=(TargetSettings(source=site.url),))).targets
    assert (target.collector, target.actor) == ("atropos", "trainer")
    assert set(site.asked) >= HARMLESS
    known = {("GET", path) for path in SERVER}
    assert set(site.asked) & known == HARMLESS
    assert {method for method, _ in site.asked} <= {"GET", "POST"}
    assert not {path for _, path in site.asked} & {"/batch", "/reset_data", "/register", "/status-env"}


@pytest.mark.parametrize("size", [-1, None])
def test_before_a_trainer_registers_there_is_no_queue(size: int | None) -> None:
    """Then `/status` says 0, of a queue that does not exist."""
    pages = {"/info": {"batch_size": size, "max_token_len": -1}, "/status": {"current_step": 0, "queue_size": 0}}
    with served(pages) as site:
        reading = asyncio.run(site.poll(COLLECTOR))
    assert reading.samples == ()
    assert reading.facts == {"framework": "atropos"}


def test_an_empty_queue_is_one() -> None:
    with served({**SERVER, "/status": {"current_step": 9, "queue_size": 0}}) as site:
        reading = asyncio.run(site.poll(COLLECTOR))
    assert [(sample.metric, sample.value) for sample in reading.samples] == [("queue_groups", 0.0)]


@pytest.mark.parametrize("answer", [[], {}, "x", None, {"batch_size": 3}])
def test_another_server_is_garbage(answer: Any) -> None:
    with served({"/info": answer, "/status": answer}) as site:
        with pytest.raises(ScrapeError) as caught:
            asyncio.run(site.poll(COLLECTOR))
        assert not asyncio.run(_matches(site.url))
    assert caught.value.kind == "garbage"


async def _matches(url: str) -> bool:
    async with httpx.AsyncClient(base_url=url) as client:
        return await atropos.matches_server(client, Limits())


def test_a_step_of_the_example_trainer() -> None:
    reading = tail(COLLECTOR, RUN)
    assert values(reading, 4) == {
        "trainer_step_seconds": 30.0,  # `step_time` is the update alone
        "trainer_wait_seconds": 10.0,
        "trainer_compute_seconds": 12.0,
        "trainer_weight_sync_seconds": 8.0,
        "loss_mean": 0.125,
        "learning_rate": 1e-5,
        "gradient_norm": 0.5,
        "gradient_nonfinite": 0.0,
        "importance_ratio_mean": 1.0,
        "clip_ratio": 0.0625,
        "mismatch_logprob_difference_mean": 0.015625,
        "mismatch_logprob_difference_max": 0.75,
    }
    assert values(reading, 5)["trainer_weight_sync_seconds"] == 0.0  # it says so: none was due
    assert values(reading, 5)["trainer_step_seconds"] == 22.0
    facts = {key: reading.facts[key] for key in ("mode", "batch_samples", "max_steps", "model")}
    assert facts == {"mode": "async", "batch_samples": 32.0, "max_steps": 500.0, "model": "Qwen3-4B"}
    assert reading.unmapped == {}
    assert [name for name, _ in detect_path(RUN)] == ["atropos"]


def test_in_parts_and_live_it_is_the_same(tmp_path: Path) -> None:
    whole = collected([tail(COLLECTOR, RUN)])
    assert collected(in_parts(COLLECTOR, RUN, 1)) == whole
    assert collected(live(COLLECTOR, LOG, tmp_path / LOG.name, 1009)) == whole


def test_an_environment_counts_by_itself(tmp_path: Path) -> None:
    """Its steps are the server's; its keys bear its name; `_p95` is a share of completions, not a length."""
    calls = [(step, ENVIRONMENT) for step in (0, 1, 4)]
    reading = tail(COLLECTOR, write("wandb", tmp_path, calls, CONFIG))
    assert values(reading, 4, "orchestrator") == {
        "response_tokens_mean": 320.0,
        "response_tokens_max": 1024.0,
        "response_tokens_min": 16.0,
        "solve_ratio": 0.5,
        "filtered_groups": 4.0,
    }
    assert {(sample.axis, sample.step) for sample in reading.samples} == {("orchestrator", step) for step in (0, 1, 4)}
    assert {key: reading.facts.get(key) for key in ("group_size", "batch_samples", "max_staleness_versions")} == {
        "group_size": 8.0,
        "batch_samples": None,  # -1: the trainer decides
        "max_staleness_versions": 3.0,
    }
    assert reading.unmapped == {}


def test_a_norm_that_is_none_and_a_run_that_begins_anew(tmp_path: Path) -> None:
    row = {"train/loss": 0.5, "train/grad_norm": None, "train/data_fetch_time": 1.0, "grpo/mean_ratio": 1.0}
    first = tail(COLLECTOR, write("wandb", tmp_path, [(step, row) for step in (1, 2, 3)]))
    assert values(first, 3)["gradient_nonfinite"] == 1.0
    second = tail(COLLECTOR, write("wandb", tmp_path, [(1, {**row, "train/grad_norm": 2.0})]), first.cursor)
    assert {sample.step for sample in second.samples} == {1}
    assert values(second, 1)["gradient_norm"] == 2.0
