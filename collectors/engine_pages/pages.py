"""A metrics page -> `Reading`, by a vocabulary: what every collector of an exposition page shares.

A page repeats its series scrape after scrape, so what becomes of each is decided once (`Vocabulary.decide`, a pure
function of the series and its family) and remembered for as long as the page's TYPE lines stay the same.

Does not know: any system's names. Those are in the collectors' tables.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf, isfinite, isinf, isnan
from typing import Literal

import httpx

from collectors.catalog import METRICS
from collectors.engine_pages.compiled import FOLDS, Program, apart, compiled, whole
from collectors.formats.exposition import parser
from collectors.formats.exposition.parser import Grouper, Page, Series
from collectors.model import Histogram, Labels, Limits, Reading, Sample, ScrapeError, State
from collectors.transport import http

# A page this big takes long enough to parse (5 ms, measured) to be worth leaving the event loop for.
THREAD_BYTES = 512 << 10

Fold = Literal["first", "sum", "max", "min"]


@dataclass(frozen=True, slots=True)
class Take:
    """A row of a table: where a family's values go.

    Attributes:
        metric: a row of :mod:`collectors.catalog`.
        split: the label kept beside the collector's own; ``a>b`` renames it.
        rank: where two names of one thing are on a page the lower rank is taken (0: the newest name).
        fold: what becomes of several series that end under the same metric and labels.
        scale: our unit = theirs x scale.
        only: label values a series must have, or it is not this thing.
        put: labels of ours that every series of the row gets.
        also: a further row for the same family, with an `only` of its own.
        blank: the value by which the source says that it has none yet.
    """

    metric: str
    split: str = ""
    rank: int = 0
    fold: Fold = "first"
    scale: float = 1.0
    only: Labels = ()
    put: Labels = ()
    also: "Take | None" = None
    blank: float | None = None


@dataclass(frozen=True, slots=True)
class PagePlan:
    """What to do with one series: where its value goes.

    Attributes:
        part, bound, group: a histogram's: which sample of it this is, and of which (family, labels on the page).
        copy: labels that tell copies of one thing apart (tensor-parallel ranks): only the lowest is taken.
        scope: ranks count among all series of the metric with this scope, whatever their labels; None: same labels.
        also, blank: where the value goes too; one that says nothing.
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
    """A series whose labels are the news (`cache_config_info`): samples that hold while it is on the page."""

    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Unmapped:
    """A family of this system that nobody maps; shown by this name."""

    name: str


Decision = PagePlan | LabelFact | Unmapped | None
"""None: not of this system, or of no use (`_created`)."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """One system's words.

    Attributes:
        name: key of its memory in `State`.
        decide: (series, family as on the wire, Prometheus' type word) -> what to do with it. Pure.
        proves: only such a system has this series: a page without one is a stranger's.
        stranger: the error then, in words.
    """

    name: str
    decide: Callable[[Series, str, str], Decision]
    proves: Callable[[Series], bool]
    stranger: str


@dataclass(slots=True)
class _Plans:
    types: dict[str, str] = field(default_factory=dict)
    of: dict[Series, PagePlan | None] = field(default_factory=dict)
    other: dict[Series, LabelFact | Unmapped] = field(default_factory=dict)
    proven: bool = False


Key = tuple[str, Labels]
_Held = tuple[PagePlan, float]


def read(body: bytes, state: State, limits: Limits, words: Vocabulary) -> Reading:
    """One page. Values as the page has them; counters and histograms since the process behind it began.

    Raises:
        ScrapeError: as `parser.parse`; ``garbage`` also for a page that was cut or is a stranger's.
    """
    page = _page(body, state, limits)
    layout = page.layout
    if layout is None:
        return _line_by_line(page, _proven(_plans(page, state, words), words))
    program: Program | None = layout.made.get(words)
    if program is None:
        plans = _plans(page, state, words)
        proven = any(map(words.proves, layout.series))
        program = layout.made[words] = compiled(layout.series, plans.of, plans.other, proven)
    if not program.proven:
        return _line_by_line(page, _proven(_plans(page, state, words), words))
    _note_proof(state, words, page)
    return _at_once(page, program)


def _note_proof(state: State, words: Vocabulary, page: Page) -> None:
    """Later pages of the same families need none (Ray's lack the engine now and then)."""
    plans: _Plans | None = state.get(words.name)
    if plans is None or plans.types != page.types or plans.of:
        # The plans of single series are of no use any more.
        plans = state[words.name] = _Plans(types=page.types)
    plans.proven = True


def _at_once(page: Page, program: Program) -> Reading:
    """A page by its layout."""
    values = page.values
    samples: Iterable[Sample] | None = program.samples(values)
    if samples is None:
        held: dict[Key, _Held] = {}
        for at, plan in program.scalars:
            value = values[at]
            if 0.0 <= value < inf or _makes_sense(page, plan, value):
                _offer(held, plan, value)
        samples = _settled(held)
    done = program.histograms(page, values)
    found = apart(done, program.groups) if program.apart else whole(done, program.groups)
    return _reading(page, (*samples, *program.said), found, program.unmapped, len(values))


def _line_by_line(page: Page, plans: _Plans) -> Reading:
    """Any page."""
    samples: dict[Key, _Held] = {}
    grouper, groups = Grouper(), dict[tuple[str, Labels], PagePlan]()
    said: list[Sample] = []
    unmapped: set[str] = set()
    for series, value in page.samples:
        plan = plans.of[series]
        if plan is None:
            other = plans.other.get(series)
            if isinstance(other, LabelFact):
                said += other.samples
            elif other is not None:
                unmapped.add(other.name)
        elif plan.part:
            groups[plan.group] = plan
            grouper.add(plan.group, plan.part, plan.bound, value * plan.scale if plan.part == "sum" else value)
        elif 0.0 <= value < inf or _makes_sense(page, plan, value):
            _offer(samples, plan, value)
    found = whole(grouper.done(), groups)
    page.drop_all(grouper.flaws.values())
    # A family of 200 buckets is one thing to add, not 200.
    told = (*_settled(samples), *said)
    return _reading(page, told, found, dict.fromkeys(sorted(unmapped), 1), len(page.samples))


def _reading(
    page: Page, samples: tuple[Sample, ...], found: tuple[Histogram, ...], unmapped: Mapping[str, int], scraped: int
) -> Reading:
    return Reading(
        samples=samples,
        histograms=found,
        unmapped=unmapped,
        dropped=page.dropped,
        why_dropped=page.why,
        samples_scraped=scraped,
    )


def _makes_sense(page: Page, plan: PagePlan, value: float) -> bool:
    """May a value be below zero or beyond all numbers? If not it is left out; a gauge of NaN only says nothing."""
    row = METRICS.get(plan.metric)  # None: of no use by itself, worked into other metrics by its collector
    counted = row is not None and row.kind == "counter"
    if counted or isinf(value):
        words = "a counter that is below zero" if isfinite(value) else "a value that is not finite"
        page.drop(f"{plan.metric}: {words}")
        return False
    return not isnan(value) and value != plan.blank


def _page(body: bytes, state: State, limits: Limits) -> Page:
    """The page, whole."""
    if body[:64].lstrip()[:1] in (b"[", b"{"):
        raise ScrapeError("garbage", "the page is JSON, not metrics text (trtllm-serve? then collector tensorrt_llm)")
    page = parser.parse(body, state, limits)
    parser.check_whole(body)
    return page


def _proven(plans: _Plans, words: Vocabulary) -> _Plans:
    """The plans of a page of this system."""
    if not plans.proven:
        raise ScrapeError("garbage", words.stranger)
    return plans


def _offer(samples: dict[Key, _Held], plan: PagePlan, value: float) -> None:
    """Keep a value where it is the first, or of a newer name or a lower copy than what is there."""
    key = (plan.metric, plan.labels)
    held = samples.get(key)
    scaled = value * plan.scale
    if held is None or (plan.rank, plan.copy) < (held[0].rank, held[0].copy):
        samples[key] = (plan, scaled)
    elif plan.fold != "first" and (plan.rank, plan.copy) == (held[0].rank, held[0].copy):
        samples[key] = (held[0], FOLDS[plan.fold](held[1], scaled))
    if plan.also is not None:
        _offer(samples, plan.also, value)


def _settled(samples: Mapping[Key, _Held]) -> Iterator[Sample]:
    """What was kept, without older names of what a newer one tells under other labels."""
    best: dict[tuple[str, Labels], int] = {}
    for plan, _ in samples.values():
        if plan.scope is not None:
            best[plan.metric, plan.scope] = min(plan.rank, best.get((plan.metric, plan.scope), plan.rank))
    for (metric, labels), (plan, value) in samples.items():
        if plan.scope is None or plan.rank == best[metric, plan.scope]:
            yield Sample(metric, value, labels)


def _plans(page: Page, state: State, words: Vocabulary) -> _Plans:
    plans: _Plans = state.setdefault(words.name, _Plans())
    if plans.types != page.types or len(plans.of) > 2 * len(page.samples) + 1000:
        # Also forgets series that are gone, so that the plans stay as bounded as the key cache.
        plans = state[words.name] = _Plans(types=page.types)
    for series, _ in page.samples:
        if series not in plans.of:
            decision = words.decide(series, *page.family(series.name))
            plans.of[series] = decision if isinstance(decision, PagePlan) else None
            if isinstance(decision, LabelFact | Unmapped):
                plans.other[series] = decision
            plans.proven = plans.proven or words.proves(series)
    return plans


# ---- from tables to decisions


def value_of(take: Take, series: Series, own: Labels, rank: int = 0) -> PagePlan | None:
    """A gauge's or counter's plan under `own` labels, its rank raised by ``rank``; None: not what the row means."""
    also = value_of(take.also, series, own, rank) if take.also is not None else None
    if not fits(take, series):
        return also
    labels = with_split(own, series, take.split, take.put)
    return PagePlan(take.metric, labels, take.rank + rank, "", 0.0, take.fold, take.scale, also=also, blank=take.blank)


def fits(take: Take, series: Series) -> bool:
    """Has the series the label values that the row asks for?"""
    return all(series.label(name) == value for name, value in take.only)


def bucket_of(take: Take, series: Series, family: str, own: Labels) -> PagePlan | None:
    """A histogram sample's plan under `own` labels; its `_count` must be that of the last bucket."""
    part, bound, raw = parser.split_bucket(series, family)
    if part not in ("bucket", "sum", "count"):
        return None
    if not fits(take, series):
        return bucket_of(take.also, series, family, own) if take.also is not None else None
    # Edges are in the family's unit: a scaled histogram has scaled edges.
    labels = with_split(own, series, take.split, take.put)
    return PagePlan(take.metric, labels, take.rank, part, bound * take.scale, take.fold, take.scale, (family, raw))


def untyped_part(base: str, kind: str, histograms: Mapping[str, Take]) -> str:
    """The suffix of a histogram's sample whose TYPE line is missing, or is not by its name; else "".

    Federation drops the line; prometheus_client's OpenMetrics writes `a:b` there and `a_b` in the samples.
    """
    if kind != "untyped":
        return ""
    return next((s for s in ("_bucket", "_sum", "_count") if base.endswith(s) and base[: -len(s)] in histograms), "")


def with_split(own: Labels, series: Series, split: str, put: Labels = ()) -> Labels:
    """`own` labels, the one a row splits by and those it puts there itself."""
    if not split and not put:
        return own
    source, _, target = split.partition(">")
    by = ((target or source, series.label(source)),) if split else ()
    return tuple(sorted((*own, *by, *put)))


def labels_of(series: Series, kept: Mapping[str, str]) -> Labels:
    """The labels named in `kept` (theirs -> ours) that the series has, sorted."""
    found = {ours: value for theirs, ours in kept.items() if (value := series.label(theirs))}
    return tuple(sorted(found.items()))


# Ray Serve, the Ray agent, sgl-router's /engine_metrics: several processes on one page.
REPLICA_LABELS = ("ReplicaId", "replica", "WorkerId", "worker_addr")
_ADDRESS = re.compile(r"^[a-z]+://(?:[^/@]*@)?([^/]*).*$")


def replica_of(series: Series) -> Labels:
    """The label ``replica`` of a series on a page that holds several processes."""
    found = next((value for name in REPLICA_LABELS if (value := series.label(name))), "")
    # A worker's address may be a URL with credentials; labels are shown.
    return (("replica", _ADDRESS.sub(r"\1", found)),) if found else ()


def number(text: str) -> float | None:
    """A label's number; engines write Python's None as text."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if isfinite(value) else None


# ---- fetching


async def fetch(client: httpx.AsyncClient, limits: Limits, path: str = "/metrics") -> bytes:
    """GET the page: at the client's base URL when that names one (`.../engine_metrics`), else at `path` under it.

    Raises:
        ScrapeError: as `http.get`.
    """
    base = client.base_url.path.rstrip("/")
    url: httpx.URL | str = client.base_url.copy_with(path=base) if base.endswith("metrics") else path
    return await http.get(client, url, limits)


async def parsed(
    parse: Callable[[bytes, State, Limits], Reading], body: bytes, state: State, limits: Limits
) -> Reading:
    """`parse` off the event loop when the page is big."""
    if len(body) > THREAD_BYTES:
        return await asyncio.to_thread(parse, body, state, limits)
    return parse(body, state, limits)
