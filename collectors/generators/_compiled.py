"""What becomes of a page by its layout: worked out once for all pages that share it (`collectors.readers._layout`).

The same as `_pages.read` does line by line, in the same order; a test holds them against each other.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

from collectors.model import Labels, Sample
from collectors.readers._buckets import flaw_of
from collectors.readers.exposition import Page, Series

if TYPE_CHECKING:
    from collectors.generators._pages import Plan, Said, Unmapped

Group = tuple[str, Labels]


@dataclass(frozen=True, slots=True)
class Family:
    """One histogram: where on the page its parts are. -1: it has none."""

    group: Group
    plan: "Plan"
    edges: tuple[float, ...]
    buckets: tuple[int, ...]
    total: int
    scale: float
    count: int


@dataclass(frozen=True, slots=True)
class Program:
    """``scalars``: places of the values that stand for themselves. ``proven``: the page is of this system."""

    scalars: tuple[tuple[int, "Plan"], ...]
    families: tuple[Family, ...]
    said: tuple[Sample, ...]
    unmapped: Mapping[str, int]
    proven: bool

    def histograms(
        self, page: Page, values: Sequence[float]
    ) -> Iterator[tuple[Group, tuple[tuple[float, ...], tuple[float, ...], float]]]:
        """As `Grouper.done`: the sound ones; the others are counted with what the page lacks."""
        for family in self.families:
            # itemgetter of one place is no tuple.
            found = itemgetter(*family.buckets)(values) if len(family.buckets) > 1 else (values[family.buckets[0]],)
            total = values[family.total] * family.scale if family.total >= 0 else None
            count = values[family.count] if family.count >= 0 else None
            flaw = flaw_of(list(family.edges), found, total, count)
            if flaw or total is None:
                page.drop(f"{family.group[0]}: {flaw}")
            else:
                yield family.group, (family.edges[:-1], found, total)


def compiled(
    series: Sequence[Series], plans: Mapping[Series, "Plan | None"], other: Mapping[Series, "Said | Unmapped"],
    proven: bool,
) -> Program:  # fmt: skip
    """The program of a layout's series. ``plans``, ``other``: what was decided of each."""
    scalars: list[tuple[int, Plan]] = []
    parts: dict[Group, dict[str, dict[float, int]]] = {}
    last: dict[Group, Plan] = {}
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
    return Program(tuple(scalars), families, tuple(said), dict.fromkeys(names, 1), proven)


def _by_first_bucket(
    parts: Mapping[Group, dict[str, dict[float, int]]],
) -> list[tuple[Group, dict[str, dict[float, int]]]]:
    """The order in which a `Grouper` hands them out."""
    return sorted(parts.items(), key=lambda item: min(item[1].get("bucket", {0.0: 0}).values()))


def _family(
    group: Group, plan: "Plan", parts: Mapping[str, Mapping[float, int]], series: Sequence[Series],
    plans: Mapping[Series, "Plan | None"],
) -> Family:  # fmt: skip
    edges = sorted(parts["bucket"])
    total, count = (parts.get(name, {}).get(0.0, -1) for name in ("sum", "count"))
    summed = plans[series[total]] if total >= 0 else None
    scale = summed.scale if summed is not None else 1.0
    return Family(group, plan, tuple(edges), tuple(parts["bucket"][edge] for edge in edges), total, scale, count)
