"""Turns per rollout."""

from server.signals._model import Signal
from server.signals._steps import average, stats

_HINT = "this trainer reports no turns per rollout (prime-rl `train/agg/effective/num_turns/mean`)"

SIGNAL = Signal(
    name="turns",
    title="Turns",
    unit="turns",
    actor="generator",
    help="Turns per rollout, mean over the last 10 steps.",
    inputs=("turns_mean",),
    cadence="step",
    compute=stats(_HINT, ("mean", "turns_mean", average)),
    hint=_HINT,
)
