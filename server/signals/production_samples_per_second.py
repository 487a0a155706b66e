"""How fast samples are produced, by how far they came. An engine's finished requests are no such rate."""

import math

from server.rollouts.staleness import ORIGIN_HINT
from server.rollouts.window import NO_RECORDS, Window
from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._recorded import missing, recorded

_STAGE = {name: (("stage", name),) for name in ("dispatched", "completed", "delivered", "trainable")}

_UNTOLD = {
    "dispatched": "no record tells when it began: log `dispatched_at`",
    "completed": "no record tells when it ended: log `finished_at`",
}


def _compute(view: View, found: Window) -> Answer:
    seconds = found.end - found.start
    if found.sampled:
        return Unknown("records tell of a sample of the rollouts: no rate follows from them")
    if view.fact("times_copied"):
        return Unknown("the files of the rollouts were copied: their times are not the run's, so no rate is known")
    if not 0 < seconds < math.inf:
        return Unknown("the first window of 10 consumed versions is not over; it fills by itself")
    rates = [(name, found.rate(name)) for name in ("dispatched", "completed")]
    values = [
        Value(rate, _STAGE[name]) if rate is not None else missing(_UNTOLD[name], _STAGE[name])[0]
        for name, rate in rates
    ]
    if not found.consumed:
        return [*values, *missing("no record tells a consumption: log `consumed_at`", _STAGE["delivered"])]
    return [*values, Value(found.used.count / seconds, _STAGE["delivered"]), _trainable(view, found, seconds)]


def _trainable(view: View, found: Window, seconds: float) -> Value:
    """Fresh enough and with a gradient; unknown where nobody tells the gradient of any."""
    bound = view.fact("max_staleness_versions")
    kinds = [(kind[2], found.fruitless(kind), count) for kind, count in found.kinds]
    told = [(stale, idle, count) for stale, idle, count in kinds if idle is not None]
    if not told:
        return missing("no record tells `advantage`, or the group that would", _STAGE["trainable"])[0]
    # How stale one is matters only where the run has a bound; of the others as many count as of those that tell it.
    known = [(stale, idle, count) for stale, idle, count in told if bound is None or stale is not None]
    if not known:
        why = f"no record tells how stale it is against the run's bound: {ORIGIN_HINT}"
        return missing(why, _STAGE["trainable"])[0]
    fresh = sum(n for stale, idle, n in known if not idle and (bound is None or (stale is not None and stale <= bound)))
    # Of the few that nobody tells as many carry a gradient as of the others.
    return Value(fresh / sum(n for _, _, n in known) * found.used.count / seconds, _STAGE["trainable"])


SIGNAL = Signal(
    name="production_samples_per_second",
    title="Production",
    unit="samples/s",
    actor="generator",
    help="Rollouts per second that were dispatched, completed (generated to their end), delivered (consumed by the "
    "trainer) and trainable (delivered, within the run's staleness bound, with an advantage), over the last 10 "
    "consumed versions. Needs rollout records.",
    inputs=(),
    cadence="step",
    compute=recorded(_compute),
    hint=NO_RECORDS,
    higher_is_worse=False,
    records=True,
)
