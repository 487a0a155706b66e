"""Turns a metrics page into a `Reading` by the rules of one system. Shared by all collectors of exposition pages.

A page repeats its series in every scrape. So what to do with a series is decided once (`PageRules.decide`, a pure
function of the series and its family) and cached as long as the TYPE lines of the page do not change.

The names of the systems are in the collectors' tables, not here.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf, isfinite, isinf, isnan
from operator import add, itemgetter
from typing import Literal

import httpx
from msgspec import structs

from collectors.catalog import METRICS
from collectors.formats import exposition
from collectors.formats.exposition import Grouper, Page, Series, edges_flaw, flaw_of_counts
from collectors.model import Histogram, Labels, Limits, Reading, Sample, ScrapeError, State
from collectors.transport import http

# Pages from this size on are parsed in a thread: they would block the event loop for 5 ms or more (measured).
THREAD_BYTES = 512 << 10

Fold = Literal["first", "sum", "max", "min"]
FOLDS: Mapping[str, Callable[[float, float], float]] = {
    "sum": lambda first, second: first + second,
    "max": max,
    "min": min,
}


@dataclass(frozen=True, slots=True)
class MetricRule:
    """A row of a collector's table: the metric that a family is mapped to.

    Attributes:
        metric: a row of :mod:`collectors.catalog`.
        split: the page's label that is retained in addition to the collector's own; ``a>b`` renames it.
        rank: if a page has two names of the same quantity, the lower rank is used (0: the newest name).
        fold: how several series with the same metric and labels are combined.
        scale: our unit = the page's unit x scale.
        only: label values that a series must have; other series are ignored by this row.
        put: labels that every series of the row gets.
        also: another row for the same family, with its own `only`.
        blank: the value that the source writes while it has none yet.
    """

    metric: str
    split: str = ""
    rank: int = 0
    fold: Fold = "first"
    scale: float = 1.0
    only: Labels = ()
    put: Labels = ()
    also: "MetricRule | None" = None
    blank: float | None = None


@dataclass(frozen=True, slots=True)
class PagePlan:
    """What to do with one series: where its value goes.

    Attributes:
        part: "bucket", "sum" or "count" of a histogram; "" for a scalar.
        bound: upper edge of a bucket.
        group: the histogram: family and labels on the page.
        copy: labels that distinguish copies of the same value (tensor-parallel ranks); only the lowest copy is used.
        scope: ranks are compared among all series of the metric with this scope; None: among those with equal labels.
        also: a second plan for the same value.
        blank: a value that means "none yet".
    """

    metric: str
    labels: Labels
    rank: int = 0
    part: str = ""
    bound: float = 0.0
    fold: Fold = "first"
    scale: float = 1.0
    group: tuple[str, Labels] = ("", ())
    copy: Labels = ()
    scope: Labels | None = None
    also: "PagePlan | None" = None
    blank: float | None = None


@dataclass(frozen=True, slots=True)
class LabelFact:
    """A series with its information in the labels (`cache_config_info`): the samples derived from them."""

    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Unmapped:
    """A family of this system without a row in the table; shown by this name."""

    name: str


Decision = PagePlan | LabelFact | Unmapped | None
"""None: not of this system, or not useful (`_created`)."""


@dataclass(frozen=True, slots=True)
class PageRules:
    """How the pages of one system are read.

    Attributes:
        name: key of its cached plans in `State`.
        decide: (series, family as on the page, Prometheus type) -> what to do with the series. Pure.
        proves: does only this system have the series? A page without such a series is of another system.
        mismatch: the error message for a page of another system.
    """

    name: str
    decide: Callable[[Series, str, str], Decision]
    proves: Callable[[Series], bool]
    mismatch: str


@dataclass(slots=True)
class _Plans:
    """Cached decisions about the series of a page, for one state of its TYPE lines."""

    types: dict[str, str] = field(default_factory=dict)
    of: dict[Series, PagePlan | None] = field(default_factory=dict)
    other: dict[Series, LabelFact | Unmapped] = field(default_factory=dict)
    proven: bool = False


Parse = Callable[[bytes, State, Limits], Reading]
Key = tuple[str, Labels]
"""A metric of ours, or a family of the page, with its labels."""
_PlannedValue = tuple[PagePlan, float]
"""The plan of a value, and the value in our unit."""

Bucketed = tuple[Key, tuple[tuple[float, ...], tuple[float, ...], float]]


# ---- programs: for a page with a learned layout (`collectors.formats.exposition`) everything but the values is
# computed once. The result equals that of `_line_by_line`, in the same order; a test compares them.


@dataclass(frozen=True, slots=True)
class HistogramPlan:
    """One histogram of a layout.

    Attributes:
        edges: the finite edges.
        flaw: an error of the edges, which makes the histogram invalid for all counts; or "".
        pick: selects the values of its buckets from the page's values.
        total: index of `_sum` among the page's values; -1 without one.
        scale: factor of `_sum`.
        count: index of `_count`; -1 without one.
    """

    group: Key
    plan: PagePlan
    edges: tuple[float, ...]
    flaw: str
    pick: Callable[[Sequence[float]], tuple[float, ...]]
    total: int
    scale: float
    count: int


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """A sample: the value at index `at`, scaled and combined with the values of `folded` (fold, index, scale)."""

    metric: str
    labels: Labels
    at: int
    scale: float
    folded: tuple[tuple[str, int, float], ...]


@dataclass(frozen=True, slots=True)
class Program:
    """What to do with the values of a page of one layout.

    Attributes:
        scalars: index and plan of each value outside histograms.
        label_samples: samples derived from labels.
        proven: is the page of this system?
        groups: plan of each histogram.
        distinct: no two families have the same metric and labels.
    """

    scalars: tuple[tuple[int, PagePlan], ...]
    families: tuple[HistogramPlan, ...]
    label_samples: tuple[Sample, ...]
    unmapped: Mapping[str, int]
    proven: bool
    groups: Mapping[Key, PagePlan]
    distinct: bool
    _pick: Callable[[Sequence[float]], tuple[float, ...]]
    _rows: tuple[SamplePlan, ...]
    _folding: tuple[tuple[int, SamplePlan], ...]

    def samples(self, values: Sequence[float]) -> list[Sample] | None:
        """The samples of a page; None if a value is negative or not finite and must be checked (`_makes_sense`)."""
        if not all([0.0 <= value < inf for value in self._pick(values)]):
            return None
        result = [Sample(row.metric, values[row.at] * row.scale, row.labels) for row in self._rows]
        for at, row in self._folding:
            value = result[at].value
            for fold, index, scale in row.folded:
                value = FOLDS[fold](value, values[index] * scale)
            result[at] = Sample(row.metric, value, row.labels)
        return result

    def histograms(self, page: Page, values: Sequence[float]) -> Iterator[Bucketed]:
        """The valid histograms, as `Grouper.done`; invalid ones are counted as dropped."""
        for family in self.families:
            counts = family.pick(values)
            total = values[family.total] * family.scale if family.total >= 0 else None
            flaw = family.flaw or flaw_of_counts(counts, total, values[family.count] if family.count >= 0 else None)
            if flaw or total is None:
                page.drop(f"{family.group[0]}: {flaw}")
            else:
                yield family.group, (family.edges, counts, total)


def compiled(
    series: Sequence[Series], plans: Mapping[Series, PagePlan | None], other: Mapping[Series, LabelFact | Unmapped],
    proven: bool,
) -> Program:  # fmt: skip
    """The program for the series of a layout. ``plans`` and ``other`` are the decisions about each series."""
    scalars: list[tuple[int, PagePlan]] = []
    parts: dict[Key, dict[str, dict[float, int]]] = {}
    group_plans: dict[Key, PagePlan] = {}
    for at, item in enumerate(series):
        plan = plans[item]
        if plan is not None and plan.part:
            bound = plan.bound if plan.part == "bucket" else 0.0
            parts.setdefault(plan.group, {}).setdefault(plan.part, {})[bound] = at
            group_plans[plan.group] = plan
        elif plan is not None:
            scalars.append((at, plan))
    decisions = [other[item] for item in series if item in other]
    label_samples = [sample for decision in decisions for sample in getattr(decision, "samples", ())]
    names = sorted({decision.name for decision in decisions if hasattr(decision, "name")})
    families = tuple(
        _family(group, group_plans[group], group_parts, series, plans)
        for group, group_parts in _by_first_bucket(parts)
        if "bucket" in group_parts
    )
    keys = {(family.plan.metric, family.plan.labels) for family in families}
    rows = tuple(_rows(scalars))
    return Program(
        tuple(scalars), families, tuple(label_samples), dict.fromkeys(names, 1), proven,
        {family.group: family.plan for family in families}, len(keys) == len(families),
        picker([at for at, _ in scalars]), rows, tuple((at, row) for at, row in enumerate(rows) if row.folded),
    )  # fmt: skip


def picker(indexes: Sequence[int]) -> Callable[[Sequence[float]], tuple[float, ...]]:
    """As `itemgetter`, but returns a tuple also for one index or none."""
    if len(indexes) > 1:
        return itemgetter(*indexes)
    return lambda values: tuple([values[index] for index in indexes])


def _rows(scalars: Sequence[tuple[int, PagePlan]]) -> Iterator[SamplePlan]:
    """What `_offer` and `_settled` do with the values; it does not depend on the values if all are valid."""
    selected: dict[Key, tuple[PagePlan, list[tuple[str, int, float]]]] = {}
    for at, plan in _offers(scalars):
        current, part = selected.get((plan.metric, plan.labels)), (plan.fold, at, plan.scale)
        if current is None or (plan.rank, plan.copy) < (current[0].rank, current[0].copy):
            selected[plan.metric, plan.labels] = (plan, [part])
        elif plan.fold != "first" and (plan.rank, plan.copy) == (current[0].rank, current[0].copy):
            current[1].append(part)
    best: dict[Key, int] = {}
    for plan, _ in selected.values():
        if plan.scope is not None:
            best[plan.metric, plan.scope] = min(plan.rank, best.get((plan.metric, plan.scope), plan.rank))
    for (metric, labels), (plan, parts) in selected.items():
        if plan.scope is None or plan.rank == best[metric, plan.scope]:
            (_, at, scale), *folded = parts
            yield SamplePlan(metric, labels, at, scale, tuple(folded))


def _offers(scalars: Sequence[tuple[int, PagePlan]]) -> Iterator[tuple[int, PagePlan]]:
    """Each value with each of its plans."""
    for at, plan in scalars:
        following: PagePlan | None = plan
        while following is not None:
            yield at, following
            following = following.also


def _by_first_bucket(
    parts: Mapping[Key, dict[str, dict[float, int]]],
) -> list[tuple[Key, dict[str, dict[float, int]]]]:
    """The order in which a `Grouper` returns them."""
    return sorted(parts.items(), key=lambda item: min(item[1].get("bucket", {0.0: 0}).values()))


def _family(
    group: Key, plan: PagePlan, parts: Mapping[str, Mapping[float, int]], series: Sequence[Series],
    plans: Mapping[Series, PagePlan | None],
) -> HistogramPlan:  # fmt: skip
    edges = sorted(parts["bucket"])
    total, count = (parts.get(name, {}).get(0.0, -1) for name in ("sum", "count"))
    summed = plans[series[total]] if total >= 0 else None
    scale = summed.scale if summed is not None else 1.0
    indexes = [parts["bucket"][edge] for edge in edges]
    return HistogramPlan(group, plan, tuple(edges[:-1]), edges_flaw(edges), picker(indexes), total, scale, count)


# ---- reading a page


def read(body: bytes, state: State, limits: Limits, rules: PageRules) -> Reading:
    """Reads one page. Counters and histograms count from the start of the process behind the page.

    Raises:
        ScrapeError: as `parser.parse`; ``garbage`` also for a page that is truncated or of another system.
    """
    page = _page(body, state, limits)
    layout = page.layout
    if layout is None:
        return _line_by_line(page, _proven(_plans(page, state, rules), rules))
    program: Program | None = layout.computed.get(rules)
    if program is None:
        plans = _plans(page, state, rules)
        proven = any(map(rules.proves, layout.series))
        program = layout.computed[rules] = compiled(layout.series, plans.of, plans.other, proven)
    if not program.proven:
        return _line_by_line(page, _proven(_plans(page, state, rules), rules))
    _note_proof(state, rules, page)
    return _by_layout(page, program)


def _note_proof(state: State, rules: PageRules, page: Page) -> None:
    """Accepts later pages with the same families without a proving series: Ray's pages sometimes lack the engine."""
    plans: _Plans | None = state.get(rules.name)
    if plans is None or plans.types != page.types or plans.of:
        # The plans of single series are not needed any more: the layout's program replaces them.
        plans = state[rules.name] = _Plans(types=page.types)
    plans.proven = True


def _by_layout(page: Page, program: Program) -> Reading:
    """Reads a page with the program of its layout."""
    values = page.values
    samples: Iterable[Sample] | None = program.samples(values)
    if samples is None:
        selected: dict[Key, _PlannedValue] = {}
        for at, plan in program.scalars:
            value = values[at]
            if 0.0 <= value < inf or _makes_sense(page, plan, value):
                _offer(selected, plan, value)
        samples = _settled(selected)
    done = program.histograms(page, values)
    histograms = (distinct_histograms if program.distinct else merged_histograms)(done, program.groups)
    return _reading(page, (*samples, *program.label_samples), histograms, program.unmapped, len(values))


def _line_by_line(page: Page, plans: _Plans) -> Reading:
    """Reads any page, series by series."""
    samples: dict[Key, _PlannedValue] = {}
    grouper, groups = Grouper(), dict[tuple[str, Labels], PagePlan]()
    label_samples: list[Sample] = []
    unmapped: set[str] = set()
    for series, value in page.samples:
        plan = plans.of[series]
        if plan is None:
            other = plans.other.get(series)
            if isinstance(other, LabelFact):
                label_samples += other.samples
            elif other is not None:
                unmapped.add(other.name)
        elif plan.part:
            groups[plan.group] = plan
            grouper.add(plan.group, plan.part, plan.bound, value * plan.scale if plan.part == "sum" else value)
        elif 0.0 <= value < inf or _makes_sense(page, plan, value):
            _offer(samples, plan, value)
    histograms = merged_histograms(grouper.done(), groups)
    page.drop_all(grouper.flaws.values())
    # An unmapped family counts once, not once per bucket.
    all_samples = (*_settled(samples), *label_samples)
    return _reading(page, all_samples, histograms, dict.fromkeys(sorted(unmapped), 1), len(page.samples))


def _reading(
    page: Page,
    samples: tuple[Sample, ...],
    histograms: tuple[Histogram, ...],
    unmapped: Mapping[str, int],
    scraped: int,
) -> Reading:
    return Reading(
        samples=samples,
        histograms=histograms,
        unmapped=unmapped,
        dropped=page.dropped,
        why_dropped=page.why,
        samples_scraped=scraped,
    )


def _makes_sense(page: Page, plan: PagePlan, value: float) -> bool:
    """Is a negative or non-finite value valid for the metric? If not, it is dropped. NaN of a gauge means no value."""
    row = METRICS.get(plan.metric)  # None: an intermediate name that the collector combines into other metrics
    counted = row is not None and row.kind == "counter"
    if counted or isinf(value):
        reason = "a counter that is below zero" if isfinite(value) else "a value that is not finite"
        page.drop(f"{plan.metric}: {reason}")
        return False
    return not isnan(value) and value != plan.blank


def _page(body: bytes, state: State, limits: Limits) -> Page:
    """Parses the page and checks that it is complete."""
    if body[:64].lstrip()[:1] in (b"[", b"{"):
        raise ScrapeError("garbage", "the page is JSON, not metrics text (trtllm-serve? then collector tensorrt_llm)")
    page = exposition.parse(body, state, limits)
    exposition.check_whole(body)
    return page


def _proven(plans: _Plans, rules: PageRules) -> _Plans:
    """Checks that the page is of this system."""
    if not plans.proven:
        raise ScrapeError("garbage", rules.mismatch)
    return plans


def _offer(samples: dict[Key, _PlannedValue], plan: PagePlan, value: float) -> None:
    """Stores a value if it is the first for its key, or of a newer name or lower copy; else folds or ignores it."""
    key = (plan.metric, plan.labels)
    current = samples.get(key)
    scaled = value * plan.scale
    if current is None or (plan.rank, plan.copy) < (current[0].rank, current[0].copy):
        samples[key] = (plan, scaled)
    elif plan.fold != "first" and (plan.rank, plan.copy) == (current[0].rank, current[0].copy):
        samples[key] = (current[0], FOLDS[plan.fold](current[1], scaled))
    if plan.also is not None:
        _offer(samples, plan.also, value)


def _settled(samples: Mapping[Key, _PlannedValue]) -> Iterator[Sample]:
    """The stored values as samples. An older name is left out if a newer name has the value under other labels."""
    best: dict[tuple[str, Labels], int] = {}
    for plan, _ in samples.values():
        if plan.scope is not None:
            best[plan.metric, plan.scope] = min(plan.rank, best.get((plan.metric, plan.scope), plan.rank))
    for (metric, labels), (plan, value) in samples.items():
        if plan.scope is None or plan.rank == best[metric, plan.scope]:
            yield Sample(metric, value, labels)


def _plans(page: Page, state: State, rules: PageRules) -> _Plans:
    plans: _Plans = state.setdefault(rules.name, _Plans())
    if plans.types != page.types or len(plans.of) > 2 * len(page.samples) + 1000:
        # A new cache also drops series that are gone, which bounds its size.
        plans = state[rules.name] = _Plans(types=page.types)
    for series, _ in page.samples:
        if series not in plans.of:
            decision = rules.decide(series, *page.family(series.name))
            plans.of[series] = decision if isinstance(decision, PagePlan) else None
            if isinstance(decision, LabelFact | Unmapped):
                plans.other[series] = decision
            plans.proven = plans.proven or rules.proves(series)
    return plans


# ---- histograms of a page


def merged_histograms(done: Iterable[Bucketed], groups: Mapping[Key, PagePlan]) -> tuple[Histogram, ...]:
    """One histogram per metric and labels: the newest name and lowest copy, and the sum if the plan folds."""
    merged: dict[Key, tuple[PagePlan, Histogram]] = {}
    for group, (edges, counts, total) in done:
        plan = groups[group]
        key, new = (plan.metric, plan.labels), Histogram(plan.metric, edges, counts, total, plan.labels)
        current = merged.get(key)
        if current is None or (plan.rank, plan.copy) < (current[0].rank, current[0].copy):
            merged[key] = (plan, new)
        elif plan.fold == "sum" and (plan.rank, plan.copy) == (current[0].rank, current[0].copy):
            merged[key] = (plan, _added(current[1], new))
    return tuple(histogram for _, histogram in merged.values())


def _added(first: Histogram, second: Histogram) -> Histogram:
    # Histograms with different edges cannot be added: the first stays.
    if first.edges != second.edges:
        return first
    counts = tuple(map(add, first.counts, second.counts))
    return structs.replace(first, counts=counts, total=first.total + second.total)


def distinct_histograms(done: Iterable[Bucketed], groups: Mapping[Key, PagePlan]) -> tuple[Histogram, ...]:
    """As `merged_histograms`, if no two families have the same metric and labels."""
    parts = [(groups[group], buckets) for group, buckets in done]
    return tuple([Histogram(plan.metric, *buckets, plan.labels) for plan, buckets in parts])


# ---- from table rows to plans


def value_of(rule: MetricRule, series: Series, base_labels: Labels, rank: int = 0) -> PagePlan | None:
    """Plan of a gauge or counter with `base_labels`; `rank` is added to the row's. None: the row does not match."""
    also = value_of(rule.also, series, base_labels, rank) if rule.also is not None else None
    if not fits(rule, series):
        return also
    labels = with_split(base_labels, series, rule.split, rule.put)
    return PagePlan(rule.metric, labels, rule.rank + rank, "", 0.0, rule.fold, rule.scale, also=also, blank=rule.blank)


def over_processes(plan: PagePlan | None, series: Series) -> PagePlan | None:
    """Combines the series of one value that several processes export with a label ``pid``.

    prometheus_client adds the label in multiprocess mode to gauges without a mode (vLLM 0.11: KV cache usage). The
    process that reported last has the value, the others have 0 or an old one, so the maximum is nearest.
    """
    if plan is None or plan.fold != "first" or not series.label("pid"):
        return plan
    return replace(plan, fold="max", also=over_processes(plan.also, series))


def fits(rule: MetricRule, series: Series) -> bool:
    """Does the series have the label values that the row requires?"""
    return all(series.label(name) == value for name, value in rule.only)


def bucket_of(rule: MetricRule, series: Series, family: str, base_labels: Labels) -> PagePlan | None:
    """Plan of a histogram sample with `base_labels`; None: not a histogram sample, or the row does not match."""
    part, bound, raw = exposition.split_bucket(series, family)
    if part not in ("bucket", "sum", "count"):
        return None
    if not fits(rule, series):
        return bucket_of(rule.also, series, family, base_labels) if rule.also is not None else None
    # Edges are in the unit of the family, so they are scaled, too.
    labels = with_split(base_labels, series, rule.split, rule.put)
    return PagePlan(rule.metric, labels, rule.rank, part, bound * rule.scale, rule.fold, rule.scale, (family, raw))


def untyped_part(base: str, kind: str, histograms: Mapping[str, MetricRule]) -> str:
    """The suffix of a histogram sample without a TYPE line of its name; else "".

    Federation drops the line. prometheus_client's OpenMetrics output writes `a:b` there and `a_b` in the samples.
    """
    if kind != "untyped":
        return ""
    return next((s for s in ("_bucket", "_sum", "_count") if base.endswith(s) and base[: -len(s)] in histograms), "")


def with_split(base_labels: Labels, series: Series, split: str, put: Labels = ()) -> Labels:
    """The labels `base_labels`, the label that a row splits by, and the labels that it adds."""
    if not split and not put:
        return base_labels
    source, _, target = split.partition(">")
    by = ((target or source, series.label(source)),) if split else ()
    return tuple(sorted((*base_labels, *by, *put)))


def labels_of(series: Series, names: Mapping[str, str]) -> Labels:
    """The labels named in `names` (page -> ours) that the series has, sorted."""
    labels = {name: value for page_name, name in names.items() if (value := series.label(page_name))}
    return tuple(sorted(labels.items()))


# Labels of a process on pages that hold several: Ray Serve, the Ray agent, sgl-router's /engine_metrics.
REPLICA_LABELS = ("ReplicaId", "replica", "WorkerId", "worker_addr")
_ADDRESS = re.compile(r"^[a-z]+://(?:[^/@]*@)?([^/]*).*$")


def replica_of(series: Series) -> Labels:
    """The label ``replica`` of a series on a page that holds several processes."""
    replica = next((value for name in REPLICA_LABELS if (value := series.label(name))), "")
    # The address of a worker may be a URL with credentials, and labels are displayed.
    return (("replica", _ADDRESS.sub(r"\1", replica)),) if replica else ()


def number(text: str) -> float | None:
    """The number in a label; None for other text, because engines write Python's None as text."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None


# ---- fetching


async def parsed(parse: Parse, body: bytes, state: State, limits: Limits) -> Reading:
    """Runs `parse`, in a thread if the page is large."""
    if len(body) > THREAD_BYTES:
        return await asyncio.to_thread(parse, body, state, limits)
    return parse(body, state, limits)


async def failure(error: ScrapeError, client: httpx.AsyncClient, limits: Limits, alive: Sequence[str]) -> ScrapeError:
    """The failure of an engine's page: ``error``, or ``no_metrics`` if another path of the engine answers 200.

    Args:
        alive: paths that cost the engine nothing, in the order in which they are requested.
    """
    if error.kind not in ("status", "timeout", "too_large", "garbage", "empty"):
        return error
    for path in alive:
        try:
            await http.get(client, client.base_url.copy_with(path=path), limits)
        except ScrapeError:
            continue
        return ScrapeError("no_metrics", f"the engine works ({path} answers), but its metrics page fails: {error}")
    return error


def poll_of(parse: Parse) -> Callable[[httpx.AsyncClient, State, Limits], Awaitable[Reading]]:
    """A `poll` function that GETs the page (`http.metrics_page`) and parses it. Raises `ScrapeError` as these do."""

    async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
        return await parsed(parse, await http.metrics_page(client, limits), state, limits)

    return poll


def matcher(pattern: re.Pattern[bytes]) -> Callable[[bytes], bool]:
    """A function that recognises a system's page by a pattern which only its pages contain."""
    return lambda body: pattern.search(body) is not None


# ---- blocks
# Converts KV-cache blocks to tokens, for engines that report blocks and tokens per block.

SIZE = "blocks:size"
CAPACITY = "blocks:capacity"
USED = "blocks:used"
TOKENS: Mapping[str, str] = {CAPACITY: "kv_cache_capacity_tokens", USED: "kv_cache_used_tokens"}


def in_tokens(reading: Reading) -> Reading:
    """The reading with blocks converted to tokens. Blocks of unknown size are dropped."""
    sizes = {sample.labels: sample.value for sample in reading.samples if sample.metric == SIZE}
    return structs.replace(reading, samples=tuple(_samples(reading.samples, sizes)))


def _samples(samples: tuple[Sample, ...], sizes: Mapping[Labels, float]) -> Iterator[Sample]:
    for sample in samples:
        if not sample.metric.startswith("blocks:"):
            yield sample
        elif sample.metric in TOKENS and sample.labels in sizes:
            yield structs.replace(sample, metric=TOKENS[sample.metric], value=sample.value * sizes[sample.labels])
