"""Seconds of the last 5 minutes in which an engine was paused or took in weights, where that can be counted."""

from server.signals._engines import spread
from server.signals._model import Answer, Signal, Unknown, View
from server.signals._updates import HINT, INPUTS, PAUSED, stalls


def _compute(view: View) -> Answer:
    found = stalls(view)
    return spread(list(found.values())) if found else Unknown(HINT)


SIGNAL = Signal(
    name="generator_weight_stall_seconds",
    title="Weight update time",
    unit="seconds",
    actor="generator",
    help="Seconds of the last 5 minutes in which an engine was paused (if its page reports that) or answered calls "
    "that load weights (except /collective_rpc, which may be anything): minimum, mean and maximum over engines.",
    inputs=(*INPUTS, PAUSED),
    cadence="tick",
    compute=_compute,
    hint=HINT,
)
