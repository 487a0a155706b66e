"""Failed tool calls and failed rollouts: what makes honest-looking zeros out of broken infrastructure."""

from server.signals._model import STEP_MINIMUM, Answer, Signal, Value, View
from server.signals._steps import mean, too_few, window

_HINT = "this trainer reports neither failed tool calls nor failed rollouts"
_PARTS = (("rollouts", "rollout_error_ratio"), ("tool_calls", "tool_failure_ratio"))


def _compute(view: View) -> Answer:
    windows = {of: (metric, window(view, metric)) for of, metric in _PARTS}
    known = [Value(mean(rows, m), (("of", of),)) for of, (m, rows) in windows.items() if len(rows) >= STEP_MINIMUM]
    longest = max((rows for _, rows in windows.values()), key=len)
    return known or too_few(longest, _HINT) or []


SIGNAL = Signal(
    name="failure_ratio",
    title="Failures",
    unit="ratio",
    actor="sandbox",
    help="Share of tool calls, and of rollouts, that ended in an error, mean over the last 10 steps.",
    inputs=("rollout_error_ratio", "tool_failure_ratio"),
    cadence="step",
    compute=_compute,
    hint=_HINT,
    watch=0.05,
    critical=0.20,
)
