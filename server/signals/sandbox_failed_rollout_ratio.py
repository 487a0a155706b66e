"""Rollouts lost to their sandbox: they come back as zeros or not at all, and a trainer takes either for the task."""

from server.signals._model import Answer, NotApplicable, Signal, Unknown, Value, View
from server.signals._sandboxes import NEEDS_NONE

_HINT = "no source says which rollouts their sandbox lost (the traces of verifiers and prime-rl do)"


def _compute(view: View) -> Answer:
    if view.facts.get("has_sandbox") == 0:
        return NotApplicable(NEEDS_NONE)
    ended = list(view.gauges.get("rollouts_seen_total", ()))
    if not ended:
        return Unknown(_HINT)
    # Counters speak only when a rollout ends: silence is no staleness, it is a window without any.
    seen = sum(gauge.increase(view.now)[0] for gauge in ended)
    lost = sum(gauge.increase(view.now)[0] for gauge in view.gauges.get("rollouts_infra_failed_total", ()))
    return [Value(lost / seen)] if seen > 0 else Unknown("no rollout in a sandbox ended within 5 minutes")


SIGNAL = Signal(
    name="sandbox_failed_rollout_ratio",
    title="Rollouts lost to sandboxes",
    unit="ratio",
    actor="sandbox",
    help="Rollouts lost to their sandbox / rollouts in sandboxes that ended, without evaluation, over 5 minutes.",
    inputs=("rollouts_seen_total", "rollouts_infra_failed_total"),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
    # Each lost rollout bends its group's advantages; 5 to 15 % is what users of spot machines report as harmful.
    watch=0.02,
    critical=0.10,
)
