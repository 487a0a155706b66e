"""The lowest zero-advantage share that the number of groups behind it allows: 3 of 6 groups are at least 19 %."""

from server.rollouts.spread import lowest_share
from server.signals._model import Answer, Signal, Value, View
from server.signals.zero_advantage_ratio import SIGNAL as TOTAL
from server.signals.zero_advantage_ratio import Share, shares


def _low(one: Share) -> Value:
    if one.groups is None:
        return Value(one.share, one.labels, "number of groups not reported: the share as the trainer logs it")
    return Value(lowest_share(one.share, one.groups), one.labels, f"of {one.groups:.0f} groups")


def _compute(view: View) -> Answer:
    found = shares(view)
    return [_low(one) for one in found] if isinstance(found, list) else found


SIGNAL = Signal(
    name="zero_advantage_low_ratio",
    title="Zero advantage, at least",
    unit="ratio",
    actor="queue",
    help="Lower end of the 95 % interval (Wilson) of zero_advantage_ratio, from the number of groups behind it; the "
    "share itself if a trainer's log has no number of groups.",
    inputs=TOTAL.inputs,
    cadence="step",
    compute=_compute,
    hint=TOTAL.hint,
    records=True,
)
