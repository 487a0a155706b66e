"""The table of signals by frameworks matches the registries and the recorded runs."""

import re

import pytest

import collectors
from collectors.catalog import METRICS
from collectors.model import Collector
from server import signals
from server.signals import availability, recorded
from server.signals.availability import cells, frameworks, items
from server.signals.labels import LABELS
from tests.recorded import observed, report, runs

# Declared signals without a value in the recorded runs, with the reason; the collectors' own tests check them.
# Signals that a few recorded runs lack: of evaluations and trends, and of the parts of a weight update.
RARE: dict[str, set[str]] = {
    **{name: {"evaluation_score"} for name in ("open_instruct", "prime_rl", "roll", "trl")},
    "skyrl": {"reward_rise_tokens"},
    **{name: {"importance_ratio", "weight_sync_bandwidth"} for name in ("miles", "slime")},
    "nemo_rl": {"evaluation_score", "weight_sync_part_seconds"},
    "tunix": {"reward_rise"},
    "verl": {"weight_sync_bandwidth"},
}
NOT_RECORDED: dict[str, set[str]] = {
    # TensorBoard has no configuration with the bound; the recipe has one turn.
    "areal": {"staleness_bound_ratio", "turns"},
    # The queue is on the API server.
    "atropos": {"queue_arrivals_samples_per_second", "queue_batches", "queue_samples", "queue_samples_now"},
    # The dashboard's and the event log's runs: in flight is in the console only, turns behind an option.
    "miles": {"in_flight_ratio", "in_flight_rollouts", "rollouts_in_flight", "staleness_bound_ratio", "turns"},
    # Neither log has the configuration (the group size).
    "ms_swift": {"zero_advantage_groups"},
    # TensorBoard has no configuration (the group size); the rest is logged by the SingleController.
    "nemo_rl": {
        "in_flight_ratio",
        "discarded_rollout_ratio",
        "failure_ratio",
        "in_flight_rollouts",
        "rollouts_in_flight",
        "queue_batches",
        "queue_samples",
        "queue_samples_now",
        "zero_advantage_group_ratio",
        "zero_advantage_groups",
        "zero_advantage_low_ratio",
        "zero_advantage_ratio",
    },
    # The queues are on the status page; the recorded run has no tools.
    "open_instruct": {
        "rollout_phase_seconds",
        "failure_ratio",
        "queue_batches",
        "queue_samples",
        "queue_samples_now",
        "tool_calls",
    },
    # Only in agentic runs; the recorded one is RLVR, without batch or group size.
    "roll": {"turns", "zero_advantage_groups"},
    # The printed log without a configuration (mode, group size); single-turn.
    "oat": {
        "compute_capacity_samples_per_second",
        "scoring_busy_ratio",
        "staleness_versions",
        "trainer_samples_per_second",
        "turns",
        "zero_advantage_group_ratio",
        "zero_advantage_low_ratio",
        "zero_advantage_ratio",
    },
    # The recorded synchronous run has no configuration, which states the mode; an asynchronous run logs no versions.
    "openrlhf": {"staleness_versions"},
    # The bound is a fact from the user: `finetune.max_lag` is in samples.
    "pipeline_rl": {"staleness_bound_ratio"},
    # The recorded folder lacks the orchestrator's log and its aggregates.
    "prime_rl": {
        "clip_ratio",  # its metrics hold no `is_masked/*`
        "in_flight_ratio",
        "rollout_phase_seconds",
        "failure_ratio",
        "in_flight_rollouts",
        "rollouts_in_flight",
        "queue_batches",
        "queue_samples",
        "queue_samples_now",
        "response_tokens",
        "staleness_bound_ratio",
        "truncation_ratio",
        "turns",
        "zero_advantage_group_ratio",
        "zero_advantage_groups",
        "zero_advantage_low_ratio",
        "zero_advantage_ratio",
    },
    # The bound is in a configuration that TensorBoard does not store; tokens are in newer versions only.
    "skyrl": {"staleness_bound_ratio", "trained_tokens_total"},
    # The recorded synchronous runs have no arguments, which show the mode.
    "slime": {"in_flight_ratio", "staleness_versions", "turns"},
    # Waiting is reported only for steps that were watched.
    "tinker_cookbook": {
        "queue_arrivals_samples_per_second",
        "capacity_samples_per_second",
        "trainer_wait_ratio",
        "trainer_wait_seconds_total",
    },
    # Batch and bound are in wandb's configuration; the recorded run has the console log.
    "torchforge": {
        "compute_capacity_samples_per_second",
        "queue_arrivals_samples_per_second",
        "capacity_samples_per_second",
        "staleness_bound_ratio",
        "trainer_samples_per_second",
    },
    # The recorded log has no configuration with the batch, and no `clip_ratio`.
    "tunix": {
        "compute_capacity_samples_per_second",
        "rollout_phase_seconds",
        "trainer_samples_per_second",
        "truncation_ratio",
    },
    # A task without tools.
    "trl": {"generation_held_ratio", "failure_ratio", "mismatch_logprob_difference", "tool_calls"},
    # Runs without filtered groups, tools that fail or a bound in the configuration.
    "verl": {
        "failure_ratio",
        "staleness_bound_ratio",
        "zero_advantage_group_ratio",
        "zero_advantage_groups",
        "zero_advantage_low_ratio",
        "zero_advantage_ratio",
    },
    # A page, read over HTTP.
    "verl_transfer_queue": {"queue_batches", "queue_samples", "queue_samples_now"},
}


@pytest.mark.parametrize("collector", frameworks(), ids=lambda one: one.name)
def test_recorded_runs_have_the_declared_signals(collector: Collector) -> None:
    claimed = {name for name, cell in cells(collector.name).items() if cell in ("native", "derived")}
    seen = observed(collector.name)
    assert seen - claimed == set(), "a recorded run has a value that the table calls unknown"
    assert claimed - seen - RARE.get(collector.name, set()) == NOT_RECORDED.get(collector.name, set())


@pytest.mark.parametrize("path", runs(), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_run_reports_nothing_its_collector_does_not_declare(path) -> None:  # type: ignore[no-untyped-def]
    for seen in report(path).seen:
        gives = collectors.load()[seen.target.collector].gives
        assert seen.metrics - {metric for metric, _ in gives} == set()


@pytest.mark.parametrize("path", runs(), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_labels_of_signals_are_documented(path) -> None:  # type: ignore[no-untyped-def]
    for line in report(path).lines:
        name, _, labels = line.name.partition("{")
        assert set(re.findall(r'(\w+)="', labels)) <= set(LABELS.get(name, ())), line.name


def test_every_format_of_records_declares_what_follows_from_it() -> None:
    follow = {item.name for item in signals.load() if isinstance(item, signals.Signal) and item.records}
    assert set(recorded.REQUIRED) == follow
    for name in collectors.record_formats():
        assert "reward" in recorded.available_signals(collectors.load()[name].record_fields), name
    assert len(collectors.record_formats()) == 12


def test_what_follows_from_fields() -> None:
    assert set(recorded.available_signals(("reward", "group_id", "consumptions"))) == {
        "production_samples_per_second", "reward", "rollout_exit_ratio", "solve_ratio", "solve_band_ratio",
        "zero_advantage_ratio", "zero_advantage_group_ratio", "zero_advantage_groups", "zero_advantage_low_ratio",
    }  # fmt: skip
    fields = ("version_start", "consumptions")
    assert recorded.missing_fields("mixed_version_ratio", fields) == ("version_finish",)
    assert recorded.missing_fields("zero_advantage_ratio", fields) == ("group_id", "reward")
    assert recorded.missing_fields("staleness_versions", fields) == ()
    # A sample of the rollouts has rewards, but not their number.
    assert recorded.available_signals(("reward", "finished_at", "failures", "sampled")) == ["reward"]
    assert list(availability.of_records(collectors.load()["verl_rollouts"]))[:3] == [
        "gives, where the run logs it: production_samples_per_second, reward, rollout_exit_ratio, solve_band_ratio, "
        "solve_ratio, zero_advantage_environment_ratio, zero_advantage_group_ratio, zero_advantage_groups, "
        "zero_advantage_low_ratio, zero_advantage_ratio",
        "does not give discarded_rollout_ratio, infra_failure_ratio: its records do not contain failures",
        "does not give drift_baseline, drift_since_step, drift_slope_ratio, response_length_drift_ratio, "
        "response_tokens, tail_index_ratio: its records do not contain response_tokens",
    ]


def test_cells_have_the_expected_text() -> None:
    assert {name: cells("trl")[name] for name in ("trainer_wait_ratio", "queue_samples", "zero_advantage_ratio")} == {
        "trainer_wait_ratio": "native",
        "queue_samples": "native",
        "zero_advantage_ratio": "native",
    }
    verl = cells("verl")
    assert (verl["trainer_step_seconds"], verl["trainer_wait_ratio"], verl["trainer_mfu_ratio"]) == (
        "native", "derived", "native",
    )  # fmt: skip
    # OpenRLHF logs neither queue nor staleness; a synchronous run's staleness is 0.
    openrlhf = cells("openrlhf")
    assert (openrlhf["queue_samples"], openrlhf["staleness_versions"], openrlhf["trainer_mfu_ratio"]) == (
        "-", "derived", "-",
    )  # fmt: skip
    # OAT's log has no asynchronous rounds, so there is no queue.
    assert (cells("oat")["queue_samples"], cells("oat")["trainer_wait_ratio"]) == ("n/a", "n/a")
    # Groups without the number of samples: the configuration is needed.
    assert cells("skyrl")["queue_samples"] == "derived"
    # wandb has versions behind under other names only; the streams have them.
    assert cells("pipeline_rl")["staleness_versions"] == "derived"


def test_every_hint_is_of_a_metric_the_framework_can_give() -> None:
    for collector in frameworks():
        assert collector.hints.keys() <= METRICS.keys(), collector.name
        assert all(re.fullmatch(r"[^\n]{10,120}", how) for how in collector.hints.values())


def test_every_framework_and_every_signal_is_in_the_table() -> None:
    lines = availability.table().splitlines()
    assert lines[0].count("`") == 2 * len(frameworks())
    assert [line.split("`")[1] for line in lines[2:]] == [item.name for item in items()]
