"""The share of its step that the trainer spends publishing weights."""

from server.signals._model import Answer, Signal, Value, View
from server.signals._steps import too_few, total, window

_HINT = "this trainer reports no weight sync time beside its step time"


def _compute(view: View) -> Answer:
    rows = window(view, "trainer_weight_sync_seconds", "trainer_step_seconds")
    missing = too_few(rows, _HINT)
    if missing is not None:
        return missing
    step = total(rows, "trainer_step_seconds")
    return [Value(total(rows, "trainer_weight_sync_seconds") / step if step > 0 else 0.0)]


SIGNAL = Signal(
    name="weight_sync_ratio",
    title="Weight sync share",
    unit="ratio",
    actor="trainer",
    help="Share of the step spent on publishing weights: sum of weight sync / sum of step over the last 10 steps.",
    inputs=("trainer_weight_sync_seconds", "trainer_step_seconds"),
    cadence="step",
    compute=_compute,
    hint=_HINT,
    # 10 %: what good disaggregated transfers stay below; 25 %: a quarter of the trainer is a copy machine.
    watch=0.10,
    critical=0.25,
)
