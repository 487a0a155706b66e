"""How old what the trainer trains on is, in policy versions, at three levels.

Rollout records (docs/reference/rollouts.md) give all three, a trainer's log the trajectory's alone. Synchronous runs
train on what the current policy produced: 0 by definition. At the run's own bound, staleness says only that generation
is ahead: it saturates there whatever the bottleneck (TRL async at `max_staleness`). What was dropped as stale is in
`rollout_exit_ratio`: staleness of the trained alone is survivor-biased at the bound.
"""

from collections.abc import Callable, Mapping

from server.rollouts.environments import HINT as ENVIRONMENT_HINT
from server.rollouts.spread import counted_mean, counted_quantile
from server.rollouts.staleness import ENVIRONMENT, ORIGIN_HINT, TOKEN, TOKEN_HINT, TRAJECTORY
from server.rollouts.window import Window
from server.signals._model import Answer, Signal, Value, View
from server.signals._recorded import either, missing
from server.signals._steps import average, stats

_HINT = (
    "this trainer reports no staleness: it must log versions per batch "
    "(prime-rl `off_policy/mean`, TRL async `sample/staleness_mean`)"
)
_LEVEL = ("level", "trajectory")
_reported = stats(_HINT, ("mean", "staleness_versions_mean", average), ("max", "staleness_versions_max", max))
# PipelineRL and AReaL tell the largest alone.
_largest = stats(_HINT, ("max", "staleness_versions_max", max))
_STATS: Mapping[str, Callable[[Mapping[int, int]], float]] = {
    "mean": counted_mean, "p95": lambda ages: counted_quantile(ages, 0.95), "max": lambda ages: float(max(ages)),
}  # fmt: skip
_HINTS = {TRAJECTORY: ORIGIN_HINT, TOKEN: TOKEN_HINT, ENVIRONMENT: ENVIRONMENT_HINT}
_BOUND = "upper bound: nobody tells which tool calls changed the environment (`mutated`), so each counts"


def _logged(view: View) -> Answer:
    if view.synchronous:
        return [Value(0.0, (_LEVEL, ("stat", "mean"))), Value(0.0, (_LEVEL, ("stat", "max")))]
    answer = _reported(view)
    if not isinstance(answer, (list, tuple)):
        answer = _largest(view)
    if not isinstance(answer, (list, tuple)):
        return answer
    return [Value(value.value, (_LEVEL, *value.labels)) for value in answer]


def _recorded(view: View, found: Window) -> Answer:
    used, synchronous = found.used, view.synchronous
    whole = used.staleness or ({0: 1} if synchronous else {})
    tokens = used.tokens or ({0: 1} if synchronous else {})
    levels = [*_of_level(TRAJECTORY, whole, found), *_of_level(TOKEN, tokens, found)]
    if not used.turns and view.fact("has_sandbox") == 0:
        return levels
    return [*levels, *_of_level(ENVIRONMENT, used.turns, found, _BOUND if used.bound else "")]


def _of_level(level: str, ages: Mapping[int, int], found: Window, why: str = "") -> list[Value]:
    labels = {stat: (("level", level), ("stat", stat)) for stat in _STATS}
    if not ages:
        return missing(_gap(level, found), *labels.values())
    return [Value(fold(ages), labels[stat], why) for stat, fold in _STATS.items()]


def _gap(level: str, found: Window) -> str:
    """The most frequent reason among the window's rollouts."""
    if not found.consumed:
        return "no record tells a consumption: log `version_consumed` (and `consumed_at`)"
    reasons = found.used.gaps.get(level)
    return max(sorted(reasons), key=reasons.__getitem__) if reasons else _HINTS[level]


SIGNAL = Signal(
    name="staleness_versions",
    title="Policy staleness",
    unit="versions",
    actor="queue",
    help="Policy versions between generation and consumption of a trained rollout: of its oldest token (trajectory), "
    "its mean token, the state of its environment; mean, p95 and maximum over the last 10 consumed versions. From a "
    "trainer's log: mean of the last 10 steps' means, maximum of their maxima.",
    inputs=("staleness_versions_mean", "staleness_versions_max", "trainer_step_seconds"),
    cadence="step",
    compute=either(_recorded, _logged),
    hint=_HINT,
    records=True,
)
