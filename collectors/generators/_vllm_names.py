"""vLLM's metric names by version -> ours. Tables only (vllm/v1/metrics/loggers.py and its history, 0.8.5 to 0.33.0).

A value is (metric, label to keep, rank). Names without `vllm:` and without `_total`. Where two names of one thing
are on a page (0.9 to 0.11 emit old and new) the lower rank is taken. A label written ``a>b`` is renamed.
"""

from collections.abc import Mapping

Target = tuple[str, str, int]

VALUES: Mapping[str, Target] = {
    "num_requests_running": ("generator_requests_running", "", 0),
    "num_requests_waiting": ("generator_requests_waiting", "", 0),
    "num_requests_waiting_by_reason": ("generator_requests_waiting_by_reason", "reason", 0),
    "kv_cache_usage_perc": ("kv_cache_usage_ratio", "", 0),  # 0..1 despite the name
    "gpu_cache_usage_perc": ("kv_cache_usage_ratio", "", 2),  # to 0.10
    "prefix_cache_queries": ("prefix_cache_queries_total", "", 0),
    "gpu_prefix_cache_queries": ("prefix_cache_queries_total", "", 2),  # to 0.10
    "prefix_cache_hits": ("prefix_cache_hits_total", "", 0),
    "gpu_prefix_cache_hits": ("prefix_cache_hits_total", "", 2),  # to 0.10
    "gpu_prefix_cache_hit_rate": ("prefix_cache_hit_ratio", "", 0),  # V0 only
    "num_preemptions": ("generator_preemptions_total", "", 0),
    "prompt_tokens": ("generator_prompt_tokens_total", "", 0),
    "prompt_tokens_by_source": ("generator_prompt_tokens_by_source_total", "source", 0),
    "generation_tokens": ("generator_tokens_total", "", 0),
    "request_success": ("generator_requests_finished_total", "finished_reason>reason", 0),
    "admission_rejections": ("generator_requests_rejected_total", "reason", 0),
    "corrupted_requests": ("generator_corrupted_requests_total", "", 0),
    "spec_decode_num_draft_tokens": ("speculative_draft_tokens_total", "", 0),
    "spec_decode_num_accepted_tokens": ("speculative_accepted_tokens_total", "", 0),
    "estimated_flops_per_gpu": ("generator_flops_total", "", 0),
}

COUNTERS = frozenset(name for name, (metric, _, _) in VALUES.items() if metric.endswith("_total"))

HISTOGRAMS: Mapping[str, Target] = {
    "request_generation_tokens": ("generator_response_tokens", "", 0),
    "request_prompt_tokens": ("generator_prompt_tokens", "", 0),
    "iteration_tokens_total": ("generator_iteration_tokens", "", 0),  # a histogram in spite of its name
    "request_num_preemptions": ("generator_request_preemptions", "", 0),
    "time_to_first_token_seconds": ("time_to_first_token_seconds", "", 0),
    "inter_token_latency_seconds": ("inter_token_latency_seconds", "", 0),
    "time_per_output_token_seconds": ("inter_token_latency_seconds", "", 1),  # to 0.14
    "request_time_per_output_token_seconds": ("request_time_per_token_seconds", "", 0),
    "e2e_request_latency_seconds": ("e2e_request_seconds", "", 0),
    "request_queue_time_seconds": ("generator_queue_seconds", "", 0),
    "request_inference_time_seconds": ("generator_inference_seconds", "", 0),
    "request_prefill_time_seconds": ("generator_prefill_seconds", "", 0),
    "request_decode_time_seconds": ("generator_decode_seconds", "", 0),
    "rl_weight_update_operation_duration_seconds": ("generator_weight_update_seconds", "operation", 0),  # 0.32
    "sleep_mode_operation_duration_seconds": ("generator_sleep_seconds", "operation", 0),  # 0.32
}

# Routes of vLLM's own RL API and of prime-rl's server around vLLM (src/prime_rl/inference/vllm/server.py).
CALLS: Mapping[str, str] = {
    "/pause": "pause",
    "/resume": "resume",
    "/update_weights": "update_weights",
    "/finish_weight_update": "update_weights_finish",
    "/load_lora_adapter": "load_lora_adapter",
}

# Ray Serve, the Ray agent, sgl-router's /engine_metrics: several processes on one page, each with an engine "0".
REPLICA_LABELS = ("ReplicaId", "replica", "WorkerId", "worker_addr")
