"""How busy the scorer is: seconds of scoring per group x groups per step, over the step. At 1 it sets the pace."""

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._steps import mean, too_few, window

_HINT = "this trainer reports no scoring time (TRL async `rollout/score_s`, verl `timing_s/reward`)"


def _compute(view: View) -> Answer:
    rows = window(view, "reward_seconds", "trainer_step_seconds")
    missing = too_few(rows, _HINT)
    if missing is not None:
        return missing
    seconds, step = mean(rows, "reward_seconds"), mean(rows, "trainer_step_seconds")
    times = 1.0 if view.synchronous else _groups(view)
    if times is None or step <= 0:
        return Unknown("scoring goes on beside the step, a group at a time: needs the groups or samples per step")
    return [Value(seconds * times / step)]


def _groups(view: View) -> float | None:
    """Groups that were scored per step: those trained on, and those dropped after it."""
    rows, size = window(view, "trainer_groups"), view.fact("group_size")
    samples, dropped = window(view, "trainer_samples"), window(view, "stale_dropped_rollouts")
    lost = mean(dropped, "stale_dropped_rollouts") / size if dropped and size else 0.0
    if samples and size:
        return mean(samples, "trainer_samples") / size + lost
    return mean(rows, "trainer_groups") + lost if rows else None


SIGNAL = Signal(
    name="scoring_busy_ratio",
    title="Scorer busy",
    unit="ratio",
    actor="sandbox",
    help="Seconds of scoring per second of a scorer that takes one group at a time (asynchronous runs), or the share "
    "of the step (synchronous runs); last 10 steps. Several scorers together may exceed 1.",
    inputs=("reward_seconds", "trainer_step_seconds", "trainer_samples", "trainer_groups"),
    cadence="step",
    compute=_compute,
    hint=_HINT,
)
