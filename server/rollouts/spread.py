"""Means and quantiles of values, weighted or not. Exact, over bounded windows."""

from collections.abc import Iterable, Mapping, Sequence
from math import ceil, fsum, sqrt


def quantile(ordered: Sequence[float], q: float) -> float:
    """Linear between the two neighbours (as numpy does), of ascending values; at least one."""
    place = (len(ordered) - 1) * q
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def mean(values: Sequence[float]) -> float:
    """Of at least one."""
    return fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of all of them; at least one. (`statistics` is exact, and takes twenty times as long.)"""
    middle = mean(values)
    return sqrt(fsum([(value - middle) ** 2 for value in values]) / len(values))


# Two-sided 95 % of the normal distribution.
NORMAL_95 = 1.96


def lowest_share(share: float, count: float) -> float:
    """Lower end of the 95 % interval of a share of ``count`` draws (Wilson, 1927); 0 for no draw."""
    if count <= 0:
        return 0.0
    square = NORMAL_95 * NORMAL_95 / count
    half = NORMAL_95 * sqrt(max(0.0, share * (1 - share) / count + square / (4 * count)))
    return max(0.0, (share + square / 2 - half) / (1 + square))


def joined(counts: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Counts by value, added up."""
    found: dict[int, int] = {}
    for one in counts:
        for value, count in one.items():
            found[value] = found.get(value, 0) + count
    return found


def counted_mean(counts: Mapping[int, int]) -> float:
    """The mean of values that were counted; at least one was."""
    return sum(value * count for value, count in counts.items()) / sum(counts.values())


def counted_quantile(counts: Mapping[int, int], q: float) -> float:
    """As `quantile`, of values that were counted; at least one was."""
    place = (sum(counts.values()) - 1) * q
    low = _ranked(counts, int(place))
    return low + (_ranked(counts, ceil(place)) - low) * (place - int(place))


def _ranked(counts: Mapping[int, int], rank: int) -> float:
    for value in sorted(counts):
        rank -= counts[value]
        if rank < 0:
            return float(value)
    return float(max(counts))
