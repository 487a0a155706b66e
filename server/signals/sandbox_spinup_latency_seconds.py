"""How long sandboxes took from requested to ready, of those that became ready within five minutes."""

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._sandboxes import NO_SOURCE, missing

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


def _compute(view: View) -> Answer:
    gap = missing(view, told=bool(view.sandboxes.ready))
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


SIGNAL = Signal(
    name="sandbox_spinup_latency_seconds",
    title="Sandbox spin-up",
    unit="seconds",
    actor="sandbox",
    help="Requested to ready, of sandboxes that became ready within 5 minutes, by image cached or built; stragglers "
    "are not in it until they end.",
    inputs=(),
    cadence="tick",
    compute=_compute,
    hint=NO_SOURCE,
    watch=60.0,
    critical=120.0,
)
