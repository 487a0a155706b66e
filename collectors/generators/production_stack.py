"""Reads the router of vLLM's production stack (:8001/metrics): server health, requests in flight, errors, latency.

It uses vLLM's own names for its measurements of the servers, with the label ``server``. Families that repeat engine
metrics are ignored (`gpu_prefix_cache_...`, which it reads by names that vLLM removed in 0.11). Its requests in flight
are those of a router, not the running requests of engines.

The value -1 means "no request in the window" and is dropped.
"""

import re
from collections.abc import Mapping

from collectors.engine_pages import pages, routers
from collectors.engine_pages.pages import Decision, MetricRule, PageRules
from collectors.formats.exposition import Series
from collectors.model import Collector, Limits, Reading, State

_PAGE = re.compile(
    rb"^vllm[:_](?:current_qps|healthy_pods_total|num_(?:prefill|decoding)_requests|avg_itl|avg_latency)\{[^}\n]*server="
    rb"|^vllm[:_]num_incoming_requests_total\{",
    re.MULTILINE,
)

# a6c01db0: services/metrics_service. Names without `vllm:` and `_total`.
VALUES: Mapping[str, MetricRule] = {
    "healthy_pods": MetricRule("router_worker_healthy"),  # a gauge, by server, in spite of its name
    "num_requests_running": MetricRule("router_requests_in_flight"),
    "num_prefill_requests": MetricRule("router_requests_prefill"),
    "num_decoding_requests": MetricRule("router_requests_decode"),
    "current_qps": MetricRule("router_requests_per_second"),
    "avg_latency": MetricRule("router_request_seconds_mean"),
    "avg_itl": MetricRule("router_inter_token_seconds_mean"),
    "num_incoming_requests": MetricRule("router_requests_total", fold="sum"),
    "request_errors": MetricRule("router_errors_total", "error_type>reason", fold="sum"),
    "input_tokens": MetricRule("router_prompt_tokens_total", fold="sum"),
    "output_tokens": MetricRule("router_tokens_total", fold="sum"),
}
HISTOGRAMS: Mapping[str, MetricRule] = {"request_latency_seconds": MetricRule("router_request_seconds", fold="sum")}
USELESS = re.compile(
    r"gpu_prefix_cache_\w+|num_requests_(?:waiting|swapped)|avg_decoding_length|routing_decisions|cache_config_info"
)

_MISMATCH = "a metrics page without a production-stack router's series (an engine's? collector vllm reads those)"
_ROUTER_RULES = routers.page_rules(
    "production_stack",
    routers.RouterNames(re.compile(r"vllm[:_](.+)"), VALUES, HISTOGRAMS, useless=USELESS, worker=("server",)),
    _MISMATCH,
)
_MARK = re.compile(r"vllm[:_](?:current_qps|healthy_pods_total|num_incoming_requests_total)")


def decide(series: Series, family: str, kind: str) -> Decision:
    """Maps one series. A series with the label ``engine`` is an engine's and is ignored here."""
    return None if series.label("engine") else _ROUTER_RULES.decide(series, family, kind)


RULES = PageRules("production_stack", decide, lambda series: _MARK.fullmatch(series.name) is not None, _MISMATCH)


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """Parses one page; see `routers.read`."""
    return routers.read(body, state, limits, RULES)


COLLECTOR = Collector(
    name="production_stack",
    actor="generator",
    reads="the router of vLLM's production stack over its /metrics page",
    versions="a6c01db0 (2026-08) by source",
    parse=parse,
    poll=pages.poll_of(parse),
    matches_page=pages.matcher(_PAGE),
)
