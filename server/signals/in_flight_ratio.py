"""Rollouts under way against the cap on them: at the cap, production is as wide as its configuration lets it be."""

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._ticks import last_sum
from server.signals.in_flight_rollouts import SIGNAL as IN_FLIGHT

_HINT = (
    "needs the rollouts in flight and the cap on them (prime-rl `concurrency/max_inflight`, TRL async "
    "`max_inflight_tasks`, or the fact max_in_flight)"
)
# Where a rollout has ended and only waits it takes no place any more.
_OVER = ("waiting_group", "queued", "scoring")


def _compute(view: View) -> Answer:
    caps = view.fresh("in_flight_capacity_rollouts")
    cap = last_sum(caps) if caps else view.fact("max_in_flight")
    counted = IN_FLIGHT.compute(view)
    if not cap or not isinstance(counted, list):
        return Unknown(_HINT)
    return [Value(sum(value.value for value in counted if dict(value.labels).get("state") not in _OVER) / cap)]


SIGNAL = Signal(
    name="in_flight_ratio",
    title="In flight, of the cap",
    unit="ratio",
    actor="generator",
    help="Rollouts in flight now / their maximum, without rollouts that only wait for a reward, their group or the "
    "trainer.",
    inputs=("in_flight_rollouts", "in_flight_capacity_rollouts"),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
    records=True,
)
