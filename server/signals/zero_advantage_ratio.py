"""The share of groups without any gradient: all rewards of the group equal, or too few that count."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from collectors.model import Labels
from server.rollouts.groups import ZERO_ADVANTAGE
from server.rollouts.notes import GroupNote
from server.rollouts.window import Window
from server.signals._model import STEP_MINIMUM, Answer, NotApplicable, Signal, Unknown, Value, View
from server.signals._recorded import covers
from server.signals._recorded import window as records_window
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
SAMPLE = "a sample of the run's groups"


@dataclass(frozen=True, slots=True)
class Share:
    """A share of groups without gradient.

    Attributes:
        groups: number of groups it is of; None: the trainer's log has the share and no number of groups.
        why: "" or `SAMPLE`, where the source reports some groups only.
    """

    labels: Labels
    share: float
    groups: float | None
    why: str = ""


def shares(view: View) -> list[Share] | Unknown | NotApplicable:
    """Shares with the number of groups behind each, from one source: records, else the trainer's log.

    Records of a sample, and incomplete ones (`covers`), come after the log. A number of groups is never of another
    source than its share.
    """
    found: list[Share] | Unknown | NotApplicable = view.once("zero_advantage", _shares)
    return found


def _shares(view: View) -> list[Share] | Unknown | NotApplicable:
    logged = _logged(view)
    if not view.rollouts.met:
        return logged
    records = records_window(view)
    recorded = Unknown(records.why) if records.why else _recorded(view, records)
    for answer in (logged, recorded) if records.sampled or not covers(view, records) else (recorded, logged):
        if isinstance(answer, list):
            return answer
    # The run has records: the reason that is missing in them is the one to show.
    return logged if isinstance(logged, NotApplicable) else recorded


def _logged(view: View) -> list[Share] | Unknown | NotApplicable:
    whole = window(view, "groups_zero_advantage_ratio")
    split = window(view, "groups_all_solved_ratio", "groups_none_solved_ratio")
    missing = too_few(split or whole, _HINT)
    if missing is not None:
        return missing
    if split:
        share = mean(split, "groups_all_solved_ratio") + mean(split, "groups_none_solved_ratio")
    else:
        share = mean(whole, "groups_zero_advantage_ratio")
    return [Share((COMPLETED,), share, _logged_groups(view))]


def _logged_groups(view: View) -> float | None:
    """Groups of the last 10 steps in the trainer's log: reported, else samples / group size."""
    for metric, size in (("trainer_groups", 1.0), ("trainer_samples", view.fact("group_size"))):
        rows = window(view, metric)
        if len(rows) >= STEP_MINIMUM and size:
            return sum(row.values[(metric, ())] for row in rows) / size
    return None


def causes(groups: Sequence[GroupNote]) -> dict[str, float]:
    """Share of groups by cause; every cause is in it."""
    found = Counter(one.outcome for one in groups)
    return {cause: found[cause] / len(groups) for cause in ZERO_ADVANTAGE}


def no_groups(view: View) -> Unknown | NotApplicable:
    """Why records tell of none."""
    return NotApplicable(ALONE) if view.rollouts.alone or view.fact("group_size") == 1 else Unknown(NO_GROUPS)


def _recorded(view: View, found: Window) -> list[Share] | Unknown | NotApplicable:
    bases = ((COMPLETED, found.groups), (ADMITTED, found.admitted))
    return [
        Share((basis,), sum(causes(of).values()), len(of), SAMPLE if of[0].sampled else "") for basis, of in bases if of
    ] or no_groups(view)


def _compute(view: View) -> Answer:
    found = shares(view)
    return [Value(one.share, one.labels) for one in found] if isinstance(found, list) else found


SIGNAL = Signal(
    name="zero_advantage_ratio",
    title="Zero advantage",
    unit="ratio",
    actor="queue",
    help="Share of groups whose rewards are all equal, which therefore carry no gradient, all causes together; of "
    "completed groups and, if records report it, of admitted groups; last 10 steps.",
    inputs=("groups_zero_advantage_ratio", "groups_all_solved_ratio", "groups_none_solved_ratio"),
    cadence="step",
    compute=_compute,
    hint=_HINT,
    # 30 %: a third of the generated tokens buys nothing; 50 %: the default alert, near the published 55 %.
    watch=0.30,
    critical=0.50,
    records=True,
)
