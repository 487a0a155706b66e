"""Builds histograms from a page's lines and describes the errors of broken ones. Pure."""

from collections.abc import Iterator, MutableMapping, Sequence
from math import inf, isfinite, isnan

from collectors.model import Labels


class Grouper:
    """Collects buckets, sums and counts of histograms by a key of the caller.

    ``flaws``: key -> the error of the histogram, filled by `done`.
    """

    def __init__(self) -> None:
        self._buckets: MutableMapping[tuple[str, Labels], dict[float, float]] = {}
        self._sums: MutableMapping[tuple[str, Labels], float] = {}
        self._counts: MutableMapping[tuple[str, Labels], float] = {}
        self.flaws: dict[tuple[str, Labels], str] = {}

    def add(self, key: tuple[str, Labels], part: str, bound: float, value: float) -> None:
        """Adds one sample. Of two with the same key and bound the last counts, as in Prometheus."""
        if part == "bucket":
            bounds = self._buckets.get(key)
            if bounds is None:
                bounds = self._buckets[key] = {}
            bounds[bound] = value
        elif part == "sum":
            self._sums[key] = value
        elif part == "count":
            self._counts[key] = value

    def drop(self, key: tuple[str, Labels]) -> None:
        """Forget what was collected for a key."""
        self._buckets.pop(key, None)
        self._sums.pop(key, None)
        self._counts.pop(key, None)

    def done(self) -> Iterator[tuple[tuple[str, Labels], tuple[tuple[float, ...], tuple[float, ...], float]]]:
        """Key and (finite edges, cumulative counts, sum) of every valid histogram; `flaws` has the others."""
        for key, bounds in self._buckets.items():
            edges = sorted(bounds)
            counts = tuple([bounds[edge] for edge in edges])
            total = self._sums.get(key)
            flaw = flaw_of(edges, counts, total, self._counts.get(key))
            if flaw or total is None:
                self.flaws[key] = f"{key[0]}: {flaw}"
            else:
                yield key, (tuple(edges[:-1]), counts, total)


def flaw_of(edges: Sequence[float], counts: tuple[float, ...], total: float | None, count: float | None) -> str:
    """The error of a histogram; "" if it is valid. ``count``: the page's `_count`, if it has one."""
    return edges_flaw(edges) or flaw_of_counts(counts, total, count)


def edges_flaw(edges: Sequence[float]) -> str:
    """The error of the edges alone: they must be complete and ascending."""
    return 'the histogram has no bucket le="+Inf"' if edges[-1] != inf or isnan(sum(edges[:-1])) else ""


def flaw_of_counts(counts: tuple[float, ...], total: float | None, count: float | None) -> str:
    """The error of the counts and the sum alone."""
    if total is None:
        return "the histogram has no sum"
    # Sorting a sorted list costs almost nothing.
    if counts[0] < 0 or not isfinite(sum(counts)) or list(counts) != sorted(counts):
        return "the histogram's buckets are not cumulative"
    if isnan(total):
        return "the histogram's sum is not a number"
    return "" if count is None or count == counts[-1] else "the histogram's count is not that of its last bucket"
