"""What collectors of routers share: tables of a router's own families, its workers' addresses, summaries.

Routers of the sgl-router family (Rust, metrics-exporter-prometheus) write a histogram without configured buckets as a
summary: quantiles over a window, 0 where the window holds no request.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from collectors.engine_pages import pages as engine_pages_pages
from collectors.engine_pages.pages import Decision, Take, Unmapped, Vocabulary
from collectors.formats.exposition.parser import Series
from collectors.model import Labels, Limits, Reading, State

# A quantile of exactly 0 s is that of an empty window: no request takes no time.
QUANTILES = frozenset(
    f"router_{what}_quantile_seconds" for what in ("request", "queue", "time_to_first_token", "inter_token")
)
HEALTH = "router_worker_healthy"


@dataclass(frozen=True, slots=True)
class RouterNames:
    """One router's families, without its prefix and without `_total`.

    Attributes:
        family: matches a whole family name of this router; group 1 is the name in the tables.
        summaries: families that come as summaries, where they do.
        useless: families of the router that say nothing of use (its own caches, what engines say again).
        worker: labels that name a worker, first that is there.
    """

    family: re.Pattern[str]
    values: Mapping[str, Take]
    histograms: Mapping[str, Take]
    summaries: Mapping[str, Take] = field(default_factory=dict)
    useless: re.Pattern[str] = re.compile(r"(?!)")
    worker: tuple[str, ...] = ("worker",)


def address(url: str) -> str:
    """Host and port of a worker's URL, without credentials; the data-parallel rank (``...:8000@1``) stays."""
    place = (url.partition("://")[2] or url).partition("/")[0]
    *_, before, last = ["", *place.split("@")]
    return f"{before}@{last}" if before and last.isdecimal() else last


def vocabulary(name: str, names: RouterNames, stranger: str) -> Vocabulary:
    """The words of one router, for `pages.read`."""

    def decide(series: Series, family: str, kind: str) -> Decision:
        own = names.family.fullmatch(family)
        if own is None:
            return None
        return _plan(names, series, family, kind, own.group(1).removesuffix("_total"))

    return Vocabulary(name, decide, lambda series: names.family.fullmatch(series.name) is not None, stranger)


def _plan(names: RouterNames, series: Series, family: str, kind: str, base: str) -> Decision:
    worker = labels(series, names)
    if kind == "histogram" and base in names.histograms:
        return engine_pages_pages.bucket_of(names.histograms[base], series, family, worker)
    if kind == "summary" and base in names.summaries:
        # Sum and count of a summary are of another time than its quantiles.
        told = series.name == family and series.label("quantile")
        return (
            engine_pages_pages.value_of(names.summaries[base], series, (("quantile", told), *worker)) if told else None
        )
    # A gauge that carries `le` (requests by age) is no histogram: the TYPE line decides.
    if kind not in ("histogram", "summary") and base in names.values:
        return engine_pages_pages.value_of(names.values[base], series, worker)
    return None if base.endswith("_created") or names.useless.fullmatch(base) else Unmapped(base)


def labels(series: Series, names: RouterNames) -> Labels:
    """The worker, where the series names one."""
    found = next((value for name in names.worker if (value := series.label(name))), "")
    return (("worker", address(found)),) if found else ()


def read(body: bytes, state: State, limits: Limits, words: Vocabulary) -> Reading:
    """One page; see `pages.read`. What the router does not know is left out: empty windows, workers that are gone."""
    reading = engine_pages_pages.read(body, state, limits, words)
    gone = {sample.labels for sample in reading.samples if sample.metric == HEALTH and sample.value < 0}
    kept = tuple(
        sample
        for sample in reading.samples
        # Newer gateways hold a removed worker's health at -1, and its other gauges at what they last were.
        if sample.value >= 0
        and not (sample.metric in QUANTILES and sample.value == 0)
        and not (sample.labels in gone and not sample.metric.endswith("_total"))
    )
    return replace(reading, samples=kept)
