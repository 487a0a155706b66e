"""Reads SGLang's /metrics page: load, KV cache, tokens, latencies, retractions, idle time, weight updates.

Accepts the names of 0.4 to 0.5.23 (`names`), behind Ray (`ray_sglang_...`), and with `_` for `:` (sgl-router's
`/engine_metrics`, Prometheus 2). Data-parallel ranks have the label ``engine``. An engine without `--enable-metrics` is
read from `/v1/loads`, which has load and KV cache but no counters.

Finish reasons are not reported, only the numbers of finished and aborted requests. Scheduler gauges are up to 40 decode
steps old (`--decode-log-interval`), 30 s when idle. `live_sequence_tokens` is 0 before the first decoded token.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import httpx

from collectors.engine_pages import pages, side_requests
from collectors.engine_pages.pages import Decision, LabelFact, MetricRule, PagePlan, PageRules, Unmapped
from collectors.engine_pages.side_requests import SideAnswer, SideRequest
from collectors.formats.exposition import Series
from collectors.model import Collector, Labels, Limits, Reading, Sample, ScrapeError, State
from collectors.transport import http, rest

# ---- names
# Tables that map SGLang's metric names to ours, by version (srt/observability/metrics_collector.py, 0.4.3 to 0.5.23).


def _each(label: str, *rows: tuple[str, MetricRule]) -> MetricRule:
    """Rows of one family, each for one value of a label."""
    chained: MetricRule | None = None
    for value, rule in rows:
        chained = replace(rule, only=((label, value),), also=chained)
    assert chained is not None
    return chained


def _waiting(reason: str) -> MetricRule:
    return MetricRule("generator_requests_waiting_by_reason", put=(("reason", reason),))


def _prompt(source: str) -> MetricRule:
    return MetricRule("generator_prompt_tokens_by_source_total", fold="sum", put=(("source", source),))


_PROMPT = MetricRule("generator_prompt_tokens_total", fold="sum")
_GENERATED = MetricRule("generator_tokens_total", fold="sum")
# A mode appears with its first token. Adding 0 for the other modes yields 0 generated tokens before the first one.
_NONE_YET = replace(_GENERATED, scale=0.0)
_QUERIES = MetricRule(side_requests.QUERIES, fold="sum")
_HITS = MetricRule(side_requests.HITS, fold="sum")
_ENDED_QUERIES = MetricRule("prefix_cache_queries_total", fold="sum")

VALUES: Mapping[str, MetricRule] = {
    "num_running_reqs": MetricRule("generator_requests_running"),
    "num_queue_reqs": MetricRule("generator_requests_waiting"),
    "num_waiting_reqs": MetricRule("generator_requests_waiting", rank=1),  # /v1/loads
    "max_running_requests": MetricRule("generator_request_limit"),  # /v1/loads
    # Additional queues: grammar compilation, and transfers between prefill and decode engines.
    "num_grammar_queue_reqs": _waiting("grammar"),
    "num_prefill_bootstrap_queue_reqs": _waiting("prefill_bootstrap"),
    "num_prefill_prealloc_queue_reqs": replace(_waiting("prefill_bootstrap"), rank=1),  # to 0.5.9
    "num_prefill_inflight_queue_reqs": _waiting("prefill_inflight"),
    "num_prefill_infight_queue_reqs": replace(_waiting("prefill_inflight"), rank=1),  # SGLang's typo, to 0.5.1
    "num_decode_prealloc_queue_reqs": _waiting("decode_prealloc"),
    "num_decode_transfer_queue_reqs": _waiting("decode_transfer"),
    # Counts since the previous log line and is then reset: it shows that there was a pause, not when.
    "num_paused_reqs": MetricRule("generator_requests_paused"),
    "queues_paused": MetricRule("generator_requests_paused", rank=1),  # /v1/loads
    "gen_throughput": MetricRule("generator_token_throughput"),
    "token_usage": MetricRule("kv_cache_usage_ratio"),  # the fullest of several pools
    "max_total_num_tokens": MetricRule("kv_cache_capacity_tokens"),  # 0.5.6
    "num_used_tokens": MetricRule("kv_cache_used_tokens"),
    "kv_used_tokens": MetricRule("kv_cache_used_tokens", rank=1),
    "context_len": MetricRule("generator_max_sequence_tokens"),
    "decode_sum_seq_lens": MetricRule("live_sequence_tokens"),  # 0.5.9
    "cache_hit_rate": MetricRule("prefix_cache_hit_ratio"),
    "avg_request_queue_latency": MetricRule("generator_queue_seconds_mean"),  # 0.4.6 to 0.5.1
    # Both are 0 while it does not speculate.
    "spec_accept_rate": MetricRule("speculative_accept_ratio"),
    "spec_accept_length": MetricRule("speculative_step_tokens"),
    "weight_load_duration_seconds": MetricRule("generator_weight_load_seconds", "source"),  # 0.5.16
    # Counters, live.
    "num_retracted_requests": MetricRule("generator_preemptions_total"),  # 0.5.9
    "total_retracted_reqs": MetricRule("generator_preemptions_total", rank=1),  # a gauge, 0.4.10 to 0.5.1
    "scheduler_idle_seconds": MetricRule("generator_idle_seconds_total"),  # 0.5.23
    "realtime_tokens": _each(
        "mode",
        ("decode", _GENERATED),
        ("prefill_compute", _PROMPT),
        ("prefill_compute", _prompt("local_compute")),
        ("prefill_compute", _NONE_YET),
        ("prefill_cache", _PROMPT),
        ("prefill_cache", _prompt("local_cache_hit")),
        ("prefill_cache", _NONE_YET),
    ),
    # The hit rate is all hits divided by all modes; "input" is the computed part.
    "prefill_effective_tokens": _each(
        "mode",
        ("input", _QUERIES),
        *((f"{tier}_hit", row) for tier in ("device", "host", "storage") for row in (_QUERIES, _HITS)),
    ),
    # Counters that are updated at the end of a request.
    "generation_tokens": replace(_GENERATED, rank=1),
    "prompt_tokens": replace(_PROMPT, rank=1, also=_ENDED_QUERIES),
    # Each request adds either to device, host and storage, or to total.
    "cached_tokens": MetricRule("prefix_cache_hits_total", fold="sum"),
    "num_requests": MetricRule("generator_requests_finished_total", fold="sum"),
    "num_aborted_requests": MetricRule("generator_requests_aborted_total", fold="sum"),
    "estimated_flops_per_gpu": MetricRule("generator_flops_total"),
}

COUNTERS = frozenset(name for name, rule in VALUES.items() if rule.metric.endswith("_total"))

HISTOGRAMS: Mapping[str, MetricRule] = {
    "generation_tokens_histogram": MetricRule("generator_response_tokens", fold="sum"),
    "prompt_tokens_histogram": MetricRule("generator_prompt_tokens", fold="sum"),
    "num_retractions": MetricRule("generator_request_preemptions", fold="sum"),  # 0.5.6 to 0.5.9
    "time_to_first_token_seconds": MetricRule("time_to_first_token_seconds", fold="sum"),
    "inter_token_latency_seconds": MetricRule("inter_token_latency_seconds", fold="sum"),  # 0.4.6
    "time_per_output_token_seconds": MetricRule("inter_token_latency_seconds", rank=1, fold="sum"),  # 0.4.3
    "request_time_per_output_token_seconds": MetricRule("request_time_per_token_seconds", fold="sum"),
    "e2e_request_latency_seconds": MetricRule("e2e_request_seconds", fold="sum"),
    "queue_time_seconds": MetricRule("generator_queue_seconds", fold="sum"),  # 0.5.4
    "per_stage_req_latency_seconds": MetricRule("generator_prefill_seconds", only=(("stage", "prefill_forward"),)),
    "kv_transfer_latency_ms": MetricRule("kv_transfer_seconds", scale=0.001),
}

# Constant 0 or -1 (metrics_reporter.py); reset with each log line; parts of `token_usage`, which is their maximum.
USELESS = frozenset({"utilization", "num_retracted_reqs", "full_token_usage", "swa_token_usage", "mamba_usage"})

# Routes of srt/entrypoints/http_server.py that control generation or change the weights.
CALLS: Mapping[str, str] = {
    "/pause_generation": "pause",
    "/continue_generation": "resume",
    "/release_memory_occupation": "sleep",
    "/resume_memory_occupation": "wake_up",
    "/begin_weight_update": "update_weights_begin",
    "/update_weights_from_disk": "update_weights",
    "/update_weights_from_tensor": "update_weights",
    "/update_weights_from_distributed": "update_weights",
    "/update_weights_from_ipc": "update_weights",
    "/end_weight_update": "update_weights_finish",
    "/update_weight_version": "update_weight_version",
    "/flush_cache": "reset_prefix_cache",
    "/load_lora_adapter": "load_lora_adapter",
}

# With `--enable-metrics-for-all-schedulers` each rank exports the same values.
COPY_LABELS = ("pp_rank", "tp_rank", "moe_ep_rank")


# Ray puts `ray_` before the name, an OpenTelemetry collector its namespace.
_FAMILY = re.compile(r"(?:[a-z0-9]+[_:])?sglang[:_](.+)")
_PAGE = re.compile(
    rb"^(?:[a-z0-9]+[_:])?sglang[:_](?:num_(?:running|queue|waiting|used)_\w+|token_usage|gen_throughput|cache_hit_rate"
    rb"|(?:prompt|generation|realtime)_tokens(?:_total)?|num_requests_total)\{(?![^}\n]*\bdynamo_component=)",
    re.MULTILINE,
)
_LOADS = "/v1/loads?format=prometheus"


def decide(series: Series, family: str, kind: str) -> Decision:
    """Maps one series of an engine's page."""
    match = _FAMILY.fullmatch(family)
    if match is None:
        return None
    base = match.group(1)
    # With priorities the series with priority "" is the total and the others are its parts.
    if base.endswith("_created") or base in USELESS or series.label("priority"):
        return _role(series) if base == "utilization" else None
    if part := pages.untyped_part(base, kind, HISTOGRAMS):
        base, family, kind = base.removesuffix(part), family.removesuffix(part), "histogram"
    if kind == "histogram":
        return _histogram(series, family, base)
    while base.endswith("_total"):  # Ray may add a second one
        base = base.removesuffix("_total")
    if base == "cache_config_info":
        return _cache_config(series)
    if base.startswith("http_"):
        return _call(series, base)
    rule = VALUES.get(base)
    if rule is None:
        return Unmapped(base)
    # Ray's older exporter writes every counter twice, the second time as a gauge without "_total".
    doubled = base in COUNTERS and series.name.startswith("ray_") and not series.name.endswith("_total")
    if base == "cache_hit_rate" and series.label("name") and not series.label("model_name"):
        rule = replace(rule, scale=0.01)  # a percentage before 0.4.3, which names the model in the label `name`
    plan = pages.over_processes(pages.value_of(rule, series, labels(series), int(doubled)), series)
    return _one_copy(plan, series) if plan is not None else None


def _histogram(series: Series, family: str, base: str) -> Decision:
    rule = HISTOGRAMS.get(base)
    if rule is None:
        return Unmapped(base)
    plan = pages.bucket_of(rule, series, family, labels(series))
    return replace(plan, copy=_copy(series)) if plan is not None else None


def _one_copy(plan: PagePlan, series: Series) -> PagePlan:
    """The plan for one rank of a model only. Schedulers' names have precedence over the tokenizer's (no dp_rank)."""
    also = _one_copy(plan.also, series) if plan.also is not None else None
    return replace(plan, copy=_copy(series), scope=pages.replica_of(series), also=also)


def _copy(series: Series) -> Labels:
    return tuple((name, series.label(name).rjust(6, "0")) for name in COPY_LABELS)


def _role(series: Series) -> Decision:
    """Of an engine with `--disaggregation-mode`, from a series that each process has once; `unified` does both."""
    prefill_only = {"prefill": 1.0, "decode": 0.0}.get(series.label("engine_type"))
    if prefill_only is None or any(series.label(rank) not in ("", "0") for rank in (*COPY_LABELS, "dp_rank")):
        return None
    return LabelFact((Sample("generator_prefill_only", prefill_only, pages.replica_of(series)),))


def _cache_config(series: Series) -> Decision:
    """0.5.9 only: the number of KV pages and their size are in labels."""
    count, size = (
        pages.number(series.label("num_pages")),
        pages.number(series.label("page_size")),
    )
    if count is None or size is None:
        return None
    plan = PagePlan("kv_cache_capacity_tokens", labels(series), rank=1, scale=count * size)
    return _one_copy(plan, series)


def _call(series: Series, base: str) -> Decision:
    """Maps the HTTP server's counts by route (0.5.23): only these show pauses and weight updates."""
    call = CALLS.get(series.label("endpoint"))
    if call is None:
        return None
    call_labels = (("call", call), *pages.replica_of(series))
    if base == "http_responses" and series.label("status_code") == "200":
        return PagePlan("generator_control_requests_total", call_labels, fold="sum")
    if base == "http_requests_active":
        return PagePlan("generator_control_requests_active", call_labels, fold="sum")
    return None


def labels(series: Series) -> Labels:
    """Our labels: the data-parallel rank as engine, and the replica if the page holds several processes."""
    rank = series.label("dp_rank")
    return ((("engine", rank),) if rank else ()) + pages.replica_of(series)


def _proves(series: Series) -> bool:
    # Any Ray page is accepted, because it sometimes lacks the engine.
    return series.name.startswith("ray_") or _FAMILY.fullmatch(series.name) is not None


RULES = PageRules(
    name="sglang",
    decide=decide,
    proves=_proves,
    mismatch="a metrics page without sglang: series (a router's own? give the engines' URLs, or its /engine_metrics)",
)


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """Parses one page; see `pages.read`. Pauses are derived from the calls that the HTTP server counts."""
    return side_requests.with_paused(side_requests.select_counters(pages.read(body, state, limits, RULES)), state)


def _configured(answer: Any) -> SideAnswer:
    """The limit of running requests of each data-parallel rank, and the version: only `/v1/loads` has them."""
    loads = answer.get("loads") if isinstance(answer, dict) else None
    rows = [row for row in loads if isinstance(row, dict)] if isinstance(loads, list) else []
    limits = [(row, rest.number(row.get("max_running_requests"))) for row in rows]
    ranked = len(rows) > 1  # an engine without data parallelism has no dp_rank on its page
    samples = [
        Sample("generator_request_limit", limit, (("engine", str(row.get("dp_rank"))),) if ranked else ())
        for row, limit in limits
        if limit is not None
    ]
    return SideAnswer(tuple(samples), side_requests.version("SGLang")(answer).events)


# /get_weight_version is not requested: it was removed in 0.5.23. The old name of /model_info is last, because newer
# engines log a warning for it.
# They also show whether the engine works; `/health` is not requested, because it generates a token.
_MODEL_PATHS = ("/model_info", "/get_model_info")
SIDE = (
    SideRequest(_MODEL_PATHS, side_requests.OFTEN_SECONDS, side_requests.weights),
    SideRequest(("/v1/loads",), side_requests.SELDOM_SECONDS, _configured),
)


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """GETs the page, or `/v1/loads` of an engine without one. Every 15 s it also requests the version of the weights.

    Raises:
        ScrapeError: as `http.get` and `parse`.
    """
    page = await _page(client, state, limits)
    # A page from `/v1/loads` contains them already.
    present = any(sample.metric == "generator_request_limit" for sample in page.samples)
    return side_requests.joined_answers(
        page, await side_requests.poll(client, state, limits, SIDE[:1] if present else SIDE)
    )


async def _page(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    try:
        return await pages.parsed(parse, await http.metrics_page(client, limits), state, limits)
    except ScrapeError as error:
        first = error
    if first.kind == "status" and "HTTP 404" in str(first) and not client.base_url.path.rstrip("/").endswith("metrics"):
        try:
            return await pages.parsed(parse, await http.get(client, _LOADS, limits), state, limits)
        except ScrapeError:
            first = ScrapeError("status", f"{first}: started without --enable-metrics?")
    raise await pages.failure(first, client, limits, _MODEL_PATHS)


def matches_page(body: bytes) -> bool:
    """Is it the page of an SGLang engine, or a router's merged page of engines?"""
    return _PAGE.search(body) is not None


async def matches_server(client: httpx.AsyncClient, limits: Limits) -> bool:
    """Does an engine answer that has no metrics page, or whose page fails?"""
    try:
        return matches_page(await http.get(client, _LOADS, limits))
    except ScrapeError:
        return await _has_model(client, limits)


async def _has_model(client: httpx.AsyncClient, limits: Limits) -> bool:
    """Does the server describe its model as only SGLang does?"""
    for path in _MODEL_PATHS:
        try:
            answer = json.loads(await http.get(client, path, limits))
        except (ScrapeError, ValueError):
            continue
        return isinstance(answer, dict) and {"model_path", "is_generation"} <= answer.keys()
    return False


COLLECTOR = Collector(
    name="sglang",
    actor="generator",
    reads="SGLang engines over their /metrics page, a router's /engine_metrics, or /v1/loads",
    versions="0.4.3 to 0.5.23 by source, 0.5.23 by pages that its metrics code wrote",
    parse=parse,
    poll=poll,
    matches_page=matches_page,
    matches_server=matches_server,
)
