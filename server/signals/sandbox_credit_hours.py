"""How long the credit lasts at the rate it falls."""

from itertools import pairwise

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._window import Gauge

_HINT = "no provider tells its credit (Prime does, by its wallet)"
# Bills are booked in steps: over less than a minute a rate is noise.
SHORTEST_SECONDS = 60.0
# A credit that hardly falls lasts "for ever"; a year stands for it.
MOST_HOURS = 8760.0


def _burned(gauge: Gauge) -> tuple[float, float]:
    """(dollars, seconds) by which the balance fell within the window; a top-up is no negative burn."""
    points = list(gauge.points)
    spent = sum(max(0.0, old - new) for (_, old), (_, new) in pairwise(points))
    return spent, points[-1][0] - points[0][0]


def _compute(view: View) -> Answer:
    gauges = view.fresh("sandbox_credit_usd")
    if not gauges:
        return Unknown(_HINT)
    rates = []
    for gauge in gauges:
        spent, seconds = _burned(gauge)
        if seconds >= SHORTEST_SECONDS:
            rates.append((gauge.last, spent / seconds))
    told = [gauge.last for gauge in view.fresh("sandbox_cost_usd_per_hour")]
    if told and sum(told) > 0:
        return [Value(min(MOST_HOURS, sum(gauge.last for gauge in gauges) / sum(told)))]
    if not rates:
        return Unknown("a minute of its balance is needed to see it fall")
    hours = [credit / rate / 3600 if rate > 0 else MOST_HOURS for credit, rate in rates]
    return [Value(min([MOST_HOURS, *hours]))]


SIGNAL = Signal(
    name="sandbox_credit_hours",
    title="Credit lasts",
    unit="hours",
    actor="sandbox",
    help="Hours until the sandbox credit is used up, at the provider's rate or at the decrease within 5 minutes.",
    inputs=("sandbox_credit_usd", "sandbox_cost_usd_per_hour"),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
    watch=48.0,
    critical=24.0,
    higher_is_worse=False,
)
