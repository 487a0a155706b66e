"""How many of the last 10 steps had a gradient that is no number."""

from server.signals._model import Answer, Signal, Value, View
from server.signals._steps import too_few, total, window

_HINT = "this trainer reports no gradient norm"


def _compute(view: View) -> Answer:
    rows = window(view, "gradient_nonfinite")
    broken = total(rows, "gradient_nonfinite")
    # One is evidence enough; that there is none takes the usual three steps.
    return [Value(broken)] if broken else too_few(rows, _HINT) or [Value(0.0)]


SIGNAL = Signal(
    name="gradient_nonfinite_steps",
    title="Non-finite gradients",
    unit="steps",
    actor="trainer",
    help="Steps of the last 10 whose gradient norm was NaN or infinite.",
    inputs=("gradient_nonfinite",),
    cadence="step",
    compute=_compute,
    hint=_HINT,
    critical=1.0,
)
