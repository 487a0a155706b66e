"""SGLang's metric names by version -> ours. Tables only (srt/observability/metrics_collector.py, 0.4.3 to 0.5.23).

Names without `sglang:` and without `_total`. Counters at a request's end (`generation_tokens`) lag by a whole
response; those of each log interval (`realtime_tokens`) come first where a page has them.
"""

from collections.abc import Mapping
from dataclasses import replace

from collectors.engine_pages import prefix_cache
from collectors.engine_pages.pages import Take


def _each(label: str, *rows: tuple[str, Take]) -> Take:
    """One family's rows, each for one value of a label."""
    first: Take | None = None
    for value, take in rows:
        first = replace(take, only=((label, value),), also=first)
    assert first is not None
    return first


def _waiting(reason: str) -> Take:
    return Take("generator_requests_waiting_by_reason", put=(("reason", reason),))


def _prompt(source: str) -> Take:
    return Take("generator_prompt_tokens_by_source_total", fold="sum", put=(("source", source),))


_PROMPT = Take("generator_prompt_tokens_total", fold="sum")
_GENERATED = Take("generator_tokens_total", fold="sum")
# A mode appears with its first token: where another mode is there already, none has been generated yet.
_NONE_YET = replace(_GENERATED, scale=0.0)
_QUERIES, _HITS = Take(prefix_cache.QUERIES, fold="sum"), Take(prefix_cache.HITS, fold="sum")
_ENDED_QUERIES = Take("prefix_cache_queries_total", fold="sum")

VALUES: Mapping[str, Take] = {
    "num_running_reqs": Take("generator_requests_running"),
    "num_queue_reqs": Take("generator_requests_waiting"),
    "num_waiting_reqs": Take("generator_requests_waiting", rank=1),  # /v1/loads
    "max_running_requests": Take("generator_request_limit"),  # /v1/loads
    # Queues beside the main one: grammar compilation, and hand-overs between prefill and decode engines.
    "num_grammar_queue_reqs": _waiting("grammar"),
    "num_prefill_bootstrap_queue_reqs": _waiting("prefill_bootstrap"),
    "num_prefill_prealloc_queue_reqs": replace(_waiting("prefill_bootstrap"), rank=1),  # to 0.5.9
    "num_prefill_inflight_queue_reqs": _waiting("prefill_inflight"),
    "num_prefill_infight_queue_reqs": replace(_waiting("prefill_inflight"), rank=1),  # their typo, to 0.5.1
    "num_decode_prealloc_queue_reqs": _waiting("decode_prealloc"),
    "num_decode_transfer_queue_reqs": _waiting("decode_transfer"),
    # Counts since the log line before and is set back then: a pulse, which says that there was a pause, not when.
    "num_paused_reqs": Take("generator_requests_paused"),
    "queues_paused": Take("generator_requests_paused", rank=1),  # /v1/loads
    "gen_throughput": Take("generator_token_throughput"),
    "token_usage": Take("kv_cache_usage_ratio"),  # the fullest of several pools
    "max_total_num_tokens": Take("kv_cache_capacity_tokens"),  # 0.5.6
    "num_used_tokens": Take("kv_cache_used_tokens"),
    "kv_used_tokens": Take("kv_cache_used_tokens", rank=1),
    "context_len": Take("generator_max_sequence_tokens"),
    "decode_sum_seq_lens": Take("live_sequence_tokens"),  # 0.5.9
    "cache_hit_rate": Take("prefix_cache_hit_ratio"),
    "avg_request_queue_latency": Take("generator_queue_seconds_mean"),  # 0.4.6 to 0.5.1
    "spec_accept_rate": Take("speculative_accept_ratio"),
    "weight_load_duration_seconds": Take("generator_weight_load_seconds", "source"),  # 0.5.16
    # Counters, live.
    "num_retracted_requests": Take("generator_preemptions_total"),  # 0.5.9
    "total_retracted_reqs": Take("generator_preemptions_total", rank=1),  # a gauge, 0.4.10 to 0.5.1
    "scheduler_idle_seconds": Take("generator_idle_seconds_total"),  # 0.5.23
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
    # The hit rate is all hits over all modes; "input" is what was computed.
    "prefill_effective_tokens": _each(
        "mode",
        ("input", _QUERIES),
        *((f"{tier}_hit", row) for tier in ("device", "host", "storage") for row in (_QUERIES, _HITS)),
    ),
    # Counters at a request's end.
    "generation_tokens": replace(_GENERATED, rank=1),
    "prompt_tokens": replace(_PROMPT, rank=1, also=_ENDED_QUERIES),
    # Each request adds to device, host and storage, or else to total.
    "cached_tokens": Take("prefix_cache_hits_total", fold="sum"),
    "num_requests": Take("generator_requests_finished_total", fold="sum"),
    "num_aborted_requests": Take("generator_requests_aborted_total", fold="sum"),
    "estimated_flops_per_gpu": Take("generator_flops_total"),
}

COUNTERS = frozenset(name for name, take in VALUES.items() if take.metric.endswith("_total"))

HISTOGRAMS: Mapping[str, Take] = {
    "generation_tokens_histogram": Take("generator_response_tokens", fold="sum"),
    "prompt_tokens_histogram": Take("generator_prompt_tokens", fold="sum"),
    "num_retractions": Take("generator_request_preemptions", fold="sum"),  # 0.5.6 to 0.5.9
    "time_to_first_token_seconds": Take("time_to_first_token_seconds", fold="sum"),
    "inter_token_latency_seconds": Take("inter_token_latency_seconds", fold="sum"),  # 0.4.6
    "time_per_output_token_seconds": Take("inter_token_latency_seconds", rank=1, fold="sum"),  # 0.4.3
    "request_time_per_output_token_seconds": Take("request_time_per_token_seconds", fold="sum"),
    "e2e_request_latency_seconds": Take("e2e_request_seconds", fold="sum"),
    "queue_time_seconds": Take("generator_queue_seconds", fold="sum"),  # 0.5.4
    "per_stage_req_latency_seconds": Take("generator_prefill_seconds", only=(("stage", "prefill_forward"),)),
}

# Stuck at 0 or -1 by their own account (metrics_reporter.py); a pulse; parts of `token_usage`, which is their largest.
USELESS = frozenset({"utilization", "num_retracted_reqs", "full_token_usage", "swa_token_usage", "mamba_usage"})

# Routes of srt/entrypoints/http_server.py that change what is generated, or with which weights.
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

# Schedulers that all export (`--enable-metrics-for-all-schedulers`) tell one thing once per rank.
COPY_LABELS = ("pp_rank", "tp_rank", "moe_ep_rank")
