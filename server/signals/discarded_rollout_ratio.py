"""The share of rollouts that were paid for and not trained on."""

from server.rollouts.window import Window
from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._recorded import either
from server.signals._steps import mean, too_few, total, window
from server.signals.rollout_exit_ratio import no_exits

_HINT = "this trainer reports neither the trainable share of its rollouts nor how many it dropped"
_TRAINED_ONLY = "records are of trained batches only: what was discarded is not in them; log `exit` of every rollout"


def _logged(view: View) -> Answer:
    share = window(view, "trainable_ratio")
    if share:
        return too_few(share, _HINT) or [Value(1.0 - mean(share, "trainable_ratio"))]
    rows = window(view, "stale_dropped_rollouts", "trainer_samples")
    missing = too_few(rows, _HINT)
    if missing is not None:
        return missing
    dropped, trained = total(rows, "stale_dropped_rollouts"), total(rows, "trainer_samples")
    return [Value(dropped / (dropped + trained) if dropped + trained > 0 else 0.0)]


def _recorded(_: View, found: Window) -> Answer:
    """Of the rollouts that left, those not trained. A source of trained batches alone reports none of them."""
    left = sum(found.exits.values())
    if not left or not found.failures_told:
        return no_exits(found) if not left else Unknown(_TRAINED_ONLY)
    return [Value(1.0 - found.exits["trained"] / left)]


SIGNAL = Signal(
    name="discarded_rollout_ratio",
    title="Discarded rollouts",
    unit="ratio",
    actor="queue",
    help="Share of rollouts not trained on. From records: all exits except trained, since the last 10 consumed "
    "versions began. From a trainer's log: errors, cancelled, filtered and stale, as far as reported, last 10 steps.",
    inputs=("trainable_ratio", "stale_dropped_rollouts", "trainer_samples"),
    cadence="step",
    compute=either(_recorded, _logged),
    hint=_HINT,
    # 60 % is a published run that made people look; half thrown away doubles the price of every token kept.
    watch=0.30,
    critical=0.50,
    records=True,
)
