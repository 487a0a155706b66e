"""Converts OTLP histogram points to cumulative buckets. Pure.

Source: opentelemetry-proto 1.45 (`metrics.proto`) and OpenTelemetry's metrics data model. Bucket i of an exponential
histogram is (base^i, base^(i+1)] with base = 2^(2^-scale); lowering the scale by one merges adjacent buckets exactly.
"""

from collections.abc import Sequence
from itertools import accumulate
from math import isfinite
from typing import Any

from collectors.catalog import Metric
from collectors.model import Histogram, Labels
from server.push import names as push_names

# Lowest edge, as a power of two in the sender's unit: 61 microseconds if the unit is seconds.
LOW = -14
# Highest edge, as a power of two: three days if the unit is milliseconds.
HIGH = 28
# Scales of the fixed edges: a quarter of an octave (19 %), or an octave if the point is coarser. Fixed, because an SDK
# changes scale and offset with its values, and only histograms with equal edges can be added up.
SCALES = (2, 0)
EDGES = {scale: tuple(2.0 ** (n / (1 << scale)) for n in range(LOW << scale, (HIGH << scale) + 1)) for scale in SCALES}
# Most buckets of a point. SDKs have 160; a body of 16 MB could contain millions.
BUCKETS = 5_000


def explicit(metric: Metric, point: Any, labels: Labels, factor: float, ts: float | None, now: float) -> Histogram:
    """Converts a point with explicit bounds. Values are divided by ``factor`` to get the metric's unit.

    Raises:
        ValueError: why the point is refused.
    """
    _check(metric, point)
    if len(point.bucket_counts) > BUCKETS:
        raise ValueError(f"more than {BUCKETS} buckets")
    if not point.explicit_bounds:
        raise ValueError("a histogram without buckets: configure explicit ones")
    counts = [float(count) for count in accumulate(point.bucket_counts)]
    return _histogram(metric, point, point.explicit_bounds, counts, labels, factor, ts, now)


def exponential(metric: Metric, point: Any, labels: Labels, factor: float, ts: float | None, now: float) -> Histogram:
    """Converts an exponential point to `EDGES`; values up to 2^LOW, zero and negative ones go to the first bucket.

    Raises:
        ValueError: why the point is refused.
    """
    _check(metric, point)
    scale = next((candidate for candidate in SCALES if candidate <= point.scale), None)
    if scale is None:
        raise ValueError("an exponential histogram with buckets wider than powers of two: raise its max_size")
    if point.zero_threshold > EDGES[scale][0]:
        raise ValueError(f"an exponential histogram whose zero threshold is above 2^{LOW}")
    if max(len(point.positive.bucket_counts), len(point.negative.bucket_counts)) > BUCKETS:
        raise ValueError(f"more than {BUCKETS} buckets")
    counts = [float(count) for count in accumulate(_rebucketed(point, scale))]
    return _histogram(metric, point, EDGES[scale], counts, labels, factor, ts, now)


def _rebucketed(point: Any, scale: int) -> list[int]:
    """Returns counts per bucket of `EDGES`, one more than edges."""
    last = len(EDGES[scale])
    rebucketed = [0] * (last + 1)
    rebucketed[0] = point.zero_count + sum(point.negative.bucket_counts)
    for index, count in enumerate(point.positive.bucket_counts, point.positive.offset):
        upper = (index >> (point.scale - scale)) + 1 - (LOW << scale)
        rebucketed[min(max(upper, 0), last)] += count
    return rebucketed


def _check(metric: Metric, point: Any) -> None:
    if metric.kind != "histogram":
        raise ValueError(f"{metric.name} is a {metric.kind}, not a histogram")
    if not point.HasField("sum"):
        raise ValueError("a histogram without a sum: its mean would be unknown")
    if not isfinite(point.sum):
        raise ValueError("the histogram's sum is not a finite number")


def _histogram(
    metric: Metric, point: Any, edges: Sequence[float], counts: Sequence[float], labels: Labels, factor: float,
    ts: float | None, now: float,
) -> Histogram:  # fmt: skip
    histogram = push_names.histogram(
        metric, [edge / factor for edge in edges], counts, point.sum / factor, labels, ts, now
    )
    if counts[-1] != point.count:
        raise ValueError(f"its buckets hold {counts[-1]:.0f} observations, its count is {point.count}")
    return histogram
