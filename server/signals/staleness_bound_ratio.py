"""Staleness against the run's own bound: 1 is the bound, above it the bound does not hold."""

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._steps import too_few, window

_HINT = (
    "needs the largest staleness per step and the run's bound: state it as the fact max_staleness_versions "
    "where the framework's config does not give it"
)


def _compute(view: View) -> Answer:
    if view.synchronous:
        return view.not_in_mode("synchronous run: samples are trained on by the policy that made them")
    bound = view.fact("max_staleness_versions")
    if bound is None or bound <= 0:
        return Unknown(_HINT)
    rows = window(view, "staleness_versions_max")
    missing = too_few(rows, _HINT)
    return missing or [Value(max(row.values[("staleness_versions_max", ())] for row in rows) / bound)]


SIGNAL = Signal(
    name="staleness_bound_ratio",
    title="Staleness over its bound",
    unit="ratio",
    actor="queue",
    help="Largest staleness of the last 10 steps / the run's configured bound; above 1 the bound is not enforced.",
    inputs=("staleness_versions_max",),
    cadence="step",
    compute=_compute,
    hint=_HINT,
    critical=1.001,  # at the bound a bounded queue simply is; only beyond it something is wrong
)
