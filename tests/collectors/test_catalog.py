"""The vocabulary keeps its own rules."""

import re

import pytest

from collectors import catalog
from collectors.catalog import METRICS

# Unit word -> the suffix a name must carry (before a statistic or _total).
SUFFIXES = {"seconds": "_seconds", "tokens": "_tokens", "versions": "_version", "ratio": "_ratio", "bytes": "_bytes"}


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_names_say_their_unit(metric) -> None:
    assert re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", metric.name)
    assert metric.help.endswith(".")
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    # The prefix cache's are Prometheus' established names, counted in tokens all the same; a learning rate is no rate.
    if not metric.name.startswith("prefix_cache_"):
        assert SUFFIXES.get(metric.unit, "") in metric.name
    assert metric.name == "learning_rate" or not re.search(r"_(ms|pct|percent|rate|minutes)\b", metric.name)


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_kind_and_reduction_agree(metric) -> None:
    assert (metric.reduction == "cumulative") == (metric.kind in ("counter", "histogram"))


def test_no_name_twice() -> None:
    tables = (
        catalog.TRAINER_ROWS,
        catalog.ROLLOUT_ROWS,
        catalog.GENERATOR_ROWS,
        catalog.ROUTER_ROWS,
        catalog.HARDWARE_ROWS,
        catalog.SANDBOX_ROWS,
    )
    assert len(METRICS) == sum(map(len, tables))


RELIED_ON = """
trainer_step_seconds trainer_wait_seconds trainer_compute_seconds trainer_weight_sync_seconds
trainer_checkpoint_seconds trainer_other_seconds trainer_mfu_ratio trained_tokens trainer_samples
staleness_versions_mean staleness_versions_max staleness_in_flight_versions_mean
staleness_in_queue_versions_mean stale_dropped_rollouts groups_zero_advantage_ratio groups_all_solved_ratio
groups_none_solved_ratio groups_mixed_ratio reward_mean reward_std response_tokens_mean response_tokens_max
response_tokens_p90 prompt_tokens_mean truncation_ratio turns_mean tool_calls_mean entropy_mean mismatch_kl_mean
policy_version gradient_norm loss_mean rollout_error_ratio dispatch_gate_wait_seconds generation_seconds
reward_seconds queue_samples queue_capacity_samples in_flight_rollouts generator_requests_running
generator_requests_waiting generator_requests_waiting_by_reason kv_cache_usage_ratio kv_cache_capacity_tokens
kv_concurrency_limit generator_asleep generator_requests_finished_total generator_tokens_total
generator_prompt_tokens_total generator_preemptions_total prefix_cache_queries_total prefix_cache_hits_total
generator_response_tokens generator_prompt_tokens time_to_first_token_seconds inter_token_latency_seconds
e2e_request_seconds generator_queue_seconds generator_prefill_seconds generator_decode_seconds
"""


@pytest.mark.parametrize("name", RELIED_ON.split())
def test_names_the_signals_rely_on(name: str) -> None:
    assert name in METRICS
