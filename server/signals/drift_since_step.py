"""Since which step a behaviour is away from the run's own first steps."""

from server.signals._drift_answers import of_all, since
from server.signals._drift_points import WATCHED
from server.signals._model import Signal, fold

_HINT = "no response length, turns, tool calls or tokens by step: log them, or give rollout records"

SIGNAL = Signal(
    name="drift_since_step",
    title="Drift since",
    unit="step",
    actor="generator",
    help="Step at which a behaviour left its initial level permanently (response_length, turns, tool_calls, "
    "prefill_decode; two-sided Page-Hinkley test and at least 16 % away); unknown if it has not.",
    inputs=tuple(dict.fromkeys(("trainer_step_seconds", *(name for one in WATCHED for name in one.inputs)))),
    cadence="step",
    hint=_HINT,
    records=True,
    **fold(of_all(since, _HINT, announce=True)),
)
