"""The learning rate. A setting, not a measurement: the newest step's word counts, and a mean would lag its warm-up."""

from server.signals._model import Answer, Signal, Unknown, Value, View

_HINT = "this trainer reports no learning rate (TRL `learning_rate`, verl `actor/lr`)"


def _compute(view: View) -> Answer:
    rows = view.steps.rows(("learning_rate", ()), count=1, until=view.now)
    return [Value(rows[-1].values[("learning_rate", ())])] if rows else Unknown(_HINT)


SIGNAL = Signal(
    name="learning_rate",
    title="Learning rate",
    unit="",
    actor="trainer",
    help="Learning rate of the newest step that reports it.",
    inputs=("learning_rate",),
    cadence="step",
    compute=_compute,
    hint=_HINT,
)
