"""Rollouts in flight now, by state, as the orchestrator counts them."""

from collections import defaultdict

from server.signals._model import Answer, Signal, Unknown, Value, View

_HINT = (
    "this run reports no rollouts in flight "
    "(prime-rl prints them in the orchestrator log, TRL async logs `rollout/inflight`)"
)


def _compute(view: View) -> Answer:
    states: dict[str, float] = defaultdict(float)
    for gauge in view.fresh("in_flight_rollouts"):
        states[dict(gauge.labels).get("state", "generating")] += gauge.last
    return [Value(count, (("state", state),)) for state, count in sorted(states.items())] or Unknown(_HINT)


SIGNAL = Signal(
    name="in_flight_rollouts",
    title="In flight",
    unit="rollouts",
    actor="generator",
    help="Rollouts dispatched and not yet complete, by state, in the newest report.",
    inputs=("in_flight_rollouts",),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
