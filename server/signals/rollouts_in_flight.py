"""Rollouts in flight: dispatched and not yet ended. One number for every page; by state see `in_flight_rollouts`."""

from server.rollouts.state import WAITS
from server.signals._model import Answer, Signal, Value, View
from server.signals.in_flight_rollouts import SIGNAL as BY_STATE


def _compute(view: View) -> Answer:
    counted = BY_STATE.compute(view)
    if not isinstance(counted, list):
        return counted
    return [Value(sum(one.value for one in counted if dict(one.labels).get("state") not in WAITS))]


SIGNAL = Signal(
    name="rollouts_in_flight",
    title="Rollouts in flight",
    unit="rollouts",
    actor="generator",
    help="Rollouts dispatched and not yet ended: all states of in_flight_rollouts except waiting_group and queued, in "
    "which a rollout has ended and waits for siblings or for the trainer.",
    inputs=BY_STATE.inputs,
    cadence="tick",
    compute=_compute,
    hint=BY_STATE.hint,
    records=True,
)
