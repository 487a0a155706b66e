"""How far the tool calls per rollout have moved from the run's own first steps."""

from server.signals._drift_answers import ratio
from server.signals._drift_points import TOOL_CALLS
from server.signals._model import Signal, fold

_HINT = "no tool calls by step: log them (TRL `tools/call_frequency`), or give rollout records"

SIGNAL = Signal(
    name="tool_calls_drift_ratio",
    title="Tool calls drift",
    unit="ratio",
    actor="sandbox",
    help="Median tool calls of the last 10 steps / the run's own first steps (30 after 5 of burn-in, or the first 10 "
    "of a run that drifts from its start), by environment if records name it.",
    inputs=TOOL_CALLS.inputs,
    cadence="step",
    hint=_HINT,
    records=True,
    **fold(ratio(TOOL_CALLS, _HINT)),
)
