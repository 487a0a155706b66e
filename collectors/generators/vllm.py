"""Reads vLLM's /metrics page: load, KV cache, requests, latencies, sleep, weight updates.

Accepts the names of 0.8 to 0.33 (`names`), behind Ray (`ray_vllm_...`), and with `_` for `:` (sgl-router, Prometheus
2). Data-parallel engines have the label ``engine``. The production-stack router uses vLLM's names, too; its series are
dropped, because they count the engines' requests a second time.

No family reports pauses or the served weights. Pauses are derived from the calls that the HTTP server counts. Both are
also requested from the server's routes, if it has them (dev mode).

Not detected: pauses from Python without these routes (gauges freeze); the purpose of a request (train, eval, judge).
`generator_asleep` 0 does not prove that the engine is awake: verl before 0.9 does not update the gauge. Request
histograms and finish counters change only when a request finishes.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import httpx
from msgspec import structs

from collectors.engine_pages import pages, side_requests
from collectors.engine_pages.pages import Decision, LabelFact, MetricRule, PagePlan, PageRules, Unmapped
from collectors.engine_pages.side_requests import SideAnswer, SideRequest
from collectors.formats.exposition import Series
from collectors.model import Collector, Labels, Limits, Reading, Sample, ScrapeError, State
from collectors.transport import http, rest

# ---- names
# Tables that map vLLM's metric names to ours, by version (vllm/v1/metrics/loggers.py, 0.8.5 to 0.33.0).

VALUES: Mapping[str, MetricRule] = {
    "num_requests_running": MetricRule("generator_requests_running"),
    "num_requests_waiting": MetricRule("generator_requests_waiting"),
    "num_requests_waiting_by_reason": MetricRule("generator_requests_waiting_by_reason", "reason"),
    "num_requests_swapped": MetricRule("generator_requests_waiting_by_reason", put=(("reason", "swapped"),)),  # V0 only
    "kv_cache_usage_perc": MetricRule("kv_cache_usage_ratio"),  # 0..1 despite the name
    "gpu_cache_usage_perc": MetricRule("kv_cache_usage_ratio", rank=2),  # to 0.10
    "prefix_cache_queries": MetricRule("prefix_cache_queries_total"),
    "gpu_prefix_cache_queries": MetricRule("prefix_cache_queries_total", rank=2),  # to 0.10
    "prefix_cache_hits": MetricRule("prefix_cache_hits_total"),
    "gpu_prefix_cache_hits": MetricRule("prefix_cache_hits_total", rank=2),  # to 0.10
    "gpu_prefix_cache_hit_rate": MetricRule("prefix_cache_hit_ratio", blank=-1.0),  # V0 only; -1: no query yet
    "num_preemptions": MetricRule("generator_preemptions_total"),
    "prompt_tokens": MetricRule("generator_prompt_tokens_total"),
    "prompt_tokens_by_source": MetricRule("generator_prompt_tokens_by_source_total", "source"),
    "generation_tokens": MetricRule("generator_tokens_total"),
    "request_success": MetricRule("generator_requests_finished_total", "finished_reason>reason"),
    "admission_rejections": MetricRule("generator_requests_rejected_total", "reason"),
    "corrupted_requests": MetricRule("generator_corrupted_requests_total"),
    "rl_weight_update_operations_in_flight": MetricRule("generator_control_requests_active", "operation>call"),  # 0.32
    "sleep_mode_operations_in_flight": MetricRule("generator_control_requests_active", "operation>call"),  # 0.32
    "spec_decode_num_draft_tokens": MetricRule("speculative_draft_tokens_total"),
    "spec_decode_num_accepted_tokens": MetricRule("speculative_accepted_tokens_total"),
    "spec_decode_num_drafts": MetricRule("speculative_drafts_total"),
    "spec_decode_num_accepted_tokens_per_pos": MetricRule("speculative_accepted_tokens_by_position_total", "position"),
    "spec_decode_draft_acceptance_rate": MetricRule("speculative_accept_ratio"),  # V0 only
    "estimated_flops_per_gpu": MetricRule("generator_flops_total"),
}

COUNTERS = frozenset(name for name, rule in VALUES.items() if rule.metric.endswith("_total"))

HISTOGRAMS: Mapping[str, MetricRule] = {
    "request_generation_tokens": MetricRule("generator_response_tokens"),
    "request_prompt_tokens": MetricRule("generator_prompt_tokens"),
    "iteration_tokens_total": MetricRule("generator_iteration_tokens"),  # a histogram in spite of its name
    "request_num_preemptions": MetricRule("generator_request_preemptions"),
    "time_to_first_token_seconds": MetricRule("time_to_first_token_seconds"),
    "inter_token_latency_seconds": MetricRule("inter_token_latency_seconds"),
    "time_per_output_token_seconds": MetricRule("inter_token_latency_seconds", rank=1),  # to 0.14
    "request_time_per_output_token_seconds": MetricRule("request_time_per_token_seconds"),
    "e2e_request_latency_seconds": MetricRule("e2e_request_seconds"),
    "request_queue_time_seconds": MetricRule("generator_queue_seconds"),
    "time_in_queue_requests": MetricRule("generator_queue_seconds", rank=1),  # V0 only
    "request_inference_time_seconds": MetricRule("generator_inference_seconds"),
    "request_prefill_time_seconds": MetricRule("generator_prefill_seconds"),
    "request_decode_time_seconds": MetricRule("generator_decode_seconds"),
    "rl_weight_update_operation_duration_seconds": MetricRule("generator_weight_update_seconds", "operation"),  # 0.32
    "sleep_mode_operation_duration_seconds": MetricRule("generator_sleep_seconds", "operation"),  # 0.32
}

# Routes of vLLM's own RL API (entrypoints/serve/rlhf, since 0.32 entrypoints/rl/online), of prime-rl's server around
# vLLM (src/prime_rl/inference/vllm/server.py), and those that TRL and OpenRLHF use to update weights.
CALLS: Mapping[str, str] = {
    "/pause": "pause",
    "/resume": "resume",
    "/sleep": "sleep",
    "/wake_up": "wake_up",
    "/start_weight_update": "update_weights_begin",
    "/update_weights": "update_weights",
    "/finish_weight_update": "update_weights_finish",
    "/update_weight_version": "update_weight_version",
    "/collective_rpc": "collective_rpc",
    "/reset_prefix_cache": "reset_prefix_cache",
    "/load_lora_adapter": "load_lora_adapter",
    "/v1/load_lora_adapter": "load_lora_adapter",
}


# Ray puts `ray_` before the name, an OpenTelemetry collector its namespace.
_FAMILY = re.compile(r"(?:[a-z0-9]+[_:])?vllm[:_](.+)")
_PAGE = re.compile(
    rb"^(?:[a-z0-9]+[_:])?vllm[:_](?:num_requests_(?:running|waiting)|generation_tokens(?:_total)?|cache_config_info)"
    rb"\{(?![^}\n]*\b(?:server|dynamo_component)=)",
    re.MULTILINE,
)


def decide(series: Series, family: str, kind: str) -> Decision:
    """Maps one series of an engine's page."""
    match = _FAMILY.fullmatch(family)
    if match is None:
        return _http_server(series)
    # The production-stack router uses vLLM's names with the label `server`.
    if (series.label("server") and not series.label("engine")) or match.group(1).endswith("_created"):
        return None
    base = match.group(1)
    if part := pages.untyped_part(base, kind, HISTOGRAMS):
        base, family, kind = base.removesuffix(part), family.removesuffix(part), "histogram"
    if kind == "histogram":
        rule = HISTOGRAMS.get(base)
        return pages.bucket_of(rule, series, family, labels(series)) if rule is not None else Unmapped(base)
    return _value(series, base if kind == "summary" else base.removesuffix("_total"))


def _value(series: Series, base: str) -> Decision:
    if base == "cache_config_info":
        return LabelFact(tuple(_cache_config(series)))
    if base == "engine_sleep_state":
        # Sleep levels 1 and 2 both mean "not awake"; one of them at 1 is sufficient.
        awake = series.label("sleep_state") == "awake"
        return None if awake else PagePlan("generator_asleep", labels(series), fold="max")
    if base in VALUES:
        # Ray's older exporter writes every counter twice, the second time as a gauge without "_total".
        doubled = base in COUNTERS and not series.name.endswith("_total")
        return pages.over_processes(pages.value_of(VALUES[base], series, labels(series), int(doubled)), series)
    return Unmapped(base)


def _http_server(series: Series) -> PagePlan | None:
    """Maps families of the HTTP server around the engine: weight updates by prime-rl appear only there.

    Only POST requests are counted, because our own side requests (`SIDE`) are GET.
    """
    if series.name == "process_start_time_seconds":
        return PagePlan("generator_start_time_seconds", pages.replica_of(series))
    call = CALLS.get(series.label("handler"))
    if call is None or series.label("method") not in ("POST", ""):
        return None
    call_labels = (("call", call), *pages.replica_of(series))
    if series.name == "http_requests_total" and series.label("status") == "2xx":
        return PagePlan("generator_control_requests_total", call_labels, fold="sum")
    if series.name == "http_request_duration_seconds_sum":
        return PagePlan("generator_control_seconds_total", call_labels, fold="sum")
    return None


def labels(series: Series) -> Labels:
    """Our labels: engine, and the replica if the page holds several processes."""
    engine = series.label("engine")
    return ((("engine", engine),) if engine else ()) + pages.replica_of(series)


def _cache_config(series: Series) -> Iterator[Sample]:
    """`cache_config_info`: 1, with the configuration in its labels.

    The product of blocks and block size is correct only without hybrid cache groups, so the engine's own figure (0.29
    on) has precedence.
    """
    capacity = pages.number(series.label("kv_cache_size_tokens"))
    if capacity is None:
        # An override does not change `num_gpu_blocks` (with prime-rl it was wrong by a factor of 4).
        blocks = pages.number(series.label("num_gpu_blocks_override")) or pages.number(series.label("num_gpu_blocks"))
        size = pages.number(series.label("block_size"))
        # As the engine computes it, with the null block: 8192 blocks of 128 are 1048576 tokens (0.32.0).
        capacity = blocks * size if blocks and size else None
    if capacity is not None:
        yield Sample("kv_cache_capacity_tokens", capacity, labels(series))
    limit = pages.number(series.label("kv_cache_max_concurrency"))
    if limit is not None:
        yield Sample("kv_concurrency_limit", limit, labels(series))


def _proves(series: Series) -> bool:
    """Is the series one that only an engine has? Any Ray page is accepted, because it sometimes lacks the engine."""
    if series.name.startswith("ray_"):
        return True
    match = _FAMILY.fullmatch(series.name)
    if match is None or (series.label("server") and not series.label("engine")):
        return False
    return bool(series.label("engine") or series.label("model_name")) or match.group(1) == "cache_config_info"


# What an engine step changes: requests and KV cache as gauges, tokens as counters.
_STEP_VALUES = (
    "generator_requests_running",
    "generator_requests_waiting",
    "kv_cache_usage_ratio",
    "generator_tokens_total",
    "generator_prompt_tokens_total",
)
# Equal pages in a row after which no step is in progress.
_IDLE_PAGES = 3

RULES = PageRules(
    name="vllm",
    decide=decide,
    proves=_proves,
    mismatch="a metrics page without an engine's vllm: series "
    "(--disable-log-stats, or a router: give the engines' URLs)",
)


def parse(body: bytes, state: State, limits: Limits) -> Reading:
    """Parses one page; see `pages.read`. Pauses are derived from the calls that the HTTP server counts."""
    return side_requests.with_paused(_without_aborted(pages.read(body, state, limits, RULES), state), state)


@dataclass(frozen=True, slots=True)
class _LastStep:
    """The newest page on which an engine had made a step: its gauges and tokens, and the aborts counted before it."""

    values: tuple[float | None, ...]
    aborts_before: float
    pages: int


def _without_aborted(reading: Reading, state: State) -> Reading:
    """Sets requests to 0 and drops KV cache usage of engines of which every request was aborted.

    vLLM sets these gauges in an engine step alone, and no step follows the last abort. It is shown by as many aborts
    as requests ran and waited (`request_success_total{finished_reason="abort"}`), while nothing else changes.
    """
    previous: dict[Labels, _LastStep] = state.get("last_steps", {})
    aborted: dict[Labels, float] = state.get("aborted", {})
    values: dict[Labels, dict[str, float]] = {}
    aborts: dict[Labels, float] = {}
    for sample in reading.samples:
        if sample.metric in _STEP_VALUES:
            values.setdefault(sample.labels, {})[sample.metric] = sample.value
        elif sample.metric == "generator_requests_finished_total" and ("reason", "abort") in sample.labels:
            aborts[tuple(pair for pair in sample.labels if pair[0] != "reason")] = sample.value
    steps, idle = dict[Labels, _LastStep](), set[Labels]()
    for labels, found in values.items():
        if _STEP_VALUES[0] not in found or labels not in aborts:
            continue
        last, now = previous.get(labels), tuple(map(found.get, _STEP_VALUES))
        if last is None or last.values != now:
            steps[labels] = _LastStep(now, aborted.get(labels, aborts[labels]), 1)
            continue
        steps[labels] = last = replace(last, pages=last.pages + 1)
        held = found[_STEP_VALUES[0]] + found.get(_STEP_VALUES[1], 0.0)
        if held and last.pages >= _IDLE_PAGES and aborts[labels] - last.aborts_before >= held:
            idle.add(labels)
    state["last_steps"], state["aborted"] = steps, aborts
    if not idle:
        return reading
    samples = (_when_idle(sample) if sample.labels in idle else sample for sample in reading.samples)
    return structs.replace(reading, samples=tuple(sample for sample in samples if sample is not None))


def _when_idle(sample: Sample) -> Sample | None:
    if sample.metric in _STEP_VALUES[:2]:
        return structs.replace(sample, value=0.0)
    return None if sample.metric == "kv_cache_usage_ratio" else sample


def _is_paused(answer: Any) -> SideAnswer:
    value = answer.get("is_paused") if isinstance(answer, dict) else None
    return SideAnswer((Sample(side_requests.METRIC, float(value)),) if isinstance(value, bool) else ())


def _request_limit(answer: Any) -> SideAnswer:
    """Maximum of sequences that each engine runs at once: ``vllm_config.scheduler_config.max_num_seqs``."""
    for key in ("vllm_config", "scheduler_config", "max_num_seqs"):
        answer = answer.get(key) if isinstance(answer, dict) else None
    limit = rest.number(answer)
    return SideAnswer((Sample("generator_request_limit", limit),) if limit else ())


# /is_paused, /weight_info and /server_info exist only with VLLM_SERVER_DEV_MODE=1. /v1/models is requested with the
# target's key, if any. /server_info is last, because its first answer takes seconds.
SIDE = (
    SideRequest(("/is_paused",), side_requests.OFTEN_SECONDS, _is_paused, repeats=False),
    SideRequest(("/weight_info",), side_requests.OFTEN_SECONDS, side_requests.weights),  # 0.29 on
    SideRequest(("/v1/models",), side_requests.SELDOM_SECONDS, side_requests.sequence_limit),
    SideRequest(("/version",), side_requests.SELDOM_SECONDS, side_requests.version("vLLM")),
    SideRequest(("/server_info?config_format=json",), side_requests.SELDOM_SECONDS, _request_limit),
)


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    """GETs the page: at the client's base URL if that names one (`.../engine_metrics`), else at /metrics below it.

    Also sends the side requests that are due (pause and weights: every 15 s at most).

    Raises:
        ScrapeError: as `http.get` and `parse`.
    """
    try:
        page = await pages.parsed(parse, await http.metrics_page(client, limits), state, limits)
    except ScrapeError as error:
        raise await pages.failure(error, client, limits, ("/health",)) from None
    return side_requests.joined_pauses(page, await side_requests.poll(client, state, limits, SIDE), state)


def matches_page(body: bytes) -> bool:
    """Is it a vLLM engine's page (not that of a router with the same names)?"""
    return _PAGE.search(body) is not None


async def matches_server(client: httpx.AsyncClient, limits: Limits) -> bool:
    """Does an engine answer whose metrics page fails? `/version` has the version alone, `/health` an empty body."""
    try:
        version = json.loads(await http.get(client, "/version", limits))
        await http.get(client, "/health", limits)
    except (ScrapeError, ValueError):
        return False
    return isinstance(version, dict) and version.keys() == {"version"}


COLLECTOR = Collector(
    name="vllm",
    actor="generator",
    reads="vLLM engines over their /metrics page",
    versions="0.8 to 0.33 by source, 0.32.0 by recorded pages",
    parse=parse,
    poll=poll,
    matches_page=matches_page,
    matches_server=matches_server,
    version_path="/version",
)
