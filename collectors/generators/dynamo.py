"""NVIDIA Dynamo: pages of its frontend and of its workers.

A worker's page (where `DYN_SYSTEM_PORT` is set) passes the engine's own families through with labels of Dynamo's: they
are read by the engine's vocabulary, and what Dynamo says of the same requests is left out. The frontend counts the
engines' requests a second time; its numbers have names of their own (`frontend_...`), so that nothing adds them up.

Does not know: engines whose workers have no page (`DYN_SYSTEM_PORT` is off by default): the frontend cannot tell how
many run and wait in them. A prefix changed by DYN_METRICS_PREFIX.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

from collectors.engine_pages import blocks, plain, prefix_cache
from collectors.engine_pages import pages as engine_pages_pages
from collectors.engine_pages.pages import Decision, PagePlan, Take, Unmapped, Vocabulary
from collectors.formats.exposition.parser import Series
from collectors.generators import tensorrt_llm
from collectors.generators.sglang import collector as sglang
from collectors.generators.vllm import collector as vllm
from collectors.model import Collector, Limits, Reading, State

_FRONTEND, _COMPONENT = "dynamo_frontend_", "dynamo_component_"
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
VALUES: Mapping[str, Take] = {
    "inflight_requests": Take("frontend_requests_in_flight", fold="sum"),
    "queued_requests": Take("frontend_requests_queued", fold="sum"),
    "requests": Take("frontend_requests_total", "status", fold="sum"),
    "output_tokens": Take("frontend_tokens_total", fold="sum"),
    "model_context_length": Take("generator_max_sequence_tokens", fold="max"),
}
HISTOGRAMS: Mapping[str, Take] = {
    "output_sequence_tokens": Take("frontend_response_tokens", fold="sum"),
    "input_sequence_tokens": Take("frontend_prompt_tokens", fold="sum"),
    "time_to_first_token_seconds": Take("frontend_time_to_first_token_seconds", fold="sum"),
    "inter_token_latency_seconds": Take("frontend_inter_token_latency_seconds", fold="sum"),
    "request_duration_seconds": Take("frontend_request_seconds", fold="sum"),
}
# 0 to 1 in spite of its name; the engine's own number comes first.
USAGE = Take("kv_cache_usage_ratio", rank=9)


def decide(series: Series, family: str, kind: str) -> Decision:
    """What to do with one series of a frontend's or a worker's page."""
    if family.startswith(_FRONTEND):
        return _frontend(series, family, kind)
    engine = _ENGINE.fullmatch(family)
    if engine is not None:
        found = ENGINES[engine.group(1)](series, family, kind)
        return _one_process(found) if isinstance(found, PagePlan) else found
    if family == f"{_COMPONENT}gpu_cache_usage_percent":
        plan = engine_pages_pages.value_of(USAGE, series, ())
        return _one_process(plan) if plan is not None else None
    # Requests at a component's door, its uptime, the router's plans: the engines say it better.
    return None


def _one_process(plan: PagePlan) -> PagePlan:
    """A worker's page is one engine's: older names yield to newer ones whatever their labels."""
    return replace(plan, scope=(), also=_one_process(plan.also) if plan.also is not None else None)


def _frontend(series: Series, family: str, kind: str) -> Decision:
    base = family.removeprefix(_FRONTEND)
    if base.endswith("_created"):
        return None
    if kind == "histogram":
        take = HISTOGRAMS.get(base)
        return engine_pages_pages.bucket_of(take, series, family, ()) if take is not None else Unmapped(base)
    base = base.removesuffix("_total")
    return engine_pages_pages.value_of(VALUES[base], series, ()) if base in VALUES else Unmapped(base)


def _proves(series: Series) -> bool:
    return series.name.startswith((_FRONTEND, _COMPONENT)) or bool(series.label("dynamo_component"))


WORDS = Vocabulary(
    name="dynamo", decide=decide, proves=_proves, stranger="a metrics page without dynamo_ series or labels"
)


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """One page; see `pages.read`."""
    return prefix_cache.counted_once(blocks.in_tokens(engine_pages_pages.read(body, state, limits, WORDS)))


COLLECTOR = Collector(
    name="dynamo",
    actor="generator",
    reads="NVIDIA Dynamo: its frontend's page, and its workers' with the engine's families",
    versions="1.6.1 by source",
    parse=parse,
    poll=plain.poll_of(parse),
    matches_page=plain.known_by(_PAGE),
)
