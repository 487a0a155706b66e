"""Quantiles of a source's own histogram over five minutes: its buckets are counters, told apart by label ``le``.

The store keeps histograms by the minute; these are for the tick, and in memory only: after a restart of ours the first
reading is the base of the next, as a new source's is.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from collectors.model import Histogram, Labels
from server.signals._model import View
from server.signals._window import Gauge

WINDOWED = frozenset({"sandbox_exec_seconds"})
"""Histograms whose buckets a tick signal reads: of an engine's dozens none costs a series per edge here."""

Bucket = tuple[float, float]
"""(upper edge, observations at most that large)."""


def as_counters(histogram: Histogram) -> Iterator[tuple[Labels, float]]:
    """One cumulative counter per bucket: (labels with ``le``, count)."""
    for edge, count in zip((*histogram.edges, math.inf), histogram.counts, strict=False):
        yield tuple(sorted((*histogram.labels, ("le", f"{edge:.12g}")))), count


def observed(view: View, metric: str) -> list[Bucket]:
    """What was observed within five minutes, cumulative and ascending; empty when nothing was.

    Sources with the same edges are added up. Other edges cannot be: the layout with most observations is used.
    """
    series: dict[tuple[str, Labels], list[tuple[float, Gauge]]] = defaultdict(list)
    for gauge in view.fresh(metric):
        rest = tuple(pair for pair in gauge.labels if pair[0] != "le")
        series[gauge.target, rest].append((float(dict(gauge.labels)["le"]), gauge))
    layouts: dict[tuple[float, ...], dict[float, float]] = {}
    for buckets in series.values():
        edges = tuple(sorted(edge for edge, _ in buckets))
        sums = layouts.setdefault(edges, dict.fromkeys(edges, 0.0))
        for edge, gauge in buckets:
            sums[edge] += gauge.increase(view.now)[0]
    fullest: Mapping[float, float] = max(layouts.values(), key=lambda sums: sums[max(sums)], default={})
    return sorted(fullest.items()) if fullest and fullest[max(fullest)] > 0 else []


def quantile(buckets: Sequence[Bucket], q: float) -> float:
    """Linear within its bucket from 0 on, as Prometheus has it; beyond the last edge that edge: it is at least that."""
    rank = q * buckets[-1][1]
    low = below = 0.0
    for edge, count in buckets:
        if count >= rank and count > below:
            return low if math.isinf(edge) else low + (edge - low) * (rank - below) / (count - below)
        low, below = edge, count
    return low
