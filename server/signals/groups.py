"""Groups of rollouts: solve rates and groups without a gradient."""

from collections import Counter as Tally
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from collectors.model import Labels
from server.rollouts.groups import ZERO_ADVANTAGE, lowest_share
from server.rollouts.window import NO_RECORDS, GroupNote, Window
from server.signals.aggregates import mean, too_few, window
from server.signals.model import STEP_MINIMUM, Answer, Counter, NotApplicable, Unknown, Value, View, signal
from server.signals.recorded import covers, either, recorded, spread
from server.signals.recorded import window as records_window

SOLVE_RATIO_HINT = "records do not report what is solved: log `solved`, or `max_reward` (or state the fact max_reward)"


def ratios(found: Window) -> list[float]:
    """Solve rates of the window's complete groups, ascending."""
    return sorted(one.solve_ratio for one in found.groups if one.solve_ratio is not None)


@signal(title="Solve rate", unit="ratio", actor="queue", cadence="step", hint=NO_RECORDS, records=True)
@recorded
def solve_ratio(_: View, found: Window) -> Answer:
    """Share of a group's members that solved the task (as reported, or with the largest possible reward), mean and
    median over the completed groups of the last 10 consumed versions, without failed members. Needs rollout records.
    """
    solved = ratios(found)
    return spread(solved, "mean", "p50") if solved else Unknown(SOLVE_RATIO_HINT)


# The variance of a group's rewards, and with it the gradient, is at least 64 % of its largest within these.
LOW, HIGH = 0.2, 0.8


@signal(
    title="Productive groups",
    unit="ratio",
    actor="queue",
    cadence="step",
    hint=NO_RECORDS,
    higher_is_worse=False,
    records=True,
)
@recorded
def solve_band_ratio(_: View, found: Window) -> Answer:
    """Share of completed groups whose solve rate is between 0.2 and 0.8, where most of the gradient is; last 10
    consumed versions. Needs rollout records.
    """
    solved = ratios(found)
    return [Value(sum(LOW <= ratio <= HIGH for ratio in solved) / len(solved))] if solved else Unknown(SOLVE_RATIO_HINT)


# Frameworks count every completed group, before any filter.
COMPLETED = ("basis", "completed")
ADMITTED = ("basis", "admitted")
NO_GROUPS = "records contain no complete group: log `group_id`, `group_size` and `reward` (or `group_complete_at`)"
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
    logged = _zero_advantage_ratio_logged(view)
    if not view.rollouts.met:
        return logged
    records = records_window(view)
    recorded = Unknown(records.why) if records.why else _zero_advantage_ratio_recorded(view, records)
    for answer in (logged, recorded) if records.sampled or not covers(view, records) else (recorded, logged):
        if isinstance(answer, list):
            return answer
    # The run has records: the reason that is missing in them is the one to show.
    return logged if isinstance(logged, NotApplicable) else recorded


def _zero_advantage_ratio_logged(view: View) -> list[Share] | Unknown | NotApplicable:
    whole = window(view, "groups_zero_advantage_ratio")
    split = window(view, "groups_all_solved_ratio", "groups_none_solved_ratio")
    missing = too_few(split or whole, zero_advantage_ratio.hint)
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
    found = Tally(one.outcome for one in groups)
    return {cause: found[cause] / len(groups) for cause in ZERO_ADVANTAGE}


def no_groups(view: View) -> Unknown | NotApplicable:
    """Reason why the records contain no group."""
    return NotApplicable(ALONE) if view.rollouts.alone or view.fact("group_size") == 1 else Unknown(NO_GROUPS)


def _zero_advantage_ratio_recorded(view: View, found: Window) -> list[Share] | Unknown | NotApplicable:
    bases = ((COMPLETED, found.groups), (ADMITTED, found.admitted))
    return [
        Share((basis,), sum(causes(of).values()), len(of), SAMPLE if of[0].sampled else "") for basis, of in bases if of
    ] or no_groups(view)


@signal(
    title="Zero advantage",
    unit="ratio",
    actor="queue",
    inputs=("groups_zero_advantage_ratio", "groups_all_solved_ratio", "groups_none_solved_ratio"),
    cadence="step",
    hint="this trainer reports no zero-advantage share and none can be derived from its scalars: log it "
    "(TRL `frac_reward_zero_std`, prime-rl `train/agg/all/<agent>/solved_none|solved_all`) or send rollout records",
    # 30 %: a third of the generated tokens buys nothing; 50 %: the default alert, near the published 55 %.
    watch=0.30,
    critical=0.50,
    records=True,
)
def zero_advantage_ratio(view: View) -> Answer:
    """Share of groups whose rewards are all equal, which therefore carry no gradient, all causes together; of completed
    groups and, if records report it, of admitted groups; last 10 steps.
    """
    found = shares(view)
    return [Value(one.share, one.labels) for one in found] if isinstance(found, list) else found


_CAUSES = (("all_solved", "groups_all_solved_ratio"), ("none_solved", "groups_none_solved_ratio"))


def _zero_advantage_group_ratio_logged(view: View) -> Answer:
    split = window(view, "groups_all_solved_ratio", "groups_none_solved_ratio")
    if split:
        return too_few(split, zero_advantage_ratio.hint) or [
            Value(mean(split, metric), (COMPLETED, ("cause", cause))) for cause, metric in _CAUSES
        ]
    rows = window(view, "groups_zero_advantage_ratio")
    share = too_few(rows, zero_advantage_ratio.hint)
    return share or [Value(mean(rows, "groups_zero_advantage_ratio"), (COMPLETED, ("cause", "equal_unknown")))]


@signal(
    title="Zero-advantage groups",
    unit="ratio",
    actor="queue",
    inputs=zero_advantage_ratio.inputs,
    cadence="step",
    hint=zero_advantage_ratio.hint,
    records=True,
)
@either(_zero_advantage_group_ratio_logged)
def zero_advantage_group_ratio(view: View, found: Window) -> Answer:
    """Share of groups without a gradient by cause (all solved, none solved, equal, too few valid rewards), of completed
    groups and, from records, of admitted groups; last 10 steps.

    Their sum is `zero_advantage_ratio`. `all_solved` only where the largest possible reward is known, `none_solved`
    where no member got a reward; a bare share is `equal_unknown`. After a refill of such groups (DAPO) the admitted
    share is near 0 while most completed are dropped.
    """
    bases = ((COMPLETED, found.groups), (ADMITTED, found.admitted))
    shares = [(basis, causes(of)) for basis, of in bases if of]
    return [
        Value(share, (basis, ("cause", cause))) for basis, found_in in shares for cause, share in found_in.items()
    ] or no_groups(view)


# Each is a series; environments beyond the most frequent ones are combined.
SHOWN, OTHER = 20, ("other", "")


@signal(
    title="Zero advantage by environment", unit="ratio", actor="queue", cadence="step", hint=NO_RECORDS, records=True
)
@recorded
def zero_advantage_environment_ratio(view: View, found: Window) -> Answer:
    """Share of completed groups without a gradient, by environment and difficulty: the 20 largest, and all others
    together; last 10 consumed versions. Needs rollout records.
    """
    if not found.groups:
        return no_groups(view)
    by: dict[tuple[str, str], list[GroupNote]] = defaultdict(list)
    for one in found.groups:
        by[(one.environment, one.difficulty)].append(one)
    if by.keys() == {("", "")}:
        return Unknown("no record names its environment: log `environment` (or `difficulty`)")
    order = sorted(by, key=lambda name: (-len(by[name]), name))
    shown = {name: by[name] for name in order[:SHOWN]}
    if rest := [one for name in order[SHOWN:] for one in by[name]]:
        shown[OTHER] = rest
    return [
        Value(sum(causes(groups).values()), (("difficulty", difficulty), ("environment", environment)))
        for (environment, difficulty), groups in shown.items()
    ]


_NO_COUNT = (
    "the trainer's log has the share and no number of groups: log groups per step, or samples per step and state "
    "`group_size` as a fact"
)


@signal(
    title="Groups counted",
    unit="groups",
    actor="queue",
    inputs=zero_advantage_ratio.inputs,
    cadence="step",
    hint=zero_advantage_ratio.hint,
    records=True,
)
def zero_advantage_groups(view: View) -> Answer:
    """Number of groups behind zero_advantage_ratio, on the same basis; from a trainer's log, the groups trained in the
    last 10 steps.

    3 of 6 is weaker evidence than 300 of 600.
    """
    found = shares(view)
    if not isinstance(found, list):
        return found
    return [Value(one.groups, one.labels, one.why) for one in found if one.groups is not None] or Unknown(_NO_COUNT)


def _low(one: Share) -> Value:
    if one.groups is None:
        return Value(one.share, one.labels, "number of groups not reported: the share as the trainer logs it")
    return Value(lowest_share(one.share, one.groups), one.labels, f"of {one.groups:.0f} groups")


@signal(
    title="Zero advantage, at least",
    unit="ratio",
    actor="queue",
    inputs=zero_advantage_ratio.inputs,
    cadence="step",
    hint=zero_advantage_ratio.hint,
    records=True,
)
def zero_advantage_low_ratio(view: View) -> Answer:
    """Lower end of the 95% interval (Wilson) of zero_advantage_ratio, from the number of groups behind it; the share
    itself if a trainer's log has no number of groups.

    3 of 6 groups are at least 19 %.
    """
    found = shares(view)
    return [_low(one) for one in found] if isinstance(found, list) else found


COUNTERS = (
    Counter(
        name="groups_total",
        title="Groups",
        unit="groups",
        actor="queue",
        help="Completed training groups, each counted once, by outcome: mixed (has a gradient), all_solved, "
        "none_solved, equal_unknown, too_few_valid. Needs records of all rollouts.",
        metric="group_closed",
        of="rollout",
        by=("outcome",),
    ),
)
"""Counters of this topic, which are counted as records arrive."""
