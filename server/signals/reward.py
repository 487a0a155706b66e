"""Reward of the trained rollouts, mean of the last 10 steps' means."""

from server.signals._model import Signal
from server.signals._steps import average, stats

_HINT = (
    "this trainer reports no reward: log its mean per step (TRL `reward`, prime-rl `train/agg/all/<agent>/reward/mean`)"
)

SIGNAL = Signal(
    name="reward",
    title="Reward",
    unit="reward",
    actor="trainer",
    help="Mean reward per step, and its standard deviation where reported; mean over the last 10 steps.",
    inputs=("reward_mean", "reward_std"),
    cadence="step",
    compute=stats(_HINT, ("mean", "reward_mean", average), ("std", "reward_std", average)),
    hint=_HINT,
)
