"""How fast a behaviour moves, per step."""

from server.signals._drift_answers import of_all, slope_value
from server.signals._drift_points import WATCHED
from server.signals._model import Signal, fold

_HINT = "no response length, turns, tool calls or tokens by step: log them, or give rollout records"

SIGNAL = Signal(
    name="drift_slope_ratio",
    title="Drift per step",
    unit="ratio",
    actor="generator",
    help="Change per step as a share of the initial level: Theil-Sen slope of the last 30 steps, of response_length, "
    "turns, tool_calls and prefill_decode.",
    inputs=tuple(dict.fromkeys(("trainer_step_seconds", *(name for one in WATCHED for name in one.inputs)))),
    cadence="step",
    hint=_HINT,
    records=True,
    **fold(of_all(slope_value, _HINT)),
)
