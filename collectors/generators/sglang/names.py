"""Tables that map SGLang's metric names to ours, by version (srt/observability/metrics_collector.py, 0.4.3 to 0.5.23).

Names are without `sglang:` and without `_total`. Counters updated at the end of a request (`generation_tokens`) lag by
a whole response; those of each log interval (`realtime_tokens`) have precedence.
"""

from collections.abc import Mapping
from dataclasses import replace

from collectors.engine_pages import prefix_cache
from collectors.engine_pages.pages import MetricRule


def _each(label: str, *rows: tuple[str, MetricRule]) -> MetricRule:
    """Rows of one family, each for one value of a label."""
    chained: MetricRule | None = None
    for value, rule in rows:
        chained = replace(rule, only=((label, value),), also=chained)
    assert chained is not None
    return chained


def _waiting(reason: str) -> MetricRule:
    return MetricRule("generator_requests_waiting_by_reason", put=(("reason", reason),))


def _prompt(source: str) -> MetricRule:
    return MetricRule("generator_prompt_tokens_by_source_total", fold="sum", put=(("source", source),))


_PROMPT = MetricRule("generator_prompt_tokens_total", fold="sum")
_GENERATED = MetricRule("generator_tokens_total", fold="sum")
# A mode appears with its first token. Adding 0 for the other modes yields 0 generated tokens before the first one.
_NONE_YET = replace(_GENERATED, scale=0.0)
_QUERIES = MetricRule(prefix_cache.QUERIES, fold="sum")
_HITS = MetricRule(prefix_cache.HITS, fold="sum")
_ENDED_QUERIES = MetricRule("prefix_cache_queries_total", fold="sum")

VALUES: Mapping[str, MetricRule] = {
    "num_running_reqs": MetricRule("generator_requests_running"),
    "num_queue_reqs": MetricRule("generator_requests_waiting"),
    "num_waiting_reqs": MetricRule("generator_requests_waiting", rank=1),  # /v1/loads
    "max_running_requests": MetricRule("generator_request_limit"),  # /v1/loads
    # Additional queues: grammar compilation, and transfers between prefill and decode engines.
    "num_grammar_queue_reqs": _waiting("grammar"),
    "num_prefill_bootstrap_queue_reqs": _waiting("prefill_bootstrap"),
    "num_prefill_prealloc_queue_reqs": replace(_waiting("prefill_bootstrap"), rank=1),  # to 0.5.9
    "num_prefill_inflight_queue_reqs": _waiting("prefill_inflight"),
    "num_prefill_infight_queue_reqs": replace(_waiting("prefill_inflight"), rank=1),  # SGLang's typo, to 0.5.1
    "num_decode_prealloc_queue_reqs": _waiting("decode_prealloc"),
    "num_decode_transfer_queue_reqs": _waiting("decode_transfer"),
    # Counts since the previous log line and is then reset: it shows that there was a pause, not when.
    "num_paused_reqs": MetricRule("generator_requests_paused"),
    "queues_paused": MetricRule("generator_requests_paused", rank=1),  # /v1/loads
    "gen_throughput": MetricRule("generator_token_throughput"),
    "token_usage": MetricRule("kv_cache_usage_ratio"),  # the fullest of several pools
    "max_total_num_tokens": MetricRule("kv_cache_capacity_tokens"),  # 0.5.6
    "num_used_tokens": MetricRule("kv_cache_used_tokens"),
    "kv_used_tokens": MetricRule("kv_cache_used_tokens", rank=1),
    "context_len": MetricRule("generator_max_sequence_tokens"),
    "decode_sum_seq_lens": MetricRule("live_sequence_tokens"),  # 0.5.9
    "cache_hit_rate": MetricRule("prefix_cache_hit_ratio"),
    "avg_request_queue_latency": MetricRule("generator_queue_seconds_mean"),  # 0.4.6 to 0.5.1
    "spec_accept_rate": MetricRule("speculative_accept_ratio"),
    "weight_load_duration_seconds": MetricRule("generator_weight_load_seconds", "source"),  # 0.5.16
    # Counters, live.
    "num_retracted_requests": MetricRule("generator_preemptions_total"),  # 0.5.9
    "total_retracted_reqs": MetricRule("generator_preemptions_total", rank=1),  # a gauge, 0.4.10 to 0.5.1
    "scheduler_idle_seconds": MetricRule("generator_idle_seconds_total"),  # 0.5.23
    "realtime_tokens": _each(
        "mode",
        ("decode", _GENERATED),
        ("prefill_compute", _PROMPT),
        ("prefill_compute", _prompt("local_compute")),
        ("prefill_compute", _NONE_YET),
        ("prefill_cache", _PROMPT),
        ("prefill_cache", _prompt("local_cache_hit")),
        ("prefill_cache", _NONE_YET),
    ),
    # The hit rate is all hits divided by all modes; "input" is the computed part.
    "prefill_effective_tokens": _each(
        "mode",
        ("input", _QUERIES),
        *((f"{tier}_hit", row) for tier in ("device", "host", "storage") for row in (_QUERIES, _HITS)),
    ),
    # Counters that are updated at the end of a request.
    "generation_tokens": replace(_GENERATED, rank=1),
    "prompt_tokens": replace(_PROMPT, rank=1, also=_ENDED_QUERIES),
    # Each request adds either to device, host and storage, or to total.
    "cached_tokens": MetricRule("prefix_cache_hits_total", fold="sum"),
    "num_requests": MetricRule("generator_requests_finished_total", fold="sum"),
    "num_aborted_requests": MetricRule("generator_requests_aborted_total", fold="sum"),
    "estimated_flops_per_gpu": MetricRule("generator_flops_total"),
}

COUNTERS = frozenset(name for name, rule in VALUES.items() if rule.metric.endswith("_total"))

HISTOGRAMS: Mapping[str, MetricRule] = {
    "generation_tokens_histogram": MetricRule("generator_response_tokens", fold="sum"),
    "prompt_tokens_histogram": MetricRule("generator_prompt_tokens", fold="sum"),
    "num_retractions": MetricRule("generator_request_preemptions", fold="sum"),  # 0.5.6 to 0.5.9
    "time_to_first_token_seconds": MetricRule("time_to_first_token_seconds", fold="sum"),
    "inter_token_latency_seconds": MetricRule("inter_token_latency_seconds", fold="sum"),  # 0.4.6
    "time_per_output_token_seconds": MetricRule("inter_token_latency_seconds", rank=1, fold="sum"),  # 0.4.3
    "request_time_per_output_token_seconds": MetricRule("request_time_per_token_seconds", fold="sum"),
    "e2e_request_latency_seconds": MetricRule("e2e_request_seconds", fold="sum"),
    "queue_time_seconds": MetricRule("generator_queue_seconds", fold="sum"),  # 0.5.4
    "per_stage_req_latency_seconds": MetricRule("generator_prefill_seconds", only=(("stage", "prefill_forward"),)),
}

# Constant 0 or -1 (metrics_reporter.py); reset with each log line; parts of `token_usage`, which is their maximum.
USELESS = frozenset({"utilization", "num_retracted_reqs", "full_token_usage", "swa_token_usage", "mamba_usage"})

# Routes of srt/entrypoints/http_server.py that control generation or change the weights.
CALLS: Mapping[str, str] = {
    "/pause_generation": "pause",
    "/continue_generation": "resume",
    "/release_memory_occupation": "sleep",
    "/resume_memory_occupation": "wake_up",
    "/begin_weight_update": "update_weights_begin",
    "/update_weights_from_disk": "update_weights",
    "/update_weights_from_tensor": "update_weights",
    "/update_weights_from_distributed": "update_weights",
    "/update_weights_from_ipc": "update_weights",
    "/end_weight_update": "update_weights_finish",
    "/update_weight_version": "update_weight_version",
    "/flush_cache": "reset_prefix_cache",
    "/load_lora_adapter": "load_lora_adapter",
}

# With `--enable-metrics-for-all-schedulers` each rank exports the same values.
COPY_LABELS = ("pp_rank", "tp_rank", "moe_ep_rank")
