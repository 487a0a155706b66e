"""TensorRT-LLM's trtllm-serve over its page at /prometheus/metrics (not /metrics, which is JSON and drains a queue).

The page is there with `return_perf_metrics: true` only, its iteration gauges on the PyTorch backend with
`enable_iter_perf_stats` besides. `/perf_metrics` hands every request's times out once: it is never asked, or whoever
waits for them would miss them.

Does not know: the length of responses, preemptions, pauses, weight versions: trtllm-serve tells none of them.
"""

import re
from collections.abc import Mapping

import httpx

from collectors.engine_pages import blocks
from collectors.engine_pages import pages as engine_pages_pages
from collectors.engine_pages.pages import Decision, Take, Unmapped, Vocabulary
from collectors.formats.exposition.parser import Series
from collectors.model import Collector, Limits, Reading, ScrapeError, State
from collectors.transport import http

PATH = "/prometheus/metrics"
# Dynamo's older releases write a colon.
_FAMILY = re.compile(r"trtllm[:_](.+)")
_PAGE = re.compile(
    rb"^trtllm[:_](?:num_requests_(?:running|waiting|completed_total)|request_success_total|kv_cache_\w+"
    rb"|(?:prompt|generation)_tokens_total|e2e_request_latency_seconds_count)\{(?![^}\n]*\bdynamo_component=)",
    re.MULTILINE,
)

# tensorrt_llm/metrics/collector.py @050f80de; without `trtllm_` and without `_total`.
VALUES: Mapping[str, Take] = {
    "num_requests_running": Take("generator_requests_running"),
    "num_requests_waiting": Take("generator_requests_waiting"),
    # Thrown out of the batch for want of KV: they wait, no weight update holds them.
    "num_paused_requests": Take("generator_requests_waiting_by_reason", put=(("reason", "paused"),)),
    "max_num_active_requests": Take("generator_request_limit"),
    "kv_cache_utilization": Take("kv_cache_usage_ratio"),
    "kv_cache_hit_rate": Take("prefix_cache_hit_ratio"),
    "kv_cache_tokens_per_block": Take(blocks.SIZE),
    "kv_cache_max_blocks": Take(blocks.MOST),
    "kv_cache_used_blocks": Take(blocks.USED),
    "request_success": Take("generator_requests_finished_total", "finished_reason>reason"),
    "prompt_tokens": Take("generator_prompt_tokens_total"),
    "generation_tokens": Take("generator_tokens_total"),
    "spec_decode_num_draft_tokens": Take("speculative_draft_tokens_total"),
    "spec_decode_num_accepted_tokens": Take("speculative_accepted_tokens_total"),
}
HISTOGRAMS: Mapping[str, Take] = {
    "time_to_first_token_seconds": Take("time_to_first_token_seconds"),
    # Per request, like vLLM's of the long name: a mean, not the gaps.
    "time_per_output_token_seconds": Take("request_time_per_token_seconds"),
    "e2e_request_latency_seconds": Take("e2e_request_seconds"),
    "request_queue_time_seconds": Take("generator_queue_seconds"),
    "request_prefill_time_seconds": Take("generator_prefill_seconds"),
    "request_decode_time_seconds": Take("generator_decode_seconds"),
    "request_inference_time_seconds": Take("generator_inference_seconds"),
}
# The same requests as request_success, without their reasons: both would count twice.
USELESS = frozenset({"num_requests_completed"})


def decide(series: Series, family: str, kind: str) -> Decision:
    """What to do with one series. One server has one engine: `model_name` and `engine_type` tell nothing apart."""
    own = _FAMILY.fullmatch(family)
    if own is None or own.group(1).endswith("_created"):
        return None
    if kind == "histogram":
        take = HISTOGRAMS.get(own.group(1))
        return engine_pages_pages.bucket_of(take, series, family, ()) if take is not None else Unmapped(own.group(1))
    base = own.group(1).removesuffix("_total")
    if base in USELESS:
        return None
    return engine_pages_pages.value_of(VALUES[base], series, ()) if base in VALUES else Unmapped(base)


WORDS = Vocabulary(
    name="tensorrt_llm",
    decide=decide,
    proves=lambda series: _FAMILY.fullmatch(series.name) is not None,
    stranger="a metrics page without trtllm_ series",
)


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """One page; see `pages.read`. KV blocks become tokens."""
    if body[:64].lstrip()[:1] in (b"[", b"{"):
        raise ScrapeError("garbage", f"that is the JSON of iteration statistics; the metrics page is at {PATH}")
    return blocks.in_tokens(engine_pages_pages.read(body, state, limits, WORDS))


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """GET /prometheus/metrics, whatever metrics path the target's URL names.

    Raises:
        ScrapeError: as `http.get` and `parse`.
    """
    return await engine_pages_pages.parsed(parse, await _fetch(client, limits), state, limits)


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
    """Does trtllm-serve answer? Its /metrics is JSON and says nothing."""
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
