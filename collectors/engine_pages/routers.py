"""Reads pages of routers by tables of their families. Shared by the collectors of routers.

Routers of the sgl-router family (Rust, metrics-exporter-prometheus) write a histogram without configured buckets as a
summary: quantiles over a window, 0 if the window contains no request.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from msgspec import structs

from collectors.engine_pages import pages
from collectors.engine_pages.pages import Decision, MetricRule, PageRules, Unmapped
from collectors.formats.exposition import Series
from collectors.model import Labels, Limits, Reading, State

# A quantile of exactly 0 s is that of an empty window, because every request takes time.
QUANTILES = frozenset(
    f"router_{what}_quantile_seconds" for what in ("request", "queue", "time_to_first_token", "inter_token")
)
HEALTH = "router_worker_healthy"


@dataclass(frozen=True, slots=True)
class RouterNames:
    """Tables of one router's families. Names are without its prefix and without `_total`.

    Attributes:
        family: matches a whole family name of this router; group 1 is the name in the tables.
        summaries: families that may be written as summaries.
        useless: families that are not mapped on purpose (the router's own caches, repeated metrics of engines).
        worker: labels that may name a worker; the first present one is used.
    """

    family: re.Pattern[str]
    values: Mapping[str, MetricRule]
    histograms: Mapping[str, MetricRule]
    summaries: Mapping[str, MetricRule] = field(default_factory=dict)
    useless: re.Pattern[str] = re.compile(r"(?!)")
    worker: tuple[str, ...] = ("worker",)


def address(url: str) -> str:
    """Host and port of a worker's URL, without credentials; the data-parallel rank (``...:8000@1``) stays."""
    authority = (url.partition("://")[2] or url).partition("/")[0]
    *_, before, last = ["", *authority.split("@")]
    return f"{before}@{last}" if before and last.isdecimal() else last


def page_rules(name: str, names: RouterNames, mismatch: str) -> PageRules:
    """The rules of one router for `pages.read`."""

    def decide(series: Series, family: str, kind: str) -> Decision:
        match = names.family.fullmatch(family)
        if match is None:
            return None
        return _plan(names, series, family, kind, match.group(1).removesuffix("_total"))

    return PageRules(name, decide, lambda series: names.family.fullmatch(series.name) is not None, mismatch)


def _plan(names: RouterNames, series: Series, family: str, kind: str, base: str) -> Decision:
    worker = labels(series, names)
    if kind == "histogram" and base in names.histograms:
        return pages.bucket_of(names.histograms[base], series, family, worker)
    if kind == "summary" and base in names.summaries:
        # Only quantiles are read: sum and count of a summary cover another time.
        quantile = series.name == family and series.label("quantile")
        return pages.value_of(names.summaries[base], series, (("quantile", quantile), *worker)) if quantile else None
    # A gauge with the label `le` (requests by age) is not a histogram: the TYPE line decides.
    if kind not in ("histogram", "summary") and base in names.values:
        return pages.value_of(names.values[base], series, worker)
    return None if base.endswith("_created") or names.useless.fullmatch(base) else Unmapped(base)


def labels(series: Series, names: RouterNames) -> Labels:
    """The label of the worker, if the series names one."""
    worker = next((value for name in names.worker if (value := series.label(name))), "")
    return (("worker", address(worker)),) if worker else ()


def read(body: bytes, state: State, limits: Limits, rules: PageRules) -> Reading:
    """Reads one page as `pages.read`, without quantiles of empty windows and without removed workers."""
    reading = pages.read(body, state, limits, rules)
    gone = {sample.labels for sample in reading.samples if sample.metric == HEALTH and sample.value < 0}
    samples = tuple(
        sample
        for sample in reading.samples
        # Newer gateways set the health of a removed worker to -1 and leave its other gauges at their last value.
        if sample.value >= 0
        and not (sample.metric in QUANTILES and sample.value == 0)
        and not (sample.labels in gone and not sample.metric.endswith("_total"))
    )
    return structs.replace(reading, samples=samples)


# ---- router names
# Tables that map families of the sgl-router line to our metrics.

_REQUESTS = MetricRule("router_requests_total", fold="sum")
_ERRORS = MetricRule("router_errors_total", "error_type>reason", fold="sum")
_REQUEST_TIME = MetricRule("router_request_seconds", fold="sum")
_RETRIES = MetricRule("router_retries_total", fold="sum")
_GIVEN_UP = MetricRule("router_retries_exhausted_total", fold="sum")
_IN_FLIGHT = MetricRule("router_requests_in_flight")


def _rejected(outcome: str, reason: str, also: MetricRule | None = None) -> MetricRule:
    """Admissions with an outcome that means rejection."""
    only = (("outcome", outcome),)
    return MetricRule("router_rejected_total", fold="sum", only=only, put=(("reason", reason),), also=also)


GATEWAY: Mapping[str, MetricRule] = {
    "worker_pool_size": MetricRule("router_workers", fold="sum"),
    "worker_health": MetricRule("router_worker_healthy"),
    "worker_cb_state": MetricRule("router_circuit_state"),
    "worker_requests_active": _IN_FLIGHT,
    "http_inflight_request_age_count": MetricRule("router_requests_by_age", "le>up_to_seconds"),
    "router_requests": _REQUESTS,
    "router_request_errors": _ERRORS,
    "worker_errors": MetricRule("router_worker_errors_total", "error_type>reason", fold="sum"),
    "worker_retries": _RETRIES,
    "worker_retries_exhausted": _GIVEN_UP,
    "http_rate_limit": MetricRule(
        "router_rejected_total", fold="sum", only=(("result", "rejected"),), put=(("reason", "rate_limit"),)
    ),
    # gRPC workers only.
    "router_tokens": MetricRule(
        "router_tokens_total",
        fold="sum",
        only=(("token_type", "output"),),
        also=MetricRule("router_prompt_tokens_total", fold="sum", only=(("token_type", "input"),)),
    ),
    # With --priority-scheduler-enabled, which replaces the rate limit.
    "scheduler_queue_depth": MetricRule("router_requests_queued", "class"),
    "scheduler_preemption": MetricRule("router_preemptions_total", fold="sum"),
    "scheduler_admit": _rejected(
        "rejected_queue_full", "queue_full", also=_rejected("rejected_queue_timeout", "queue_timeout")
    ),
}
GATEWAY_HISTOGRAMS: Mapping[str, MetricRule] = {"router_request_duration_seconds": _REQUEST_TIME}
GATEWAY_SUMMARIES: Mapping[str, MetricRule] = {
    "router_request_duration_seconds": MetricRule("router_request_quantile_seconds", fold="max"),
    "router_ttft_seconds": MetricRule("router_time_to_first_token_quantile_seconds", fold="max"),
    "router_tpot_seconds": MetricRule("router_inter_token_quantile_seconds", fold="max"),
    "scheduler_queue_wait_seconds": MetricRule("router_queue_quantile_seconds", "class", fold="max"),
}
# Not mapped: `engine...`, because the engines' own pages have it (`--engine-metrics` repeats it), and other subjects.
GATEWAY_USELESS = re.compile(
    r"(?:engine|mcp|db|tokenizer|discovery|mesh|cache|router_stage|http_request_duration|http_requests|http_responses)\w*"
    r"|worker_(?:selection|health_checks|connections_active|cb_(?:transitions|outcomes|consecutive_\w+))"
    r"|scheduler_(?:inflight|utilization|queue_size_limit|class_capacity_pressure)|manual_policy_cache_entries"
)

OLD: Mapping[str, MetricRule] = {
    "active_workers": MetricRule("router_workers"),
    "worker_health": MetricRule("router_worker_healthy"),
    "cb_state": MetricRule("router_circuit_state"),
    # `worker_load` is for all policies; `running_requests` is for cache_aware only and includes waiting requests.
    "worker_load": _IN_FLIGHT,
    "running_requests": replace(_IN_FLIGHT, rank=1),
    "requests": _REQUESTS,
    "request_errors": _ERRORS,
    # A request of a prefill-decode pair is counted only in these.
    "pd_requests": replace(_REQUESTS, put=(("path", "prefill_decode"),)),
    "pd_errors": replace(_ERRORS, put=(("path", "prefill_decode"),)),
    "retries": _RETRIES,
    "retries_exhausted": _GIVEN_UP,
    # Of the policy cache_aware, by the router's own tree of prefixes.
    "cache_hits": MetricRule("router_cache_hits_total", fold="sum"),
    "cache_misses": MetricRule("router_cache_misses_total", fold="sum"),
    "job_queue_full": MetricRule("router_rejected_total", fold="sum", put=(("reason", "queue_full"),)),
}
OLD_HISTOGRAMS: Mapping[str, MetricRule] = {
    "request_duration_seconds": _REQUEST_TIME,
    "generate_duration_seconds": replace(_REQUEST_TIME, rank=1),
    "pd_request_duration_seconds": replace(_REQUEST_TIME, put=(("path", "prefill_decode"),)),
}
OLD_SUMMARIES: Mapping[str, MetricRule] = {
    "request_duration_seconds": MetricRule("router_request_quantile_seconds", fold="max"),
    "generate_duration_seconds": MetricRule("router_request_quantile_seconds", rank=1, fold="max"),
}
OLD_USELESS = re.compile(
    r"(?:cache|tree|discovery|policy|load_balancing|max_load|min_load|processed|upstream|http|job|embeddings|classify"
    r"|retry_backoff|cb_|pd_(?:prefill|decode|stream)|tenant|worker_requests|worker_request_duration)\w*"
)
