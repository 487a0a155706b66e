"""Triton Inference Server with the tensorrtllm backend, over its page at :8002/metrics.

Counters have no `_total` there. `nv_inference_...` counts one request once per model of an ensemble (preprocessing,
tensorrt_llm, postprocessing, the ensemble): only the model that generates is read.

Does not know: tokens, lengths and latencies per token: the backend's page has none. An engine model by another name
than tensorrt_llm keeps its gauges and loses the counts of requests.
"""

import re
from collections.abc import Mapping

from collectors.engine_pages import blocks, plain
from collectors.engine_pages import pages as engine_pages_pages
from collectors.engine_pages.pages import Decision, Take, Unmapped, Vocabulary
from collectors.formats.exposition.parser import Series
from collectors.model import Collector, Labels, Limits, Reading, State

_PAGE = re.compile(rb"^nv_trt_llm_\w+\{", re.MULTILINE)
_ENGINE: Labels = (("model", "tensorrt_llm"),)


def _of(kind: str, rows: Mapping[str, Take]) -> Mapping[tuple[str, str, str], Take]:
    """Rows of a family that says in a label what it counts: (family, label, value) -> row."""
    label = _KINDS[kind]
    return {(kind, label, value): take for value, take in rows.items()}


_KINDS: Mapping[str, str] = {
    "nv_trt_llm_request_metrics": "request_type",
    "nv_trt_llm_kv_cache_block_metrics": "kv_cache_block_type",
    "nv_trt_llm_inflight_batcher_metrics": "inflight_batcher_specific_metric",
}

# tensorrtllm_backend @0b9d7d5a
VALUES: Mapping[tuple[str, str, str], Take] = {
    **_of(
        "nv_trt_llm_request_metrics",
        {
            "scheduled": Take("generator_requests_running"),
            "waiting": Take("generator_requests_waiting"),
            "max": Take("generator_request_limit"),
        },
    ),
    **_of(
        "nv_trt_llm_kv_cache_block_metrics",
        {
            "fraction": Take("kv_cache_usage_ratio"),
            "tokens_per": Take(blocks.SIZE),
            "max": Take(blocks.MOST),
            "used": Take(blocks.USED),
        },
    ),
    **_of(
        "nv_trt_llm_inflight_batcher_metrics",
        {"paused_requests": Take("generator_requests_waiting_by_reason", put=(("reason", "paused"),))},
    ),
}
COUNTS: Mapping[str, Take] = {
    "nv_inference_request_success": Take(
        "generator_requests_finished_total", fold="sum", only=_ENGINE, put=(("reason", "success"),)
    ),
    # Newer servers split it by cause.
    "nv_inference_request_failure": Take(
        "generator_requests_finished_total", fold="sum", only=_ENGINE, put=(("reason", "error"),)
    ),
}


def decide(series: Series, family: str, _kind: str) -> Decision:
    """What to do with one series. Models, and copies of one, stay apart under the label ``engine``."""
    take = COUNTS.get(family)
    if take is None and family.startswith("nv_trt_llm_"):
        label = _KINDS.get(family, "")
        take = VALUES.get((family, label, series.label(label)))
        if take is None:
            # A value of the label that nobody maps is a metric of its own.
            return Unmapped(f"{family} {value}" if (value := series.label(label)) else family)
    return engine_pages_pages.value_of(take, series, _labels(series)) if take is not None else None


def _labels(series: Series) -> Labels:
    model, version = series.label("model"), series.label("version")
    return (("engine", f"{model}:{version}" if version else model),) if model else ()


WORDS = Vocabulary(
    name="triton",
    decide=decide,
    proves=lambda series: series.name.startswith("nv_trt_llm_"),
    stranger="a metrics page without nv_trt_llm_ series (Triton without the tensorrtllm backend?)",
)


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """One page; see `pages.read`. KV blocks become tokens."""
    return blocks.in_tokens(engine_pages_pages.read(body, state, limits, WORDS))


COLLECTOR = Collector(
    name="triton",
    actor="generator",
    reads="Triton with the tensorrtllm backend over its :8002/metrics page",
    versions="tensorrtllm_backend 0b9d7d5a by source",
    parse=parse,
    poll=plain.poll_of(parse),
    matches_page=plain.known_by(_PAGE),
)
