"""Tool calls per rollout."""

from server.signals._model import Signal
from server.signals._recorded import distribution, either
from server.signals._steps import average, stats

_HINT = "this trainer reports no tool calls per rollout (TRL `tools/call_frequency`)"

SIGNAL = Signal(
    name="tool_calls",
    title="Tool calls",
    unit="calls",
    actor="sandbox",
    help="Tool calls per trained rollout of the last 10 consumed versions; from a trainer's log, the mean of the last "
    "10 steps.",
    inputs=("tool_calls_mean",),
    cadence="step",
    compute=either(
        distribution("tool_calls", "tool_calls", "mean", "p50", "p90", "max"),
        stats(_HINT, ("mean", "tool_calls_mean", average)),
    ),
    hint=_HINT,
    records=True,
)
