"""The share of its step that the trainer spends waiting for rollouts: a ratio of sums over the last 10 steps."""

from server.signals._model import Answer, Signal, Value, View
from server.signals._steps import SYNC_HAS_NO_WAIT, not_in_sync, too_few, total, window

_HINT = (
    "this trainer reports no wait time: it must log one beside the step time "
    "(prime-rl `time/wait_for_batch`, TRL async `perf/rollout_wait_s`)"
)


def _compute(view: View) -> Answer:
    rows = window(view, "trainer_wait_seconds", "trainer_step_seconds")
    missing = too_few(rows, _HINT)
    if missing is not None:
        return missing
    step = total(rows, "trainer_step_seconds")
    return [Value(total(rows, "trainer_wait_seconds") / step)] if step > 0 else [Value(0.0)]


SIGNAL = Signal(
    name="trainer_wait_ratio",
    title="Trainer wait",
    unit="ratio",
    actor="trainer",
    help="Share of the step in which the trainer waits for rollouts: sum of wait / sum of step over the last 10 steps.",
    inputs=("trainer_wait_seconds", "trainer_step_seconds"),
    cadence="step",
    compute=not_in_sync(SYNC_HAS_NO_WAIT, _compute),
    hint=_HINT,
    # 15 %: what batch noise alone costs a balanced run; 40 %: more than the published 30 % that made people look.
    watch=0.15,
    critical=0.40,
)
