"""The share of groups without any gradient: all rewards of the group equal, or too few that count."""

from collections import Counter
from collections.abc import Sequence

from server.signals._groups import ZERO_ADVANTAGE
from server.signals._model import Answer, NotApplicable, Signal, Unknown, Value, View
from server.signals._recorded import either
from server.signals._rollout_notes import GroupNote
from server.signals._rollouts import Window
from server.signals._steps import mean, too_few, window

_HINT = (
    "this trainer reports no zero-advantage share and none can be derived from its scalars: log it "
    "(TRL `frac_reward_zero_std`, prime-rl `train/agg/all/<agent>/solved_none|solved_all`) or send rollout records"
)
# What the frameworks read here count: every completed group, before any filter.
COMPLETED = ("basis", "completed")
ADMITTED = ("basis", "admitted")
NO_GROUPS = "records tell no complete group: log `group_id`, `group_size` and `reward` (or `group_complete_at`)"
ALONE = "groups of one have no baseline of their own"


def _logged(view: View) -> Answer:
    whole = window(view, "groups_zero_advantage_ratio")
    split = window(view, "groups_all_solved_ratio", "groups_none_solved_ratio")
    if split:
        missing = too_few(split, _HINT)
        share = mean(split, "groups_all_solved_ratio") + mean(split, "groups_none_solved_ratio")
        return missing or [Value(share, (COMPLETED,))]
    return too_few(whole, _HINT) or [Value(mean(whole, "groups_zero_advantage_ratio"), (COMPLETED,))]


def causes(groups: Sequence[GroupNote]) -> dict[str, float]:
    """Share of groups by cause; every cause is in it."""
    found = Counter(one.outcome for one in groups)
    return {cause: found[cause] / len(groups) for cause in ZERO_ADVANTAGE}


def no_groups(view: View) -> Unknown | NotApplicable:
    """Why records tell of none."""
    return NotApplicable(ALONE) if view.rollouts.alone or view.fact("group_size") == 1 else Unknown(NO_GROUPS)


def _recorded(view: View, found: Window) -> Answer:
    bases = ((COMPLETED, found.groups), (ADMITTED, found.admitted))
    return [Value(sum(causes(of).values()), (basis,)) for basis, of in bases if of] or no_groups(view)


SIGNAL = Signal(
    name="zero_advantage_ratio",
    title="Zero advantage",
    unit="ratio",
    actor="queue",
    help="Share of groups whose rewards are all equal and so carry no gradient, all causes together; of completed "
    "groups, and where records tell it of admitted ones; last 10 steps.",
    inputs=("groups_zero_advantage_ratio", "groups_all_solved_ratio", "groups_none_solved_ratio"),
    cadence="step",
    compute=either(_recorded, _logged),
    hint=_HINT,
    # 30 %: a third of the generated tokens buys nothing; 50 %: the default alert, near the published 55 %.
    watch=0.30,
    critical=0.50,
    records=True,
)
