"""open-instruct: a run in wandb, and the actor manager's status page as it answers."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.detect import detect_path
from collectors.model import Limits, Reading, ScrapeError
from collectors.trainers import open_instruct
from server.targets.model import RunSettings, TargetSettings
from server.targets.resolve import attach
from tests.collectors._frameworks import collected, in_parts, live, tail, values
from tests.collectors._logged import write
from tests.collectors._reading import TESTDATA
from tests.collectors._served import served

RUN = TESTDATA / "open_instruct" / "async"
LOG = next(RUN.iterdir())
COLLECTOR = open_instruct.COLLECTOR

STATUS: dict[str, Any] = {
    "should_stop": True,  # as during every weight sync
    "last_updated": "2026-11-21T10:00:00.000001",
    "queues": {
        "Inference Results Queue": {"current": 6, "maxsize": 64},
        "Prompt Queue": {"current": 40, "maxsize": 64},
        "Evaluation Queue": {"current": 3, "maxsize": 0},
    },
    "token_stats": {
        "total_prefill_tokens": 4096,
        "total_decode_tokens": 65536,
        "prefill_tokens_per_sec": 128.0,
        "decode_tokens_per_sec": 2048.0,
        "sample_count": 12,
    },
    "timing_stats": {
        "avg_training_step_time": 40.0,
        "avg_batch_generation_time": 12.0,
        "training_step_count": 5,
        "batch_generation_count": 12,
    },
    "concurrency_per_engine": 32,
    "total_concurrency": 128,
    "batch_size": 128,
}
ROW: dict[str, float | None] = {
    "time/total": 48.0,
    "time/training": 44.0,
    "time/trainer_waiting_for_data": 24.0,
    "batch/filtered_prompts": 0,
    "batch/filtered_prompts_pct": 0.0,
    "batch/total_prompts": 16,
    "val/total_reward_groups": 16,
    "val/sequence_lengths": 480.0,
}


def test_a_step_in_numbers() -> None:
    reading = tail(COLLECTOR, RUN)
    assert values(reading, 4) == {
        "trainer_step_seconds": 48.0,
        "trainer_wait_seconds": 24.0,
        "trainer_weight_sync_seconds": 3.0,
        "trainer_compute_seconds": 17.0,  # of 44 s of `time/training`
        "trainer_checkpoint_seconds": 2.0,
        "trainer_other_seconds": 2.0,
        "backpressure_seconds": 0.5,
        "trainer_groups": 12.0,
        "trainer_samples": 96.0,
        "trained_tokens": 46080.0,
        'trainer_tokens_per_second{basis="wall"}': 1280.0,
        'trainer_mfu_ratio{basis="wall"}': 0.3125,  # percent there
        "staleness_versions_mean": 1.5,
        "staleness_versions_max": 3.0,
        "stale_dropped_rollouts": 8.0,  # one result of eight samples
        # 4 of 16 groups: two without a solution, one all solved, one of equal partial rewards.
        "groups_zero_advantage_ratio": 0.25,
        "groups_none_solved_ratio": 0.125,
        "groups_all_solved_ratio": 0.0625,
        "filtered_groups": 4.0,
        "reward_mean": 2.5,
        "solve_ratio": 0.5,
        "response_tokens_mean": 480.0,
        "response_tokens_max": 1024.0,
        "response_tokens_min": 16.0,
        "truncation_ratio": 0.125,
        "mismatch_logprob_difference_mean": 0.0078125,
        "mismatch_logprob_difference_max": 0.5,
        "entropy_mean": 0.625,
        "clip_ratio": 0.03125,
        "loss_mean": 0.125,
        "learning_rate": 1e-6,
        "gradient_norm": 0.25,
        "gradient_nonfinite": 0.0,
    }
    assert reading.unmapped == {}
    assert {sample.step for sample in reading.samples} == set(range(1, 14))
    assert {key: reading.facts[key] for key in reading.facts if not key.startswith("lifecycle")} == {
        "framework": "open_instruct",
        "mode": "async",
        "group_size": 8.0,
        "batch_samples": 128.0,
        "max_staleness_versions": 4.0,
        "max_steps": 400.0,
        "max_response_tokens": 1024.0,
        "trainer_gpus": 4.0,
        "generator_gpus": 4.0,
        "model": "OLMo-2-1B",
        "run_name": "demo",
    }
    assert [name for name, _ in detect_path(RUN)] == ["open_instruct"]


def test_in_parts_and_live_it_is_the_same(tmp_path: Path) -> None:
    whole = collected([tail(COLLECTOR, RUN)])
    assert collected(in_parts(COLLECTOR, RUN, 1)) == whole
    assert collected(live(COLLECTOR, LOG, tmp_path / LOG.name, 2003)) == whole


def test_nothing_filtered_is_not_nothing_equal_until_the_filter_was_seen(tmp_path: Path) -> None:
    """`filter_zero_std_samples` may be off: then 0 groups are filtered, whatever their rewards."""
    first = {**ROW, "optim/grad_norm": None}
    calls = [(1, first), (2, {**ROW, "batch/filtered_prompts": 4, "batch/total_prompts": 12}), (3, ROW)]
    calls.insert(1, (1, {"eval/scores": 0.5}))
    reading = tail(COLLECTOR, write("wandb", tmp_path, calls, {"num_samples_per_prompt_rollout": 8}))
    shares = [values(reading, step).get("groups_zero_advantage_ratio") for step in (1, 2, 3)]
    assert shares == [None, 0.25, 0.0]
    assert values(reading, 1)["gradient_nonfinite"] == 1.0
    assert "gradient_norm" not in values(reading, 1)
    assert (values(reading, 3)["trainer_samples"], values(reading, 3)["trained_tokens"]) == (128.0, 61440.0)


def test_with_tools_a_response_is_not_all_trained(tmp_path: Path) -> None:
    tools = {"tools/aggregate/avg_calls_per_rollout": 2.5, "tools/aggregate/failure_rate": 0.25,
             "tools/aggregate/avg_runtime": 0.125}  # fmt: skip
    calls = [(1, {**ROW, **tools})]
    step = values(tail(COLLECTOR, write("wandb", tmp_path, calls, {"num_samples_per_prompt_rollout": 8})), 1)
    assert "trained_tokens" not in step
    told = (step["tool_calls_mean"], step["tool_failure_ratio"], step["tool_call_seconds_mean"])
    assert told == (2.5, 0.25, 0.125)


def test_one_gpu_for_both_is_colocated() -> None:
    assert open_instruct.facts({"async_steps": 1, "single_gpu_mode": True})["mode"] == "async_colocated"
    assert "mode" not in open_instruct.facts({"exp_name": "x"})


def polled(status: Any) -> Reading:
    with served({"/api/status": status}) as site:
        return asyncio.run(site.poll(COLLECTOR))


def test_the_status_page_tells_the_queue_and_is_asked_alone() -> None:
    with served({"/api/status": STATUS, "/": "dashboard"}) as site:
        reading = asyncio.run(site.poll(COLLECTOR))
    assert {sample.metric: sample.value for sample in reading.samples} == {
        "queue_groups": 6.0,
        "queue_capacity_groups": 64.0,
        "rollout_tokens_per_second": 2048.0,
    }
    assert reading.facts == {"framework": "open_instruct", "batch_samples": 128.0}  # `should_stop` is no end
    assert site.asked == [("GET", "/api/status")]


def test_what_is_not_told_is_absent() -> None:
    """An unbounded queue says 0, and so does the rate before the first sample."""
    tokens = {**STATUS["token_stats"], "decode_tokens_per_sec": 0, "sample_count": 0}
    queues = {"Inference Results Queue": {"current": 0, "maxsize": 0}}
    reading = polled({**STATUS, "queues": queues, "token_stats": tokens, "batch_size": None})
    assert [(sample.metric, sample.value) for sample in reading.samples] == [("queue_groups", 0.0)]
    assert reading.facts == {"framework": "open_instruct"}


@pytest.mark.parametrize("status", [[], {"queues": []}, {"queues": {}, "token_stats": None}, "x", 5])
def test_another_answer_is_garbage(status: Any) -> None:
    with pytest.raises(ScrapeError) as caught:
        polled(status)
    assert caught.value.kind == "garbage"


def test_watch_recognises_the_server() -> None:
    """It has no /metrics; a server of something else is not taken for it."""
    with served({"/api/status": STATUS}) as site:
        (target,) = attach(RunSettings(name="r", targets=(TargetSettings(source=site.url),))).targets
    assert (target.collector, target.actor) == ("open_instruct", "trainer")
    with served({"/api/status": {"status": "ok"}}) as site:
        assert not asyncio.run(_matches(site.url))


async def _matches(url: str) -> bool:
    async with httpx.AsyncClient(base_url=url) as client:
        return await open_instruct.matches_server(client, Limits())


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(JSON, JSON)
def test_no_status_breaks_the_reader(results: Any, tokens: Any) -> None:
    status = {"queues": {"Inference Results Queue": results}, "token_stats": tokens}
    if open_instruct._is_status(status):
        assert all(sample.value == sample.value for sample in open_instruct._gauges(status))
