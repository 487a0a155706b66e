"""How long sandboxes take from request to ready."""

from collections.abc import Callable, Iterator, Mapping

from collectors.model import Labels
from server.signals.model import Answer, Counter, Unknown, Value, View, signal
from server.signals.observed_histograms import Pool, observed, quantiles
from server.signals.sandboxes import NO_SOURCE, missing

QUANTILES = (("p50", 0.50), ("p95", 0.95), ("p99", 0.99))


def quantile(ordered: list[float], q: float) -> float:
    """Linear between the two neighbours (as numpy and Prometheus' summaries do)."""
    place = (len(ordered) - 1) * q
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def _stats(image: str, seconds: list[float]) -> list[Value]:
    ordered = sorted(seconds)
    values = [Value(quantile(ordered, q), (("image", image), ("stat", name))) for name, q in QUANTILES]
    return [*values, Value(ordered[-1], (("image", image), ("stat", "max")))]


def _metered(view: View) -> list[Value]:
    """From the buckets of a source that times sandboxes without records of single ones."""
    if view.sandboxes.heard or view.sandboxes.ready or view.facts.get("has_sandbox") == 0:
        return []
    pools: dict[str, list[Pool]] = {}
    for pool in view.observed.get("sandbox_spinup_seconds", ()):
        if pool.fresh(view.now):
            pools.setdefault("all", []).append(pool)
            image = dict(pool.labels).get("image", "")
            if image in ("cached", "built"):
                pools.setdefault(image, []).append(pool)
    found = {image: observed(of, view.now) for image, of in pools.items()}
    return [
        Value(value, (("image", image), ("stat", name)))
        for image, buckets in found.items()
        if buckets
        for name, value in quantiles(buckets, QUANTILES)
    ]


@signal(
    title="Sandbox spin-up",
    unit="seconds",
    actor="sandbox",
    inputs=("sandbox_spinup_seconds",),
    cadence="tick",
    hint=NO_SOURCE,
    watch=60.0,
    critical=120.0,
)
def sandbox_spinup_latency_seconds(view: View) -> Answer:
    """Time from requested to ready, of sandboxes that became ready within 5 minutes, by cached or built image. Pending
    sandboxes are not included.

    Where no record of a single sandbox is read, from the buckets of a source that times them (no maximum then).
    """
    if metered := _metered(view):
        return metered
    gap = missing(view, reported=bool(view.sandboxes.ready))
    if gap is not None:
        return gap
    found: dict[str, list[float]] = {"all": []}
    for seconds, cached in view.sandboxes.readied(view.now):
        found["all"].append(seconds)
        if cached is not None:
            found.setdefault("cached" if cached else "built", []).append(seconds)
    if not found["all"]:
        return Unknown("no sandbox became ready within 5 minutes; see the oldest pending one")
    return [value for image, seconds in found.items() for value in _stats(image, seconds)]


# ---- spinup histogram
# The histogram of sandbox spin-ups: what one of them adds to each of its three counters.

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


COUNTERS = (
    Counter(
        name="sandbox_spinup_bucket_total",
        title="Spin-ups by bucket",
        unit="sandboxes",
        actor="sandbox",
        help="Sandboxes by their longest time from requested to ready; on /metrics the histogram "
        "sandbox_spinup_seconds.",
        metric="sandbox_spinup",
        of="sandbox",
        by=("le",),
    ),
    Counter(
        name="sandbox_spinup_count_total",
        title="Spin-ups",
        unit="sandboxes",
        actor="sandbox",
        help="Sandboxes with a known spin-up time; on /metrics the histogram sandbox_spinup_seconds.",
        metric="sandbox_spinup",
        of="sandbox",
    ),
    Counter(
        name="sandbox_spinup_sum_total",
        title="Spin-up seconds",
        unit="seconds",
        actor="sandbox",
        help="Seconds from requested to ready, summed over sandboxes; on /metrics the histogram "
        "sandbox_spinup_seconds.",
        metric="sandbox_spinup",
        of="sandbox",
    ),
)
"""Counters of this topic, which are counted as records arrive."""
