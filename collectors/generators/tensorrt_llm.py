"""Reads TensorRT-LLM's trtllm-serve from its page at /prometheus/metrics.

/metrics is not requested, because it is JSON and reading it drains a queue. /perf_metrics is not requested either: it
returns the times of each request only once, and another client would miss them. The page exists only with
`return_perf_metrics: true`; its iteration gauges also need the PyTorch backend and `enable_iter_perf_stats`.

trtllm-serve does not report response lengths, preemptions, pauses or weight versions.
"""

import re
from collections.abc import Mapping

import httpx

from collectors.engine_pages import pages
from collectors.engine_pages.pages import Decision, MetricRule, PageRules, Unmapped
from collectors.formats.exposition import Series
from collectors.model import Collector, Limits, Reading, ScrapeError, State
from collectors.transport import http

PATH = "/prometheus/metrics"
# Older releases of Dynamo write a colon.
_FAMILY = re.compile(r"trtllm[:_](.+)")
_PAGE = re.compile(
    rb"^trtllm[:_](?:num_requests_(?:running|waiting|completed_total)|request_success_total|kv_cache_\w+"
    rb"|(?:prompt|generation)_tokens_total|e2e_request_latency_seconds_count)\{(?![^}\n]*\bdynamo_component=)",
    re.MULTILINE,
)

# tensorrt_llm/metrics/collector.py @050f80de; without `trtllm_` and without `_total`.
VALUES: Mapping[str, MetricRule] = {
    "num_requests_running": MetricRule("generator_requests_running"),
    "num_requests_waiting": MetricRule("generator_requests_waiting"),
    # Removed from the batch because of missing KV blocks: they wait, and are not paused by a weight update.
    "num_paused_requests": MetricRule("generator_requests_waiting_by_reason", put=(("reason", "paused"),)),
    "max_num_active_requests": MetricRule("generator_request_limit"),
    "kv_cache_utilization": MetricRule("kv_cache_usage_ratio"),
    "kv_cache_hit_rate": MetricRule("prefix_cache_hit_ratio"),
    "kv_cache_tokens_per_block": MetricRule(pages.SIZE),
    "kv_cache_max_blocks": MetricRule(pages.CAPACITY),
    "kv_cache_used_blocks": MetricRule(pages.USED),
    "request_success": MetricRule("generator_requests_finished_total", "finished_reason>reason"),
    "prompt_tokens": MetricRule("generator_prompt_tokens_total"),
    "generation_tokens": MetricRule("generator_tokens_total"),
    "spec_decode_num_draft_tokens": MetricRule("speculative_draft_tokens_total"),
    "spec_decode_num_accepted_tokens": MetricRule("speculative_accepted_tokens_total"),
}
HISTOGRAMS: Mapping[str, MetricRule] = {
    "time_to_first_token_seconds": MetricRule("time_to_first_token_seconds"),
    # The mean of each request, like vLLM's `request_time_per_output_token_seconds`; not the time between tokens.
    "time_per_output_token_seconds": MetricRule("request_time_per_token_seconds"),
    "e2e_request_latency_seconds": MetricRule("e2e_request_seconds"),
    "request_queue_time_seconds": MetricRule("generator_queue_seconds"),
    "request_prefill_time_seconds": MetricRule("generator_prefill_seconds"),
    "request_decode_time_seconds": MetricRule("generator_decode_seconds"),
    "request_inference_time_seconds": MetricRule("generator_inference_seconds"),
}
# The same requests as in request_success, without reasons: reading both would count them twice.
USELESS = frozenset({"num_requests_completed"})


def decide(series: Series, family: str, kind: str) -> Decision:
    """Maps one series. `model_name` and `engine_type` are not used, because one server has one engine."""
    match = _FAMILY.fullmatch(family)
    if match is None or match.group(1).endswith("_created"):
        return None
    if kind == "histogram":
        rule = HISTOGRAMS.get(match.group(1))
        return pages.bucket_of(rule, series, family, ()) if rule is not None else Unmapped(match.group(1))
    base = match.group(1).removesuffix("_total")
    if base in USELESS:
        return None
    return pages.value_of(VALUES[base], series, ()) if base in VALUES else Unmapped(base)


RULES = PageRules(
    name="tensorrt_llm",
    decide=decide,
    proves=lambda series: _FAMILY.fullmatch(series.name) is not None,
    mismatch="a metrics page without trtllm_ series",
)


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """Parses one page; see `pages.read`. KV blocks are converted to tokens."""
    if body[:64].lstrip()[:1] in (b"[", b"{"):
        raise ScrapeError("garbage", f"that is the JSON of iteration statistics; the metrics page is at {PATH}")
    return pages.in_tokens(pages.read(body, state, limits, RULES))


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """GETs /prometheus/metrics, also if the target's URL names another metrics path.

    Raises:
        ScrapeError: as `http.get` and `parse`.
    """
    return await pages.parsed(parse, await _fetch(client, limits), state, limits)


async def _fetch(client: httpx.AsyncClient, limits: Limits) -> bytes:
    base = client.base_url.path.rstrip("/").removesuffix(PATH).removesuffix("/metrics").removesuffix("/perf_metrics")
    try:
        return await http.get(client, client.base_url.copy_with(path=base + PATH), limits)
    except ScrapeError as error:
        if error.kind == "status" and "404" in str(error):
            raise ScrapeError("status", f"{error}: {PATH} needs return_perf_metrics: true in its options") from None
        raise


def matches_page(body: bytes) -> bool:
    """Is it trtllm-serve's page?"""
    return _PAGE.search(body) is not None


async def matches_server(client: httpx.AsyncClient, limits: Limits) -> bool:
    """Does trtllm-serve answer? Its /metrics does not identify it."""
    try:
        return matches_page(await _fetch(client, limits))
    except ScrapeError:
        return False


COLLECTOR = Collector(
    name="tensorrt_llm",
    actor="generator",
    reads="TensorRT-LLM's trtllm-serve over its /prometheus/metrics page",
    versions="050f80de (2026) by source",
    parse=parse,
    poll=poll,
    matches_page=matches_page,
    matches_server=matches_server,
)
