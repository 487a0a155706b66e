"""What becomes of a page by its layout: worked out once for all pages that share it
(`collectors.formats.exposition.layout`).

The same as `pages.read` does line by line, in the same order; a test holds them against each other.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from operator import add, itemgetter
from typing import TYPE_CHECKING

from collectors.formats.exposition.buckets import edges_flaw, flaw_of_counts
from collectors.formats.exposition.parser import Page, Series
from collectors.model import Histogram, Labels, Sample

if TYPE_CHECKING:
    from collectors.engine_pages.pages import LabelFact, PagePlan, Unmapped

Group = tuple[str, Labels]
Bucketed = tuple[Group, tuple[tuple[float, ...], tuple[float, ...], float]]


@dataclass(frozen=True, slots=True)
class Family:
    """One histogram: where on the page its parts are. -1: it has none.

    Attributes:
        edges: the finite ones.
        flaw: what is wrong with it whatever its counts are, or "".
        pick: its buckets' values out of the page's.
    """

    group: Group
    plan: "PagePlan"
    edges: tuple[float, ...]
    flaw: str
    pick: Callable[[Sequence[float]], tuple[float, ...]]
    total: int
    scale: float
    count: int


@dataclass(frozen=True, slots=True)
class CompiledRow:
    """A sample of the reading: the value at a place, scaled, with those of `folded` (fold, place, scale) added."""

    metric: str
    labels: Labels
    at: int
    scale: float
    folded: tuple[tuple[str, int, float], ...]


FOLDS: Mapping[str, Callable[[float, float], float]] = {"sum": lambda one, other: one + other, "max": max, "min": min}


@dataclass(frozen=True, slots=True)
class Program:
    """``scalars``: places of the values that stand for themselves. ``proven``: the page is of this system.

    ``groups``: each family's plan. ``apart``: no two families are one histogram of ours.
    """

    scalars: tuple[tuple[int, "PagePlan"], ...]
    families: tuple[Family, ...]
    said: tuple[Sample, ...]
    unmapped: Mapping[str, int]
    proven: bool
    groups: Mapping[Group, "PagePlan"]
    apart: bool
    _pick: Callable[[Sequence[float]], tuple[float, ...]]
    _rows: tuple[CompiledRow, ...]
    _folding: tuple[tuple[int, CompiledRow], ...]

    def samples(self, values: Sequence[float]) -> list[Sample] | None:
        """What `pages` makes of values one by one, worked out beforehand; None where a value needs a closer look."""
        if not all([0.0 <= value < inf for value in self._pick(values)]):
            return None
        found = [Sample(row.metric, values[row.at] * row.scale, row.labels) for row in self._rows]
        for at, row in self._folding:
            value = found[at].value
            for fold, place, scale in row.folded:
                value = FOLDS[fold](value, values[place] * scale)
            found[at] = Sample(row.metric, value, row.labels)
        return found

    def histograms(self, page: Page, values: Sequence[float]) -> Iterator[Bucketed]:
        """As `Grouper.done`: the sound ones; the others are counted with what the page lacks."""
        for family in self.families:
            found = family.pick(values)
            total = values[family.total] * family.scale if family.total >= 0 else None
            flaw = family.flaw or flaw_of_counts(found, total, values[family.count] if family.count >= 0 else None)
            if flaw or total is None:
                page.drop(f"{family.group[0]}: {flaw}")
            else:
                yield family.group, (family.edges, found, total)


def compiled(
    series: Sequence[Series], plans: Mapping[Series, "PagePlan | None"], other: Mapping[Series, "LabelFact | Unmapped"],
    proven: bool,
) -> Program:  # fmt: skip
    """The program of a layout's series. ``plans``, ``other``: what was decided of each."""
    scalars: list[tuple[int, PagePlan]] = []
    parts: dict[Group, dict[str, dict[float, int]]] = {}
    last: dict[Group, PagePlan] = {}
    for at, one in enumerate(series):
        plan = plans[one]
        if plan is not None and plan.part:
            bound = plan.bound if plan.part == "bucket" else 0.0
            parts.setdefault(plan.group, {}).setdefault(plan.part, {})[bound] = at
            last[plan.group] = plan
        elif plan is not None:
            scalars.append((at, plan))
    words = [other[one] for one in series if one in other]
    said = [sample for one in words for sample in getattr(one, "samples", ())]
    names = sorted({one.name for one in words if hasattr(one, "name")})
    families = tuple(
        _family(group, last[group], found, series, plans)
        for group, found in _by_first_bucket(parts)
        if "bucket" in found
    )
    keys = {(family.plan.metric, family.plan.labels) for family in families}
    rows = tuple(_rows(scalars))
    return Program(
        tuple(scalars), families, tuple(said), dict.fromkeys(names, 1), proven,
        {family.group: family.plan for family in families}, len(keys) == len(families),
        picker([at for at, _ in scalars]), rows, tuple((at, row) for at, row in enumerate(rows) if row.folded),
    )  # fmt: skip


def picker(places: Sequence[int]) -> Callable[[Sequence[float]], tuple[float, ...]]:
    """`itemgetter`, which of one place or none is no tuple."""
    if len(places) > 1:
        return itemgetter(*places)
    return lambda values: tuple([values[place] for place in places])


def _rows(scalars: Sequence[tuple[int, "PagePlan"]]) -> Iterator[CompiledRow]:
    """What `pages._offer` and `pages._settled` make of the values, whatever they are, as long as all make sense."""
    held: dict[Group, tuple[PagePlan, list[tuple[str, int, float]]]] = {}
    for at, plan in _offers(scalars):
        known, part = held.get((plan.metric, plan.labels)), (plan.fold, at, plan.scale)
        if known is None or (plan.rank, plan.copy) < (known[0].rank, known[0].copy):
            held[plan.metric, plan.labels] = (plan, [part])
        elif plan.fold != "first" and (plan.rank, plan.copy) == (known[0].rank, known[0].copy):
            known[1].append(part)
    best: dict[Group, int] = {}
    for plan, _ in held.values():
        if plan.scope is not None:
            best[plan.metric, plan.scope] = min(plan.rank, best.get((plan.metric, plan.scope), plan.rank))
    for (metric, labels), (plan, parts) in held.items():
        if plan.scope is None or plan.rank == best[metric, plan.scope]:
            (_, first, scale), *folded = parts
            yield CompiledRow(metric, labels, first, scale, tuple(folded))


def _offers(scalars: Sequence[tuple[int, "PagePlan"]]) -> Iterator[tuple[int, "PagePlan"]]:
    """Each value under every metric it is told as."""
    for at, plan in scalars:
        told: PagePlan | None = plan
        while told is not None:
            yield at, told
            told = told.also


def _by_first_bucket(
    parts: Mapping[Group, dict[str, dict[float, int]]],
) -> list[tuple[Group, dict[str, dict[float, int]]]]:
    """The order in which a `Grouper` hands them out."""
    return sorted(parts.items(), key=lambda item: min(item[1].get("bucket", {0.0: 0}).values()))


def _family(
    group: Group, plan: "PagePlan", parts: Mapping[str, Mapping[float, int]], series: Sequence[Series],
    plans: Mapping[Series, "PagePlan | None"],
) -> Family:  # fmt: skip
    edges = sorted(parts["bucket"])
    total, count = (parts.get(name, {}).get(0.0, -1) for name in ("sum", "count"))
    summed = plans[series[total]] if total >= 0 else None
    scale = summed.scale if summed is not None else 1.0
    places = [parts["bucket"][edge] for edge in edges]
    return Family(group, plan, tuple(edges[:-1]), edges_flaw(edges), picker(places), total, scale, count)


# ---- histograms of a page, by either way


def whole(done: Iterable[Bucketed], groups: Mapping[Group, "PagePlan"]) -> tuple[Histogram, ...]:
    """Whole histograms: one per metric and labels, of its newest name and lowest copy; parts of a sum added up."""
    found: dict[Group, tuple[PagePlan, Histogram]] = {}
    for group, (edges, counts, total) in done:
        plan = groups[group]
        key, new = (plan.metric, plan.labels), Histogram(plan.metric, edges, counts, total, plan.labels)
        held = found.get(key)
        if held is None or (plan.rank, plan.copy) < (held[0].rank, held[0].copy):
            found[key] = (plan, new)
        elif plan.fold == "sum" and (plan.rank, plan.copy) == (held[0].rank, held[0].copy):
            found[key] = (plan, _added(held[1], new))
    return tuple(histogram for _, histogram in found.values())


def _added(one: Histogram, other: Histogram) -> Histogram:
    # Series of one family share their edges; what does not cannot be added, and half of it is no truth either.
    if one.edges != other.edges:
        return one
    counts = tuple(map(add, one.counts, other.counts))
    return replace(one, counts=counts, total=one.total + other.total)


def apart(done: Iterable[Bucketed], groups: Mapping[Group, "PagePlan"]) -> tuple[Histogram, ...]:
    """As `whole`, where each is one of its own."""
    parts = [(groups[group], found) for group, found in done]
    return tuple([Histogram(plan.metric, *found, plan.labels) for plan, found in parts])
