"""Reads pages of routers by tables of their families. Shared by the collectors of routers.

Routers of the sgl-router family (Rust, metrics-exporter-prometheus) write a histogram without configured buckets as a
summary: quantiles over a window, 0 if the window contains no request.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from collectors.engine_pages import pages
from collectors.engine_pages.pages import Decision, MetricRule, PageRules, Unmapped
from collectors.formats.exposition.parser import Series
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
    return replace(reading, samples=samples)
