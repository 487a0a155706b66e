"""Model FLOPs utilisation as the trainer reports it, by its own basis.

`busy` counts the forward and backward seconds only (prime-rl), `wall` the whole step: the two must never be mixed.
"""

from server.signals._model import Answer, Signal, Value, View
from server.signals._steps import mean, too_few, window

_HINT = "this trainer reports no MFU (prime-rl `perf/mfu`, TRL async `perf/mfu_wall_clock`)"


def _compute(view: View) -> Answer:
    values, missing = [], None
    for basis in ("wall", "busy"):
        labels = (("basis", basis),)
        rows = window(view, ("trainer_mfu_ratio", labels))
        lacking = too_few(rows, _HINT)
        if lacking is None:
            values.append(Value(mean(rows, "trainer_mfu_ratio", labels), labels))
        elif rows or missing is None:
            missing = lacking
    return values or missing or []


SIGNAL = Signal(
    name="trainer_mfu_ratio",
    title="MFU",
    unit="ratio",
    actor="trainer",
    help="Model FLOPs utilisation, mean over the last 10 steps; basis wall or busy, as reported.",
    inputs=("trainer_mfu_ratio",),
    cadence="step",
    compute=_compute,
    hint=_HINT,
)
