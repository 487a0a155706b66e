"""Trajectory staleness as the framework reports it, in policy versions.

Synchronous runs train on what the current policy produced: 0 by definition. Token and environment-state
levels need rollout records and are not here yet. At the run's own bound, staleness says only that
generation is ahead: it saturates there whatever the bottleneck (TRL async at `max_staleness`).
"""

from server.signals._model import Answer, Signal, Value, View
from server.signals._steps import average, stats

_HINT = (
    "this trainer reports no staleness: it must log versions per batch "
    "(prime-rl `off_policy/mean`, TRL async `sample/staleness_mean`)"
)
_LEVEL = ("level", "trajectory")
_reported = stats(_HINT, ("mean", "staleness_versions_mean", average), ("max", "staleness_versions_max", max))
# PipelineRL and AReaL tell the largest alone.
_largest = stats(_HINT, ("max", "staleness_versions_max", max))


def _compute(view: View) -> Answer:
    if view.synchronous:
        return [Value(0.0, (_LEVEL, ("stat", "mean"))), Value(0.0, (_LEVEL, ("stat", "max")))]
    answer = _reported(view)
    if not isinstance(answer, (list, tuple)):
        answer = _largest(view)
    if not isinstance(answer, (list, tuple)):
        return answer
    return [Value(value.value, (_LEVEL, *value.labels)) for value in answer]


SIGNAL = Signal(
    name="staleness_versions",
    title="Policy staleness",
    unit="versions",
    actor="queue",
    help="Policy versions between the oldest token of a trained rollout and its consumption; "
    "mean of the last 10 steps' means, max of their maxima.",
    inputs=("staleness_versions_mean", "staleness_versions_max", "trainer_step_seconds"),
    cadence="step",
    compute=_compute,
    hint=_HINT,
)
