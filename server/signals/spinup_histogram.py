"""The histogram of sandbox spin-ups: what one of them adds to each of its three counters.

Buckets reach two hours: a published run had sandboxes that took one, and a value in the +Inf bucket has no upper bound.
"""

from collections.abc import Callable, Iterator, Mapping

from collectors.model import Labels

EDGES = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0, 7200.0)

Part = Callable[[float], Iterator[tuple[Labels, float]]]


def _buckets(seconds: float) -> Iterator[tuple[Labels, float]]:
    # Empty buckets too, so that every edge exists from the first spin-up on.
    for edge in EDGES:
        yield (("le", f"{edge:g}"),), float(seconds <= edge)
    yield (("le", "+Inf"),), 1.0


def _sum(seconds: float) -> Iterator[tuple[Labels, float]]:
    yield (), seconds


def _count(seconds: float) -> Iterator[tuple[Labels, float]]:
    yield (), 1.0


PARTS: Mapping[str, Part] = {
    "sandbox_spinup_bucket_total": _buckets,
    "sandbox_spinup_sum_total": _sum,
    "sandbox_spinup_count_total": _count,
}
