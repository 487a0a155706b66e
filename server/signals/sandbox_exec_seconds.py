"""How long commands in sandboxes take: after the spin-up this is what a rollout waits for."""

from server.signals._model import Answer, NotApplicable, Signal, Unknown, Value, View
from server.signals._observed import observed, quantile
from server.signals._sandboxes import NEEDS_NONE

_HINT = "no source times commands in sandboxes (agent-sandbox's router does; so can a push)"
_QUANTILES = (("p50", 0.50), ("p95", 0.95))


def _compute(view: View) -> Answer:
    if view.facts.get("has_sandbox") == 0:
        return NotApplicable(NEEDS_NONE)
    pools = [pool for pool in view.observed.get("sandbox_exec_seconds", ()) if pool.fresh(view.now)]
    if not pools:
        return Unknown(_HINT)
    buckets = observed(pools, view.now)
    if not buckets:
        return Unknown("no command ended in a sandbox within 5 minutes")
    return [Value(quantile(buckets, q), (("stat", name),)) for name, q in _QUANTILES]


SIGNAL = Signal(
    name="sandbox_exec_seconds",
    title="Sandbox commands",
    unit="seconds",
    actor="sandbox",
    help="Duration of commands that ended in sandboxes within 5 minutes, from the source's own buckets.",
    inputs=("sandbox_exec_seconds",),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
