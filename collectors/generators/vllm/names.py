"""Tables that map vLLM's metric names to ours, by version (vllm/v1/metrics/loggers.py, 0.8.5 to 0.33.0).

Names are without `vllm:` and without `_total`. 0.9 to 0.11 have the old and the new name of a metric on one page.
"""

from collections.abc import Mapping

from collectors.engine_pages.pages import MetricRule

VALUES: Mapping[str, MetricRule] = {
    "num_requests_running": MetricRule("generator_requests_running"),
    "num_requests_waiting": MetricRule("generator_requests_waiting"),
    "num_requests_waiting_by_reason": MetricRule("generator_requests_waiting_by_reason", "reason"),
    "num_requests_swapped": MetricRule("generator_requests_waiting_by_reason", put=(("reason", "swapped"),)),  # V0 only
    "kv_cache_usage_perc": MetricRule("kv_cache_usage_ratio"),  # 0..1 despite the name
    "gpu_cache_usage_perc": MetricRule("kv_cache_usage_ratio", rank=2),  # to 0.10
    "prefix_cache_queries": MetricRule("prefix_cache_queries_total"),
    "gpu_prefix_cache_queries": MetricRule("prefix_cache_queries_total", rank=2),  # to 0.10
    "prefix_cache_hits": MetricRule("prefix_cache_hits_total"),
    "gpu_prefix_cache_hits": MetricRule("prefix_cache_hits_total", rank=2),  # to 0.10
    "gpu_prefix_cache_hit_rate": MetricRule("prefix_cache_hit_ratio", blank=-1.0),  # V0 only; -1: no query yet
    "num_preemptions": MetricRule("generator_preemptions_total"),
    "prompt_tokens": MetricRule("generator_prompt_tokens_total"),
    "prompt_tokens_by_source": MetricRule("generator_prompt_tokens_by_source_total", "source"),
    "generation_tokens": MetricRule("generator_tokens_total"),
    "request_success": MetricRule("generator_requests_finished_total", "finished_reason>reason"),
    "admission_rejections": MetricRule("generator_requests_rejected_total", "reason"),
    "corrupted_requests": MetricRule("generator_corrupted_requests_total"),
    "rl_weight_update_operations_in_flight": MetricRule("generator_control_requests_active", "operation>call"),  # 0.32
    "sleep_mode_operations_in_flight": MetricRule("generator_control_requests_active", "operation>call"),  # 0.32
    "spec_decode_num_draft_tokens": MetricRule("speculative_draft_tokens_total"),
    "spec_decode_num_accepted_tokens": MetricRule("speculative_accepted_tokens_total"),
    "spec_decode_draft_acceptance_rate": MetricRule("speculative_accept_ratio"),  # V0 only
    "estimated_flops_per_gpu": MetricRule("generator_flops_total"),
}

COUNTERS = frozenset(name for name, rule in VALUES.items() if rule.metric.endswith("_total"))

HISTOGRAMS: Mapping[str, MetricRule] = {
    "request_generation_tokens": MetricRule("generator_response_tokens"),
    "request_prompt_tokens": MetricRule("generator_prompt_tokens"),
    "iteration_tokens_total": MetricRule("generator_iteration_tokens"),  # a histogram in spite of its name
    "request_num_preemptions": MetricRule("generator_request_preemptions"),
    "time_to_first_token_seconds": MetricRule("time_to_first_token_seconds"),
    "inter_token_latency_seconds": MetricRule("inter_token_latency_seconds"),
    "time_per_output_token_seconds": MetricRule("inter_token_latency_seconds", rank=1),  # to 0.14
    "request_time_per_output_token_seconds": MetricRule("request_time_per_token_seconds"),
    "e2e_request_latency_seconds": MetricRule("e2e_request_seconds"),
    "request_queue_time_seconds": MetricRule("generator_queue_seconds"),
    "time_in_queue_requests": MetricRule("generator_queue_seconds", rank=1),  # V0 only
    "request_inference_time_seconds": MetricRule("generator_inference_seconds"),
    "request_prefill_time_seconds": MetricRule("generator_prefill_seconds"),
    "request_decode_time_seconds": MetricRule("generator_decode_seconds"),
    "rl_weight_update_operation_duration_seconds": MetricRule("generator_weight_update_seconds", "operation"),  # 0.32
    "sleep_mode_operation_duration_seconds": MetricRule("generator_sleep_seconds", "operation"),  # 0.32
}

# Routes of vLLM's own RL API (entrypoints/serve/rlhf, since 0.32 entrypoints/rl/online), of prime-rl's server around
# vLLM (src/prime_rl/inference/vllm/server.py), and those that TRL and OpenRLHF use to update weights.
CALLS: Mapping[str, str] = {
    "/pause": "pause",
    "/resume": "resume",
    "/sleep": "sleep",
    "/wake_up": "wake_up",
    "/start_weight_update": "update_weights_begin",
    "/update_weights": "update_weights",
    "/finish_weight_update": "update_weights_finish",
    "/update_weight_version": "update_weight_version",
    "/collective_rpc": "collective_rpc",
    "/reset_prefix_cache": "reset_prefix_cache",
    "/load_lora_adapter": "load_lora_adapter",
    "/v1/load_lora_adapter": "load_lora_adapter",
}
