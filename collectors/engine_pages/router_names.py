"""Tables that map families of the sgl-router line to our metrics.

`sgl_router_...`: sglang-router to 0.2 (src/metrics.rs). `smg_...`: sglang-router 0.3 and the model gateway
(model_gateway/src/observability/metrics.rs and its scheduler's file, @73da68ca). `vllm_router_...`: vllm-router 0.1, a
fork of sglang-router 0.2. Names are without prefix and without `_total`.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from collectors.engine_pages.pages import MetricRule

_REQUESTS = MetricRule("router_requests_total", fold="sum")
_ERRORS = MetricRule("router_errors_total", "error_type>reason", fold="sum")
_REQUEST_TIME = MetricRule("router_request_seconds", fold="sum")
_RETRIES = MetricRule("router_retries_total", fold="sum")
_GIVEN_UP = MetricRule("router_retries_exhausted_total", fold="sum")
_IN_FLIGHT = MetricRule("router_requests_in_flight")


def _rejected(outcome: str, reason: str, also: MetricRule | None = None) -> MetricRule:
    """Admissions with an outcome that means rejection."""
    only = (("outcome", outcome),)
    return MetricRule("router_rejected_total", fold="sum", only=only, put=(("reason", reason),), also=also)


GATEWAY: Mapping[str, MetricRule] = {
    "worker_pool_size": MetricRule("router_workers", fold="sum"),
    "worker_health": MetricRule("router_worker_healthy"),
    "worker_cb_state": MetricRule("router_circuit_state"),
    "worker_requests_active": _IN_FLIGHT,
    "http_inflight_request_age_count": MetricRule("router_requests_by_age", "le>up_to_seconds"),
    "router_requests": _REQUESTS,
    "router_request_errors": _ERRORS,
    "worker_errors": MetricRule("router_worker_errors_total", "error_type>reason", fold="sum"),
    "worker_retries": _RETRIES,
    "worker_retries_exhausted": _GIVEN_UP,
    "http_rate_limit": MetricRule(
        "router_rejected_total", fold="sum", only=(("result", "rejected"),), put=(("reason", "rate_limit"),)
    ),
    # gRPC workers only.
    "router_tokens": MetricRule(
        "router_tokens_total",
        fold="sum",
        only=(("token_type", "output"),),
        also=MetricRule("router_prompt_tokens_total", fold="sum", only=(("token_type", "input"),)),
    ),
    # With --priority-scheduler-enabled, which replaces the rate limit.
    "scheduler_queue_depth": MetricRule("router_requests_queued", "class"),
    "scheduler_preemption": MetricRule("router_preemptions_total", fold="sum"),
    "scheduler_admit": _rejected(
        "rejected_queue_full", "queue_full", also=_rejected("rejected_queue_timeout", "queue_timeout")
    ),
}
GATEWAY_HISTOGRAMS: Mapping[str, MetricRule] = {"router_request_duration_seconds": _REQUEST_TIME}
GATEWAY_SUMMARIES: Mapping[str, MetricRule] = {
    "router_request_duration_seconds": MetricRule("router_request_quantile_seconds", fold="max"),
    "router_ttft_seconds": MetricRule("router_time_to_first_token_quantile_seconds", fold="max"),
    "router_tpot_seconds": MetricRule("router_inter_token_quantile_seconds", fold="max"),
    "scheduler_queue_wait_seconds": MetricRule("router_queue_quantile_seconds", "class", fold="max"),
}
# Not mapped: `engine...`, because the engines' own pages have it (`--engine-metrics` repeats it), and other subjects.
GATEWAY_USELESS = re.compile(
    r"(?:engine|mcp|db|tokenizer|discovery|mesh|cache|router_stage|http_request_duration|http_requests|http_responses)\w*"
    r"|worker_(?:selection|health_checks|connections_active|cb_(?:transitions|outcomes|consecutive_\w+))"
    r"|scheduler_(?:inflight|utilization|queue_size_limit|class_capacity_pressure)|manual_policy_cache_entries"
)

OLD: Mapping[str, MetricRule] = {
    "active_workers": MetricRule("router_workers"),
    "worker_health": MetricRule("router_worker_healthy"),
    "cb_state": MetricRule("router_circuit_state"),
    # `worker_load` is for all policies; `running_requests` is for cache_aware only and includes waiting requests.
    "worker_load": _IN_FLIGHT,
    "running_requests": replace(_IN_FLIGHT, rank=1),
    "requests": _REQUESTS,
    "request_errors": _ERRORS,
    # A request of a prefill-decode pair is counted only in these.
    "pd_requests": replace(_REQUESTS, put=(("path", "prefill_decode"),)),
    "pd_errors": replace(_ERRORS, put=(("path", "prefill_decode"),)),
    "retries": _RETRIES,
    "retries_exhausted": _GIVEN_UP,
    "job_queue_full": MetricRule("router_rejected_total", fold="sum", put=(("reason", "queue_full"),)),
}
OLD_HISTOGRAMS: Mapping[str, MetricRule] = {
    "request_duration_seconds": _REQUEST_TIME,
    "generate_duration_seconds": replace(_REQUEST_TIME, rank=1),
    "pd_request_duration_seconds": replace(_REQUEST_TIME, put=(("path", "prefill_decode"),)),
}
OLD_SUMMARIES: Mapping[str, MetricRule] = {
    "request_duration_seconds": MetricRule("router_request_quantile_seconds", fold="max"),
    "generate_duration_seconds": MetricRule("router_request_quantile_seconds", rank=1, fold="max"),
}
OLD_USELESS = re.compile(
    r"(?:cache|tree|discovery|policy|load_balancing|max_load|min_load|processed|upstream|http|job|embeddings|classify"
    r"|retry_backoff|cb_|pd_(?:prefill|decode|stream)|tenant|worker_requests|worker_request_duration)\w*"
)
