"""The share of rollouts that were paid for and not trained on."""

from server.signals._model import Answer, Signal, Value, View
from server.signals._steps import mean, too_few, total, window

_HINT = "this trainer reports neither the trainable share of its rollouts nor how many it dropped"


def _compute(view: View) -> Answer:
    share = window(view, "trainable_ratio")
    if share:
        return too_few(share, _HINT) or [Value(1.0 - mean(share, "trainable_ratio"))]
    rows = window(view, "stale_dropped_rollouts", "trainer_samples")
    missing = too_few(rows, _HINT)
    if missing is not None:
        return missing
    dropped, trained = total(rows, "stale_dropped_rollouts"), total(rows, "trainer_samples")
    return [Value(dropped / (dropped + trained) if dropped + trained > 0 else 0.0)]


SIGNAL = Signal(
    name="discarded_rollout_ratio",
    title="Discarded rollouts",
    unit="ratio",
    actor="queue",
    help="Share of rollouts not trained on (errors, cancelled, filtered, stale as far as reported), last 10 steps.",
    inputs=("trainable_ratio", "stale_dropped_rollouts", "trainer_samples"),
    cadence="step",
    compute=_compute,
    hint=_HINT,
    # 60 % is a published run that made people look; half thrown away doubles the price of every token kept.
    watch=0.30,
    critical=0.50,
)
