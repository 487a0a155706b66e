"""Reads Triton Inference Server with the tensorrtllm backend from its page at :8002/metrics.

Counters have no `_total` there. `nv_inference_...` counts a request once per model of an ensemble (preprocessing,
tensorrt_llm, postprocessing, the ensemble), so only the generating model is read.

Not available on the backend's page: tokens, lengths and latencies per token. If the engine model has another name than
tensorrt_llm, its gauges are read but not its request counts.
"""

import re
from collections.abc import Mapping

from collectors.engine_pages import pages
from collectors.engine_pages.pages import Decision, MetricRule, PageRules, Unmapped
from collectors.formats.exposition import Series
from collectors.model import Collector, Labels, Limits, Reading, State

_PAGE = re.compile(rb"^nv_trt_llm_\w+\{", re.MULTILINE)
_ENGINE: Labels = (("model", "tensorrt_llm"),)


def _of(kind: str, rows: Mapping[str, MetricRule]) -> Mapping[tuple[str, str, str], MetricRule]:
    """Rows of a family that has the counted quantity in a label: (family, label, value) -> row."""
    label = _KINDS[kind]
    return {(kind, label, value): rule for value, rule in rows.items()}


_KINDS: Mapping[str, str] = {
    "nv_trt_llm_request_metrics": "request_type",
    "nv_trt_llm_kv_cache_block_metrics": "kv_cache_block_type",
    "nv_trt_llm_inflight_batcher_metrics": "inflight_batcher_specific_metric",
}

# tensorrtllm_backend @0b9d7d5a
VALUES: Mapping[tuple[str, str, str], MetricRule] = {
    **_of(
        "nv_trt_llm_request_metrics",
        {
            "scheduled": MetricRule("generator_requests_running"),
            "waiting": MetricRule("generator_requests_waiting"),
            "max": MetricRule("generator_request_limit"),
        },
    ),
    **_of(
        "nv_trt_llm_kv_cache_block_metrics",
        {
            "fraction": MetricRule("kv_cache_usage_ratio"),
            "tokens_per": MetricRule(pages.SIZE),
            "max": MetricRule(pages.CAPACITY),
            "used": MetricRule(pages.USED),
        },
    ),
    **_of(
        "nv_trt_llm_inflight_batcher_metrics",
        {"paused_requests": MetricRule("generator_requests_waiting_by_reason", put=(("reason", "paused"),))},
    ),
}
COUNTS: Mapping[str, MetricRule] = {
    "nv_inference_request_success": MetricRule(
        "generator_requests_finished_total", fold="sum", only=_ENGINE, put=(("reason", "success"),)
    ),
    # Newer servers split failures by cause.
    "nv_inference_request_failure": MetricRule(
        "generator_requests_finished_total", fold="sum", only=_ENGINE, put=(("reason", "error"),)
    ),
}


def decide(series: Series, family: str, _kind: str) -> Decision:
    """Maps one series. Models and versions of a model are distinguished by the label ``engine``."""
    rule = COUNTS.get(family)
    if rule is None and family.startswith("nv_trt_llm_"):
        label = _KINDS.get(family, "")
        rule = VALUES.get((family, label, series.label(label)))
        if rule is None:
            # An unmapped value of the label is reported as a metric of its own.
            return Unmapped(f"{family} {value}" if (value := series.label(label)) else family)
    return pages.value_of(rule, series, _labels(series)) if rule is not None else None


def _labels(series: Series) -> Labels:
    model, version = series.label("model"), series.label("version")
    return (("engine", f"{model}:{version}" if version else model),) if model else ()


RULES = PageRules(
    name="triton",
    decide=decide,
    proves=lambda series: series.name.startswith("nv_trt_llm_"),
    mismatch="a metrics page without nv_trt_llm_ series (Triton without the tensorrtllm backend?)",
)


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """Parses one page; see `pages.read`. KV blocks are converted to tokens."""
    return pages.in_tokens(pages.read(body, state, limits, RULES))


COLLECTOR = Collector(
    name="triton",
    actor="generator",
    reads="Triton with the tensorrtllm backend over its :8002/metrics page",
    versions="tensorrtllm_backend 0b9d7d5a by source",
    parse=parse,
    poll=pages.poll_of(parse),
    matches_page=pages.matcher(_PAGE),
)
