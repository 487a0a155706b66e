"""verl runs: a recorded one from three sinks, its aggregated and its V1 trainers, and the traps of its keys."""

import json
from pathlib import Path
from typing import Any

import pytest

from collectors.model import Limits
from collectors.trainers import verl
from collectors.training_logs.sources import UPGRADE_READS
from tests.collectors._frameworks import counts, in_parts, live, tail, values
from tests.collectors._reading import TESTDATA, value
from tests.collectors._verl import STEP, SYNC_CONFIG, console, jsonl, lines, mode, printed

RUNS = TESTDATA / "verl"
COLLECTOR = verl.COLLECTOR


def test_the_recorded_synchronous_run() -> None:
    """Step 2 by hand, from the recorded line: seconds, tokens, ratios."""
    reading = tail(COLLECTOR, RUNS / "sync_jsonl")
    assert values(reading, 2) == pytest.approx(
        {
            "trainer_step_seconds": 69.1379145046373,
            "generation_seconds": 44.81063205278916,
            "trainer_compute_seconds": 3.7697902263664145
            + 2.6234023281631536
            + 0.13406872309170176
            + 14.007606597673888,
            "trainer_logprob_seconds": 3.7697902263664145 + 2.6234023281631536,
            "trainer_weight_sync_seconds": 1.9021420991507108,
            "trainer_other_seconds": 1.8902724774,  # of which 1.5903 is reward
            "reward_seconds": 1.590272477402264,
            "processed_tokens": 13580,
            'trainer_tokens_per_second{basis="wall"}': 13580 / 69.1379145046373,
            "policy_version": 2,
            "loss_mean": -0.023214256390929222,
            "gradient_norm": 0.24292145085778521,
            "gradient_nonfinite": 0,
            "learning_rate": 1e-6,
            "entropy_mean": 1.1963635683059692,
            "clip_ratio": 0,
            "reward_mean": 0.203125,
            "response_tokens_mean": 69.09375,
            "response_tokens_max": 153,
            "response_tokens_min": 11,
            "truncation_ratio": 0,
            "rollout_cancelled_ratio": 0,
            "prompt_tokens_mean": 37,
            "turns_mean": 5.0078125,
            "turns_max": 8,
            "tool_calls_mean": 1.7421875,
        },
        rel=1e-9,
    )
    assert reading.facts == {"framework": "verl", "times_estimated": 1.0, "usual_mode": "sync_colocated"}
    assert reading.unmapped == {}


def test_three_sinks_tell_the_same() -> None:
    """The zero-advantage share is in none of them: verl has no scalar for it."""
    readings = [tail(COLLECTOR, RUNS / name) for name in ("sync", "sync_jsonl", "sync_console")]
    for step in range(1, 11):
        board, file, text = (values(reading, step) for reading in readings)
        assert file == text
        assert board == pytest.approx(file, rel=1e-5, abs=1e-9)  # TensorBoard keeps 32-bit floats
        assert not any("zero_advantage" in name for name in file)
    assert "times_estimated" not in readings[0].facts
    first = min(sample.ts for sample in readings[0].samples)
    assert first == pytest.approx(1795247741.8358, abs=0.1)


def test_steps_without_times_end_when_the_file_was_written() -> None:
    path = RUNS / "sync_jsonl" / "sync-exp.jsonl"
    reading = tail(COLLECTOR, path, now=2e9)
    times = {sample.step: sample.ts for sample in reading.samples}
    assert times[10] == pytest.approx(path.stat().st_mtime)
    rows = {row["step"]: row["data"] for row in map(json.loads, path.read_text().splitlines())}
    assert times[10] - times[9] == pytest.approx(rows[10]["timing_s/step"])


def test_fully_async_merges_the_rows_of_a_version() -> None:
    """Version 3 is two updates: the rollouter's row, then the sums and means of the updates."""
    reading = tail(COLLECTOR, RUNS / "fully_async")
    found = values(reading, 3)
    assert found["trainer_wait_seconds"] == 12.5869  # timing_s/gen
    assert "generation_seconds" not in found
    assert found["trainer_weight_sync_seconds"] == 1.6901  # timing_s/timing_s/param_sync
    assert found["trainer_compute_seconds"] == pytest.approx(2.99 + 0.1142 + 13.2178)
    assert found["trainer_other_seconds"] == pytest.approx(32.7049 - 12.5869 - 16.322 - 1.6901)
    assert found["backpressure_seconds"] == pytest.approx(19.7578 - 13.7554)
    assert found["mixed_version_ratio"] == 0.3088
    assert found["effective_sample_ratio"] == 0.85405
    assert found["trainer_peak_memory_bytes"] == 61.5 * 2**30
    assert found["tool_call_seconds_mean"] == 3.624 / 2
    assert (found["policy_version"], reading.facts["mode"]) == (2, "async")
    # Without a configuration the size of a group is not known.
    assert (found["queue_groups"], found["queue_capacity_groups"]) == (21, 48)
    assert found["trainer_groups"] == (5 - 3) * 16
    assert not {"queue_samples", "trainer_samples", "in_flight_rollouts", "stale_dropped_rollouts"} & found.keys()
    assert "staleness_versions_mean" not in found
    assert set(counts([reading], "trainer_step_seconds").values()) == {1}


def test_fully_async_in_samples_with_its_configuration() -> None:
    reading = tail(COLLECTOR, RUNS / "fully_async_console")
    found = values(reading, 3)
    assert (found["queue_samples"], found["queue_capacity_samples"]) == (21 * 8, 48 * 8)
    assert found['in_flight_rollouts{state="generating"}'] == 40.5 * 8
    assert found["trainer_samples"] == 32 * 8 == reading.facts["batch_samples"]
    assert found["stale_dropped_rollouts"] == (3 - 0) * 8  # of the total
    expected = {
        "framework": "verl", "mode": "async", "group_size": 8, "batch_samples": 256, "max_response_tokens": 4096,
        "trainer_gpus": 8, "generator_gpus": 8, "model": "Qwen3-4B", "run_name": "fully-async", "times_estimated": 1,
    }  # fmt: skip
    assert reading.facts == expected


def test_the_rollouters_statistics_are_gauges_of_the_moment() -> None:
    reading = tail(COLLECTOR, RUNS / "fully_async_console")
    queue = [sample for sample in reading.samples if sample.metric == "queue_samples" and sample.step is None]
    assert [sample.value for sample in queue] == [23 * 8, 23 * 8]
    flying = [s.value for s in reading.samples if s.metric == "in_flight_rollouts" and s.step is None]
    assert flying == [59 * 8, 35 * 8]


def test_the_replay_buffers_line_is_a_gauge(tmp_path: Path) -> None:
    path = console(tmp_path, mode("separate_async"), {1: STEP})
    with (path / "console.log").open("a") as file:
        file.write("(TaskRunner pid=12) INFO:x:pending: 5, running: 7, finished: 9, failure: 0\n")
    reading = tail(COLLECTOR, tmp_path)
    assert value(reading, "queue_samples") == 9 * 4
    assert value(reading, "in_flight_rollouts", (("state", "generating"),)) == 7 * 4


def test_v1_counts_staleness_from_the_oldest_weights() -> None:
    reading = tail(COLLECTOR, RUNS / "separate_async")
    found = values(reading, 3)
    assert (found["staleness_versions_mean"], found["staleness_versions_max"]) == (0.75, 2)
    assert (found["staleness_in_queue_versions_mean"], found["staleness_in_queue_versions_max"]) == (0.5, 1)
    assert (found["staleness_in_flight_versions_mean"], found["staleness_in_flight_versions_max"]) == (0.25, 1)
    assert found["trainer_wait_seconds"] == pytest.approx(7.6261 + 2.5)  # its GPUs were lent to generation
    assert (found["queue_groups"], found['trainer_mfu_ratio{basis="busy"}']) == (23, 0.25)
    assert (found["policy_version"], reading.facts["mode"]) == (3, "async")
    four = values(reading, 4)
    assert four["trainer_checkpoint_seconds"] > 3
    phases = ("wait", "compute", "weight_sync", "checkpoint", "other")
    assert four["trainer_step_seconds"] == pytest.approx(sum(four[f"trainer_{phase}_seconds"] for phase in phases))
    assert values(reading, 6)["trainer_eval_seconds"] > 20  # beside the step, not in it


def test_a_gradient_that_is_none_is_a_finding() -> None:
    reading = tail(COLLECTOR, RUNS / "separate_async")
    assert [values(reading, step)["gradient_nonfinite"] for step in (4, 5, 6)] == [0, 1, 0]
    assert "gradient_norm" not in values(reading, 5)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        (SYNC_CONFIG, "sync_colocated"),
        (mode("colocate_async"), "async_colocated"),
        (mode("separate_async"), "async"),
        ({**SYNC_CONFIG, "actor_rollout_ref": {"hybrid_engine": False, "rollout": {"n": 4}}}, "one_step"),
        ({**SYNC_CONFIG, "trainer": {"use_v1": False, "v1": {"trainer_mode": "separate_async"}}}, "sync_colocated"),
    ],
)
def test_the_mode_is_the_configurations(config: dict[str, Any], expected: str, tmp_path: Path) -> None:
    reading = tail(COLLECTOR, console(tmp_path, config, {1: STEP}))
    assert reading.facts["mode"] == expected
    fetch = "generation_seconds" if expected == "sync_colocated" else "trainer_wait_seconds"
    assert values(reading, 1)[fetch] == 12
    assert ("trainer_wait_seconds" in values(reading, 1)) == (fetch == "trainer_wait_seconds")


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ({"timing_s/sync_rollout_weights": 1.0, "timing_s/update_weights": 0.9}, "one_step"),
        ({"separate_async/switch/idle": 1.0}, "async"),
        ({"training/off_policy/trajectory_staleness_worst/max": 1}, "async"),
        ({"training/off_policy/trajectory_staleness_worst/max": 0}, ""),
    ],
)
def test_without_one_the_rows_tell(rows: dict[str, float], expected: str, tmp_path: Path) -> None:
    reading = tail(COLLECTOR, jsonl(tmp_path, {1: {**STEP, **rows}}))
    assert reading.facts.get("mode", "") == expected


def test_one_step_syncs_within_and_saves_after_its_step(tmp_path: Path) -> None:
    """The outer timer of the weight sync holds the inner one."""
    rows = {"timing_s/sync_rollout_weights": 1.0, "timing_s/update_weights": 0.75, "timing_s/save_checkpoint": 1.5}
    found = values(tail(COLLECTOR, jsonl(tmp_path, {1: {**STEP, **rows, "timing_s/step": 22.0}})), 1)
    assert found["trainer_weight_sync_seconds"] == 1
    assert found["trainer_other_seconds"] == 22 - 12 - 7 - 1
    assert found["trainer_checkpoint_seconds"] == 1.5
    assert found["trainer_step_seconds"] == 22 + 1.5  # as the phases together


def test_the_delta_engine_counts_what_it_sends_in_mebibytes(tmp_path: Path) -> None:
    rows = {"timing_s/update_weights": 1.0, "checkpoint_engine/payload_mbytes": 512.0}
    found = tail(COLLECTOR, jsonl(tmp_path, {1: {**STEP, **rows, "checkpoint_engine/flushes": 2.0}}))
    assert values(found, 1)["weight_sync_bytes"] == 536_870_912
    assert found.unmapped == {}


def test_facts_of_a_configuration(tmp_path: Path) -> None:
    facts = tail(COLLECTOR, console(tmp_path, mode("separate_async"), {1: STEP})).facts
    assert facts["max_staleness_versions"] == 8
    assert (facts["group_size"], facts["batch_samples"], facts["max_steps"]) == (4, 64, 3)
    assert (facts["trainer_gpus"], facts["model"], facts["run_name"]) == (16, "Qwen3-4B", "exp")
    assert "generator_gpus" not in facts  # nnodes is 0 there


def test_the_configuration_a_job_printed_beside_its_metrics(tmp_path: Path) -> None:
    """TensorBoard and the JSON lines have none of their own."""
    jsonl(console(tmp_path, mode("separate_async"), {1: STEP}), {1: STEP})
    reading = tail(COLLECTOR, tmp_path)
    assert (reading.facts["mode"], reading.facts["group_size"], reading.facts["run_name"]) == ("async", 4, "exp")
    assert values(reading, 1)["trainer_samples"] == 64
    (tmp_path / "other.log").write_text("\n".join(printed(SYNC_CONFIG, {1: STEP})) + "\n")
    assert "group_size" not in tail(COLLECTOR, tmp_path).facts  # whose run is it?


def test_stale_groups_are_none_where_v1_says_nothing(tmp_path: Path) -> None:
    stale = {"training/off_policy/trajectory_staleness_worst/max": 1}
    rows = {1: {**STEP, **stale}, 2: {**STEP, **stale, "training/off_policy/evicted_samples": 3}}
    reading = tail(COLLECTOR, console(tmp_path, mode("separate_async"), rows))
    assert [values(reading, step)["stale_dropped_rollouts"] for step in (1, 2)] == [0, 12]
    assert "stale_dropped_rollouts" not in values(tail(COLLECTOR, RUNS / "sync_jsonl"), 2)


def test_groups_without_a_gradient_are_known_with_filters_only(tmp_path: Path) -> None:
    filtered = {"training/filter_groups/evicted_samples": 24, "training/filter_groups/discarded_surplus_samples": 8}
    rows = {1: STEP, 2: {**STEP, **filtered}, 3: STEP}
    reading = tail(COLLECTOR, console(tmp_path, SYNC_CONFIG, rows))
    ratios = [values(reading, step).get("groups_zero_advantage_ratio") for step in (1, 2, 3)]
    assert ratios == [None, 24 / (24 + 8 + 16), 0]
    assert [values(reading, step).get("filtered_groups") for step in (1, 2, 3)] == [None, 24, 0]
    assert reading.facts["lifecycle"] == "finished"  # step 3 of 3


def test_without_the_batch_size_their_share_is_unknown(tmp_path: Path) -> None:
    found = values(tail(COLLECTOR, jsonl(tmp_path, {1: {**STEP, "training/filter_groups/evicted_samples": 24}})), 1)
    assert found["filtered_groups"] == 24
    assert "groups_zero_advantage_ratio" not in found


def test_agent_loops_and_verl_tool(tmp_path: Path) -> None:
    loop = {
        "timing_s/agent_loop/generate_sequences/mean": 8.0,
        "timing_s/agent_loop/tool_calls/mean": 3.0,
        "timing_s/agent_loop/compute_score/mean": 0.5,
        "timing_s/agent_loop/slowest/tool_calls": 30.0,
        "tool_call_counts/mean": 1.5,
    }
    tool = {
        "verl_tool/tool_call_success/mean": 0.75,
        "verl_tool/valid_action/mean": 2.5,
        "verl_tool/tool_processing_time_sec/mean": 4.0,
        "verl_tool/turn_1_action_logp/mean": -1.0,
    }
    reading = tail(COLLECTOR, jsonl(tmp_path, {1: {**STEP, **loop}, 2: {**STEP, **tool}}))
    one, two = values(reading, 1), values(reading, 2)
    assert (one["rollout_model_seconds_mean"], one["rollout_harness_seconds_mean"]) == (8, 3)
    assert (one["rollout_scoring_seconds_mean"], one["tool_calls_mean"], one["tool_call_seconds_mean"]) == (0.5, 1.5, 2)
    assert (two["tool_failure_ratio"], two["tool_calls_mean"], two["rollout_harness_seconds_mean"]) == (0.25, 2.5, 4)
    assert reading.unmapped == {}


def test_a_renamed_key_is_seen(tmp_path: Path) -> None:
    reading = tail(COLLECTOR, jsonl(tmp_path, {1: {**STEP, "timing_s/dreaming": 1.0}}))
    assert reading.unmapped == {"timing_s/dreaming": 1}


def test_live_every_value_comes_once(tmp_path: Path) -> None:
    source = RUNS / "fully_async_console" / "console.log"
    readings = live(COLLECTOR, source, tmp_path / "console.log")
    whole = tail(COLLECTOR, source)
    for step in range(1, 15):
        found: dict[str, float] = {}
        for reading in readings:
            found |= values(reading, step)
        assert found == values(whole, step)
    assert set(counts(readings, "trainer_step_seconds").values()) == {1}
    assert len([s for r in readings for s in r.samples if s.step is None]) == 8


@pytest.mark.parametrize(
    ("name", "rows"),
    [("sync_jsonl", 7), ("fully_async", 7), ("separate_async", 5), ("fully_async_console", 45), ("sync", 7)],
)
def test_in_parts_it_is_the_same(name: str, rows: int) -> None:
    readings, whole = in_parts(COLLECTOR, RUNS / name, rows), tail(COLLECTOR, RUNS / name)
    steps = {sample.step for sample in whole.samples if sample.step is not None}
    for step in steps:
        found: dict[str, float] = {}
        for reading in readings:
            found |= values(reading, step)
        assert found == values(whole, step)


def test_a_restart_truncates_the_file(tmp_path: Path) -> None:
    """The run is resumed from step 2, and the file begins anew with step 3."""
    path = jsonl(tmp_path, {step: STEP for step in range(1, 6)})
    first = tail(COLLECTOR, path)
    jsonl(tmp_path, {step: {**STEP, "timing_s/gen": 3.0} for step in (3, 4)})
    second = tail(COLLECTOR, path, first.cursor)
    assert sorted(counts([second], "trainer_step_seconds")) == [3, 4]
    assert values(second, 3)["generation_seconds"] == 3
    assert tail(COLLECTOR, path, second.cursor).samples == ()


def test_a_torn_line_is_counted(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {1: STEP})
    with (path / "exp.jsonl").open("a") as file:
        file.write('{"step": 2, "da\n{"step": "x", "data": {}}\n{"step": true, "data": {}}\n' + lines({3: STEP}))
    reading = tail(COLLECTOR, path)
    assert sorted(counts([reading], "trainer_step_seconds")) == [1, 3]
    assert reading.dropped == 3


def test_the_last_words_end_the_run(tmp_path: Path) -> None:
    path = console(tmp_path, {}, {1: STEP})
    with (path / "console.log").open("a") as file:
        file.write("(TaskRunner pid=12) \"Final validation metrics: {'val-core/x': 0.5}\"\n")
    assert tail(COLLECTOR, path).facts["lifecycle"] == "finished"


PRINTED = "{'actor_rollout_ref': {'rollout': {'n': 8}}, 'data': {'train_batch_size': 4}}"


def test_the_loggers_file_is_taken_once_it_has_a_step_where_the_printed_log_has_none(tmp_path: Path) -> None:
    """`trainer.logger=['file']`: the configuration is printed minutes before the first line is logged."""
    (tmp_path / "train.log").write_text(
        "{'actor_rollout_ref': {'rollout': {'n': 8}}, 'data': {'train_batch_size': 4}}\n"
    )
    assert COLLECTOR.tail is not None
    first = COLLECTOR.tail(tmp_path, {}, Limits(), 1e9)
    assert (first.reader, first.samples, first.facts["batch_samples"]) == ("console train.log", (), 32.0)
    lines = [{"step": n, "data": {"timing_s/step": 10.0 * n, "timing_s/gen": 4.0}} for n in (1, 2)]
    logged = tmp_path / "run.jsonl"
    logged.write_text("".join(json.dumps(line) + "\n" for line in lines))
    second = COLLECTOR.tail(tmp_path, json.loads(json.dumps(first.cursor)), Limits(), 1e9)
    seconds = [sample.value for sample in second.samples if sample.metric == "trainer_step_seconds"]
    assert (second.reader, seconds) == ("jsonl run.jsonl", [10.0, 20.0])


def test_a_better_log_replaces_a_printed_log_with_steps_in_the_first_half_hour_only(tmp_path: Path) -> None:
    text = (
        "{'actor_rollout_ref': {'rollout': {'n': 8}}, 'data': {'train_batch_size': 4}}\nstep:1 - timing_s/step:10.0\n"
    )
    (tmp_path / "train.log").write_text(text)
    assert COLLECTOR.tail is not None
    first = COLLECTOR.tail(tmp_path, {}, Limits(), 1e9)
    (tmp_path / "run.jsonl").write_text(json.dumps({"step": 1, "data": {"timing_s/step": 10.0}}) + "\n")
    cursor = json.loads(json.dumps(first.cursor))
    assert COLLECTOR.tail(tmp_path, cursor, Limits(), 1e9).reader == "jsonl run.jsonl"
    late = {**cursor, "source": {**cursor["source"], "looks": UPGRADE_READS}}
    assert COLLECTOR.tail(tmp_path, late, Limits(), 1e9).reader == "console train.log"
