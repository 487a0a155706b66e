"""The share of groups that teach most: neither too easy nor too hard."""

from server.rollouts.window import NO_RECORDS, Window
from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._recorded import recorded
from server.signals.solve_ratio import HINT, ratios

# The variance of a group's rewards, and with it the gradient, is at least 64 % of its largest within these.
LOW, HIGH = 0.2, 0.8


def _compute(_: View, found: Window) -> Answer:
    known = ratios(found)
    return [Value(sum(LOW <= ratio <= HIGH for ratio in known) / len(known))] if known else Unknown(HINT)


SIGNAL = Signal(
    name="solve_band_ratio",
    title="Productive groups",
    unit="ratio",
    actor="queue",
    help="Share of completed groups whose solve rate is between 0.2 and 0.8, where most of the gradient is; last 10 "
    "consumed versions. Needs rollout records.",
    inputs=(),
    cadence="step",
    compute=recorded(_compute),
    hint=NO_RECORDS,
    higher_is_worse=False,
    records=True,
)
