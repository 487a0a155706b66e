"""A metrics page -> `Reading`, by a vocabulary: what every collector of an exposition page shares.

A page repeats its series scrape after scrape, so what becomes of each is decided once (`Vocabulary.decide`, a pure
function of the series and its family) and remembered for as long as the page's TYPE lines stay the same.

Does not know: any system's names. Those are in the collectors' tables.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Literal

import httpx

from collectors.model import Histogram, Labels, Limits, Reading, Sample, ScrapeError, State
from collectors.readers import exposition, http
from collectors.readers.exposition import Grouper, Page, Series

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
    """

    metric: str
    split: str = ""
    rank: int = 0
    fold: Fold = "first"
    scale: float = 1.0
    only: Labels = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with one series: where its value goes. ``part`` and ``bound`` are a histogram's."""

    metric: str
    labels: Labels
    rank: int = 0
    part: str = ""
    bound: float = 0.0
    fold: Fold = "first"
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Said:
    """A series whose labels are the news (`cache_config_info`): samples that hold while it is on the page."""

    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True)
class Unmapped:
    """A family of this system that nobody maps; shown by this name."""

    name: str


Decision = Plan | Said | Unmapped | None
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
    of: dict[Series, Plan | None] = field(default_factory=dict)
    other: dict[Series, Said | Unmapped] = field(default_factory=dict)
    proven: bool = False


def read(body: bytes, state: State, limits: Limits, words: Vocabulary) -> Reading:
    """One page. Values as the page has them; counters and histograms since the process behind it began.

    Raises:
        ScrapeError: as `exposition.parse`; ``garbage`` also for a page that was cut or is a stranger's.
    """
    page = exposition.parse(body, state, limits)
    exposition.check_whole(body)
    plans = _plans(page, state, words)
    if not plans.proven:
        raise ScrapeError("garbage", words.stranger)
    samples: dict[tuple[str, Labels], tuple[int, float]] = {}
    grouper, ranks = Grouper(), dict[tuple[str, Labels], int]()
    said: list[Sample] = []
    unmapped: set[str] = set()
    for series, value in page.samples:
        plan = plans.of[series]
        if plan is None:
            other = plans.other.get(series)
            if isinstance(other, Said):
                said += other.samples
            elif other is not None:
                unmapped.add(other.name)
        elif plan.part:
            _bucket(grouper, ranks, plan, value)
        elif isfinite(value):
            _offer(samples, plan, value)
    return Reading(
        samples=(*(Sample(metric, value, labels) for (metric, labels), (_, value) in samples.items()), *said),
        histograms=tuple(
            Histogram(metric, edges, counts, total, labels)
            for (metric, labels), (edges, counts, total) in grouper.done()
        ),
        # A family of 200 buckets is one thing to add, not 200.
        unmapped=dict.fromkeys(sorted(unmapped), 1),
        samples_scraped=len(page.samples),
    )


def _bucket(grouper: Grouper, ranks: dict[tuple[str, Labels], int], plan: Plan, value: float) -> None:
    """Only the newest name's buckets may reach a histogram, or everything counts twice where a page has both names."""
    key = (plan.metric, plan.labels)
    best = ranks.get(key, plan.rank)
    if plan.rank > best:
        return
    if plan.rank < best:
        grouper.drop(key)
    ranks[key] = plan.rank
    grouper.add(key, plan.part, plan.bound, value * plan.scale if plan.part == "sum" else value)


def _offer(samples: dict[tuple[str, Labels], tuple[int, float]], plan: Plan, value: float) -> None:
    key = (plan.metric, plan.labels)
    held = samples.get(key)
    value *= plan.scale
    if held is None or plan.rank < held[0]:
        samples[key] = (plan.rank, value)
    elif plan.rank == held[0] and plan.fold != "first":
        samples[key] = (plan.rank, _folded(plan.fold, held[1], value))


def _folded(fold: Fold, one: float, other: float) -> float:
    return one + other if fold == "sum" else max(one, other) if fold == "max" else min(one, other)


def _plans(page: Page, state: State, words: Vocabulary) -> _Plans:
    plans: _Plans = state.setdefault(words.name, _Plans())
    if plans.types != page.types or len(plans.of) > 2 * len(page.samples) + 1000:
        # Also forgets series that are gone, so that the plans stay as bounded as the key cache.
        plans = state[words.name] = _Plans(types=page.types)
    for series, _ in page.samples:
        if series not in plans.of:
            decision = words.decide(series, *page.family(series.name))
            plans.of[series] = decision if isinstance(decision, Plan) else None
            if isinstance(decision, Said | Unmapped):
                plans.other[series] = decision
            plans.proven = plans.proven or words.proves(series)
    return plans


# ---- from tables to decisions


def value_of(take: Take, series: Series, own: Labels, rank: int = 0) -> Plan | None:
    """A gauge's or counter's plan under `own` labels; None where the series is not what the row means.

    ``rank`` is added to the row's.
    """
    if any(series.label(name) != value for name, value in take.only):
        return None
    return Plan(take.metric, with_split(own, series, take.split), take.rank + rank, "", 0.0, take.fold, take.scale)


def bucket_of(take: Take, series: Series, family: str, own: Labels) -> Plan | None:
    """A histogram sample's plan under `own` labels; its `_count` is the last bucket and not needed."""
    if any(series.label(name) != value for name, value in take.only):
        return None
    part, bound, _ = exposition.split_bucket(series, family)
    if part not in ("bucket", "sum"):
        return None
    # Edges are in the family's unit: a scaled histogram has scaled edges.
    labels = with_split(own, series, take.split)
    return Plan(take.metric, labels, take.rank, part, bound * take.scale, take.fold, take.scale)


def with_split(own: Labels, series: Series, split: str) -> Labels:
    """`own` labels and the one a row splits by."""
    if not split:
        return own
    source, _, target = split.partition(">")
    return tuple(sorted((*own, (target or source, series.label(source)))))


def labels_of(series: Series, kept: Mapping[str, str]) -> Labels:
    """The labels named in `kept` (theirs -> ours) that the series has, sorted."""
    found = {ours: value for theirs, ours in kept.items() if (value := series.label(theirs))}
    return tuple(sorted(found.items()))


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
