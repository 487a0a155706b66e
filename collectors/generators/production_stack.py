"""The router of vLLM's production stack (:8001/metrics): servers' health, requests in flight, errors, latency.

It re-uses vLLM's own names for what it sees of its servers, under the label ``server``. Those of them that repeat the
engines' (`gpu_prefix_cache_...`, which it reads by names that vLLM dropped with 0.11) are left out; its requests in
flight are a router's, never the engines' running ones.

Does not know: -1 is its word for "no request in my window", which is no number.
"""

import re
from collections.abc import Mapping

from collectors.engine_pages import plain, routers
from collectors.engine_pages.pages import Decision, Take, Vocabulary
from collectors.formats.exposition.parser import Series
from collectors.model import Collector, Limits, Reading, State

_PAGE = re.compile(
    rb"^vllm[:_](?:current_qps|healthy_pods_total|num_(?:prefill|decoding)_requests|avg_itl|avg_latency)\{[^}\n]*server="
    rb"|^vllm[:_]num_incoming_requests_total\{",
    re.MULTILINE,
)

# a6c01db0: services/metrics_service. Names without `vllm:` and `_total`.
VALUES: Mapping[str, Take] = {
    "healthy_pods": Take("router_worker_healthy"),  # a gauge, by server, in spite of its name
    "num_requests_running": Take("router_requests_in_flight"),
    "num_prefill_requests": Take("router_requests_prefill"),
    "num_decoding_requests": Take("router_requests_decode"),
    "current_qps": Take("router_requests_per_second"),
    "avg_latency": Take("router_request_seconds_mean"),
    "avg_itl": Take("router_inter_token_seconds_mean"),
    "num_incoming_requests": Take("router_requests_total", fold="sum"),
    "request_errors": Take("router_errors_total", "error_type>reason", fold="sum"),
    "input_tokens": Take("router_prompt_tokens_total", fold="sum"),
    "output_tokens": Take("router_tokens_total", fold="sum"),
}
HISTOGRAMS: Mapping[str, Take] = {"request_latency_seconds": Take("router_request_seconds", fold="sum")}
USELESS = re.compile(
    r"gpu_prefix_cache_\w+|num_requests_(?:waiting|swapped)|avg_decoding_length|routing_decisions|cache_config_info"
)

_STRANGER = "a metrics page without a production-stack router's series (an engine's? collector vllm reads those)"
_OWN = routers.vocabulary(
    "production_stack",
    routers.RouterNames(re.compile(r"vllm[:_](.+)"), VALUES, HISTOGRAMS, useless=USELESS, worker=("server",)),
    _STRANGER,
)
_MARK = re.compile(r"vllm[:_](?:current_qps|healthy_pods_total|num_incoming_requests_total)")


def decide(series: Series, family: str, kind: str) -> Decision:
    """What to do with one series; an engine's, told by its label, is left to the engine's collector."""
    return None if series.label("engine") else _OWN.decide(series, family, kind)


WORDS = Vocabulary("production_stack", decide, lambda series: _MARK.fullmatch(series.name) is not None, _STRANGER)


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """One page; see `routers.read`."""
    return routers.read(body, state, limits, WORDS)


COLLECTOR = Collector(
    name="production_stack",
    actor="generator",
    reads="the router of vLLM's production stack over its /metrics page",
    versions="a6c01db0 (2026-08) by source",
    parse=parse,
    poll=plain.poll_of(parse),
    matches_page=plain.known_by(_PAGE),
)
