"""The share of groups without any gradient: all rewards of the group equal."""

from server.signals._model import Answer, Signal, Value, View
from server.signals._steps import mean, too_few, window

_HINT = (
    "this trainer reports no zero-advantage share and none can be derived from its scalars: log it "
    "(TRL `frac_reward_zero_std`, prime-rl `train/agg/all/<agent>/solved_none|solved_all`) or send rollout records"
)
# What the frameworks read here count: every completed group, before any filter.
COMPLETED = ("basis", "completed")


def _compute(view: View) -> Answer:
    whole = window(view, "groups_zero_advantage_ratio")
    split = window(view, "groups_all_solved_ratio", "groups_none_solved_ratio")
    if split:
        missing = too_few(split, _HINT)
        share = mean(split, "groups_all_solved_ratio") + mean(split, "groups_none_solved_ratio")
        return missing or [Value(share, (COMPLETED,))]
    return too_few(whole, _HINT) or [Value(mean(whole, "groups_zero_advantage_ratio"), (COMPLETED,))]


SIGNAL = Signal(
    name="zero_advantage_ratio",
    title="Zero advantage",
    unit="ratio",
    actor="queue",
    help="Share of groups whose rewards are all equal and so carry no gradient, mean over the last 10 steps; "
    "all causes together.",
    inputs=("groups_zero_advantage_ratio", "groups_all_solved_ratio", "groups_none_solved_ratio"),
    cadence="step",
    compute=_compute,
    hint=_HINT,
    # 30 %: a third of the generated tokens buys nothing; 50 %: the default alert, near the published 55 %.
    watch=0.30,
    critical=0.50,
)
