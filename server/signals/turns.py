"""Turns per rollout."""

from server.signals._model import Signal
from server.signals._recorded import distribution, either
from server.signals._steps import average, stats

_HINT = "this trainer reports no turns per rollout (prime-rl `train/agg/effective/num_turns/mean`)"

SIGNAL = Signal(
    name="turns",
    title="Turns",
    unit="turns",
    actor="generator",
    help="Turns per trained rollout of the last 10 consumed versions; from a trainer's log, the mean of the last 10 "
    "steps.",
    inputs=("turns_mean",),
    cadence="step",
    compute=either(
        distribution("turns", "turns", "mean", "p50", "p90", "max"), stats(_HINT, ("mean", "turns_mean", average))
    ),
    hint=_HINT,
    records=True,
)
