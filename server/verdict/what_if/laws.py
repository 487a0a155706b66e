"""Two laws of distributions of which only a few numbers are measured. Pure arithmetic."""

from collections.abc import Callable
from math import exp, expm1, log, prod

# Bounds of the search; beyond them the shown digits do not change.
_FLATTEST, _SHARPEST = 1e-6, 1e6
_HALVINGS = 80


def mean_cut_at(mean: float, cap: float, new_cap: float, cut: float | None) -> float:
    """Returns the mean length under another cap; lengths are exponential below it, E[min(X, cap)] = mean today.

    Whatever the distribution, E[min(X, c)] is concave in c with the slope P(X > c): today's share of ``cut`` ones
    bounds both directions, and the estimate keeps within.
    """
    target = min(mean / cap, 1 - 1e-9)
    # In units of the cap: the scale with today's censored mean.
    scale = _solve(lambda size: -expm1(-1 / size) * size, target, rising=True)
    moved = -expm1(-new_cap / cap / scale) * scale * cap
    # A mean this short cannot be cut further.
    along = mean + min(cut, mean / cap) * (new_cap - cap) if cut is not None else moved
    return min(moved, along, new_cap)


def zero_share_at(size: int, new_size: int, solved: float, share: float) -> float:
    """Returns the share of groups with equal rewards for another group size.

    Tasks differ in how often they are solved: by a beta distribution with today's mean ``solved``, as wide as today's
    ``share`` states. Rewards are 0 or 1.
    """
    sharpness = _solve(lambda total: _equal(size, solved, total), share, rising=False)
    # If no width gives today's share (length penalties, infra failures), only the ratio of the law is used.
    return min(1.0, share * _equal(new_size, solved, sharpness) / _equal(size, solved, sharpness))


def _equal(size: int, solved: float, total: float) -> float:
    """Returns P(all solved) + P(none solved) of a group, p ~ Beta(solved * total, (1 - solved) * total)."""
    return sum(prod((share * total + i) / (total + i) for i in range(size)) for share in (solved, 1 - solved))


def _solve(law: Callable[[float], float], target: float, rising: bool) -> float:
    """Finds the argument of a monotonic law for a value by bisection on a logarithmic scale; else the nearest end."""
    low, high = log(_FLATTEST), log(_SHARPEST)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if (law(exp(middle)) < target) == rising:
            low = middle
        else:
            high = middle
    return exp((low + high) / 2)
