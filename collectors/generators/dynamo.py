"""Reads the pages of NVIDIA Dynamo's frontend and workers.

A worker's page (if `DYN_SYSTEM_PORT` is set) contains the engine's own families with additional labels: the rules of
the engine's collector read them. Dynamo's own numbers about the same requests are ignored. The frontend counts the
engines' requests a second time, so its metrics have separate names (`frontend_...`) and are never added to them.

Not covered: engines whose workers have no page (`DYN_SYSTEM_PORT` is off by default), because the frontend does not
report their running and waiting requests; a prefix changed by DYN_METRICS_PREFIX.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from collectors.engine_pages import pages, side_requests
from collectors.engine_pages.pages import Decision, MetricRule, PagePlan, PageRules, Unmapped
from collectors.formats.exposition import Series
from collectors.generators import sglang, tensorrt_llm, vllm
from collectors.model import Collector, Limits, Reading, State

_FRONTEND = "dynamo_frontend_"
_COMPONENT = "dynamo_component_"
_ENGINE = re.compile(r"(vllm|sglang|trtllm)[:_].+")
_PAGE = re.compile(
    rb"^(?:dynamo_(?:frontend|component)_\w+|(?:vllm|sglang|trtllm)[:_]\w+\{[^}\n]*\bdynamo_component=)", re.M
)

ENGINES: Mapping[str, Callable[[Series, str, str], Decision]] = {
    "vllm": vllm.decide,
    "sglang": sglang.decide,
    "trtllm": tensorrt_llm.decide,
}

# lib/runtime/src/metrics/prometheus_names.rs @04070c75; without prefix and without `_total`.
VALUES: Mapping[str, MetricRule] = {
    "inflight_requests": MetricRule("frontend_requests_in_flight", fold="sum"),
    "queued_requests": MetricRule("frontend_requests_queued", fold="sum"),
    "requests": MetricRule("frontend_requests_total", "status", fold="sum"),
    "output_tokens": MetricRule("frontend_tokens_total", fold="sum"),
    "model_context_length": MetricRule("generator_max_sequence_tokens", fold="max"),
}
HISTOGRAMS: Mapping[str, MetricRule] = {
    "output_sequence_tokens": MetricRule("frontend_response_tokens", fold="sum"),
    "input_sequence_tokens": MetricRule("frontend_prompt_tokens", fold="sum"),
    "time_to_first_token_seconds": MetricRule("frontend_time_to_first_token_seconds", fold="sum"),
    "inter_token_latency_seconds": MetricRule("frontend_inter_token_latency_seconds", fold="sum"),
    "request_duration_seconds": MetricRule("frontend_request_seconds", fold="sum"),
}
# 0 to 1 in spite of the name "percent"; the engine's own gauge has precedence.
USAGE = MetricRule("kv_cache_usage_ratio", rank=9)


def decide(series: Series, family: str, kind: str) -> Decision:
    """Maps one series of a frontend's or a worker's page."""
    if family.startswith(_FRONTEND):
        return _frontend(series, family, kind)
    engine = _ENGINE.fullmatch(family)
    if engine is not None:
        decision = ENGINES[engine.group(1)](series, family, kind)
        return _one_process(decision) if isinstance(decision, PagePlan) else decision
    if family == f"{_COMPONENT}gpu_cache_usage_percent":
        plan = pages.value_of(USAGE, series, ())
        return _one_process(plan) if plan is not None else None
    # A component's requests and uptime and the router's plans are ignored: the engines report them in more detail.
    return None


def _one_process(plan: PagePlan) -> PagePlan:
    """The plan with ranks compared over the whole page, because a worker's page has one engine only."""
    return replace(plan, scope=(), also=_one_process(plan.also) if plan.also is not None else None)


def _frontend(series: Series, family: str, kind: str) -> Decision:
    base = family.removeprefix(_FRONTEND)
    if base.endswith("_created"):
        return None
    if kind == "histogram":
        rule = HISTOGRAMS.get(base)
        return pages.bucket_of(rule, series, family, ()) if rule is not None else Unmapped(base)
    base = base.removesuffix("_total")
    return pages.value_of(VALUES[base], series, ()) if base in VALUES else Unmapped(base)


def _proves(series: Series) -> bool:
    return series.name.startswith((_FRONTEND, _COMPONENT)) or bool(series.label("dynamo_component"))


RULES = PageRules(
    name="dynamo", decide=decide, proves=_proves, mismatch="a metrics page without dynamo_ series or labels"
)


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """Parses one page; see `pages.read`."""
    return side_requests.select_counters(pages.in_tokens(pages.read(body, state, limits, RULES)))


COLLECTOR = Collector(
    name="dynamo",
    actor="generator",
    reads="NVIDIA Dynamo: its frontend's page, and its workers' with the engine's families",
    versions="1.6.1 by source",
    parse=parse,
    poll=pages.poll_of(parse),
    matches_page=pages.matcher(_PAGE),
)
