"""Histogram points of OTLP -> cumulative buckets of ours. Pure.

By opentelemetry-proto 1.45 (`metrics.proto`) and OpenTelemetry's metrics data model: bucket i of an exponential
histogram is (base^i, base^(i+1)] with base = 2^(2^-scale), and lowering the scale by one merges neighbours exactly.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import isfinite
from typing import Any

from collectors.catalog import Metric
from collectors.model import Histogram, Labels
from server.push import names as push_names

# An SDK changes scale and offset as its values spread, and only histograms of the same edges can be added up: so
# every exponential one is brought to fixed edges, a quarter of an octave apart (19 %), or an octave where it is coarse.
LOW, HIGH = -14, 28  # powers of two in the sender's unit: 61 microseconds in seconds, three days in milliseconds
SCALES = (2, 0)
EDGES = {scale: tuple(2.0 ** (n / (1 << scale)) for n in range(LOW << scale, (HIGH << scale) + 1)) for scale in SCALES}
# SDKs hold 160; a body of 16 MB could bring millions.
BUCKETS = 5_000


def explicit(metric: Metric, point: Any, labels: Labels, factor: float, ts: float | None, now: float) -> Histogram:
    """A point with explicit bounds. ``factor``: divide by it to get the metric's unit.

    Raises:
        ValueError: what is wrong with it.
    """
    _check(metric, point)
    if len(point.bucket_counts) > BUCKETS:
        raise ValueError(f"more than {BUCKETS} buckets")
    if not point.explicit_bounds:
        raise ValueError("a histogram without buckets: configure explicit ones")
    counts = [float(count) for count in accumulate(point.bucket_counts)]
    return _made(metric, point, point.explicit_bounds, counts, labels, factor, ts, now)


def exponential(metric: Metric, point: Any, labels: Labels, factor: float, ts: float | None, now: float) -> Histogram:
    """An exponential point under `EDGES`; what is at most 2^LOW, zero or negative is in the first bucket.

    Raises:
        ValueError: what is wrong with it.
    """
    _check(metric, point)
    scale = next((one for one in SCALES if one <= point.scale), None)
    if scale is None:
        raise ValueError("an exponential histogram with buckets wider than powers of two: raise its max_size")
    if point.zero_threshold > EDGES[scale][0]:
        raise ValueError(f"an exponential histogram that takes more than 2^{LOW} for zero")
    if max(len(point.positive.bucket_counts), len(point.negative.bucket_counts)) > BUCKETS:
        raise ValueError(f"more than {BUCKETS} buckets")
    counts = [float(count) for count in accumulate(_brought(point, scale))]
    return _made(metric, point, EDGES[scale], counts, labels, factor, ts, now)


def _brought(point: Any, scale: int) -> list[int]:
    """Counts per bucket of `EDGES`, one more than edges."""
    last = len(EDGES[scale])
    found = [0] * (last + 1)
    found[0] = point.zero_count + sum(point.negative.bucket_counts)
    for index, count in enumerate(point.positive.bucket_counts, point.positive.offset):
        upper = (index >> (point.scale - scale)) + 1 - (LOW << scale)
        found[min(max(upper, 0), last)] += count
    return found


def _check(metric: Metric, point: Any) -> None:
    if metric.kind != "histogram":
        raise ValueError(f"{metric.name} is a {metric.kind}, not a histogram")
    if not point.HasField("sum"):
        raise ValueError("a histogram without a sum: its mean would be unknown")
    if not isfinite(point.sum):
        raise ValueError("the histogram's sum is not a finite number")


def _made(
    metric: Metric, point: Any, edges: Sequence[float], counts: Sequence[float], labels: Labels, factor: float,
    ts: float | None, now: float,
) -> Histogram:  # fmt: skip
    found = push_names.histogram(metric, [edge / factor for edge in edges], counts, point.sum / factor, labels, ts, now)
    if counts[-1] != point.count:
        raise ValueError(f"its buckets hold {counts[-1]:.0f} observations, its count says {point.count}")
    return found
