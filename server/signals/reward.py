"""Reward of the trained rollouts: of each from records, else as a trainer logs it per step."""

from server.rollouts.spread import deviation
from server.rollouts.window import Window
from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._recorded import either, spread
from server.signals._steps import average, stats

_HINT = (
    "this trainer reports no reward: log its mean per step (TRL `reward`, prime-rl `train/agg/all/<agent>/reward/mean`)"
)


def _recorded(_: View, found: Window) -> Answer:
    rewards = found.made.values.get("reward")
    if not rewards:
        return Unknown("no record of the window tells it: log `reward`")
    return [*spread(rewards, "mean"), Value(deviation(rewards), (("stat", "std"),))]


SIGNAL = Signal(
    name="reward",
    title="Reward",
    unit="reward",
    actor="trainer",
    help="Reward of the trained rollouts of the last 10 consumed versions, mean and standard deviation. From a "
    "trainer's log: means of the last 10 steps.",
    inputs=("reward_mean", "reward_std"),
    cadence="step",
    compute=either(_recorded, stats(_HINT, ("mean", "reward_mean", average), ("std", "reward_std", average))),
    hint=_HINT,
    records=True,
)
