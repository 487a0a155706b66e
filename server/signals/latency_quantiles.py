"""Quantiles and the mean of an engine's latency histogram over five minutes, the whole fleet in one distribution."""

from server.signals.model import Answer, Unknown, Value, View
from server.signals.observed_histograms import observed, quantiles, totals

QUANTILES = (("p50", 0.50), ("p95", 0.95), ("p99", 0.99))


def answer(view: View, metric: str, hint: str, none: str) -> Answer:
    """Label stat: p50, p95, p99 in seconds where the buckets tell them, and the mean, which is exact.

    Fast decode falls below vLLM's first edge of 10 ms: a quantile there would be the edge's, not the engine's.

    Args:
        hint: nobody reports the histogram.
        none: they do, and nothing was observed.
    """
    pools = [pool for pool in view.observed.get(metric, ()) if pool.fresh(view.now)]
    if not pools:
        return Unknown(hint)
    count, total = totals(pools, view.now)
    if count <= 0:
        return Unknown(none)
    found = quantiles(observed(pools, view.now), QUANTILES)
    return [Value(total / count, (("stat", "mean"),)), *(Value(value, (("stat", name),)) for name, value in found)]
