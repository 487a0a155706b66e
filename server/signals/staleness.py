"""How old the policy of trained samples is."""

import math
from collections.abc import Callable, Mapping
from statistics import fmean

from server.rollouts.environments import HINT
from server.rollouts.environments import HINT as ENVIRONMENT_HINT
from server.rollouts.groups import counted_mean, counted_quantile, mean, quantile
from server.rollouts.staleness import ENVIRONMENT, ORIGIN_HINT, TOKEN, TOKEN_HINT, TRAJECTORY
from server.rollouts.window import NO_RECORDS, RolloutBook, Window
from server.signals.aggregates import average, last_sum, stats, too_few, total, window
from server.signals.aggregates import mean as step_windows_mean
from server.signals.model import STATE_MODE, Answer, NotApplicable, Unknown, Value, View, signal, unknown_reason
from server.signals.queue import waiting
from server.signals.recorded import either, missing, recorded
from server.signals.recorded import window as recorded_window
from server.signals.rollouts import no_exits

_LEVEL = ("level", "trajectory")
_STATS: Mapping[str, Callable[[Mapping[int, int]], float]] = {
    "mean": counted_mean, "p95": lambda ages: counted_quantile(ages, 0.95), "max": lambda ages: float(max(ages)),
}  # fmt: skip
_HINTS = {TRAJECTORY: ORIGIN_HINT, TOKEN: TOKEN_HINT, ENVIRONMENT: ENVIRONMENT_HINT}
_STALENESS_VERSIONS_BOUND = (
    "upper bound: no record reports which tool calls changed the environment (`mutated`), so each counts"
)


def _staleness_versions_logged(view: View) -> Answer:
    hint, largest = staleness_versions.hint, ("max", "staleness_versions_max", max)
    answer = stats(view, hint, ("mean", "staleness_versions_mean", average), largest)
    if not isinstance(answer, (list, tuple)):
        answer = stats(view, hint, largest)  # PipelineRL and AReaL report only the maximum
    if isinstance(answer, (list, tuple)):
        return [Value(value.value, (_LEVEL, *value.labels)) for value in answer]
    if view.synchronous:
        return [Value(0.0, (_LEVEL, ("stat", "mean"))), Value(0.0, (_LEVEL, ("stat", "max")))]
    return answer if view.mode else Unknown(f"{unknown_reason(answer)}, or {STATE_MODE}")


@signal(
    title="Policy staleness",
    unit="versions",
    actor="queue",
    inputs=("staleness_versions_mean", "staleness_versions_max", "trainer_step_seconds"),
    cadence="step",
    hint="this trainer reports no staleness: it must log versions per batch "
    "(prime-rl `off_policy/mean`, TRL async `sample/staleness_mean`)",
    records=True,
)
@either(_staleness_versions_logged)
def staleness_versions(view: View, found: Window) -> Answer:
    """Policy versions between generation and consumption of a trained rollout: of its oldest token (trajectory), its
    mean token, the state of its environment; mean, p95 and maximum over the last 10 consumed versions. From a trainer's
    log: mean of the last 10 steps' means, maximum of their maxima.

    Rollout records (docs/reference/rollouts.md) give all three levels, a trainer's log the trajectory's alone.
    Synchronous runs train on what the current policy produced: 0 by definition. At the run's own bound, staleness says
    only that generation is ahead: it saturates there whatever the bottleneck (TRL async at `max_staleness`). What was
    dropped as stale is in `rollout_exit_ratio`: staleness of the trained alone is survivor-biased at the bound.
    """
    used, synchronous = found.used, view.synchronous
    whole = used.staleness or ({0: 1} if synchronous else {})
    tokens = used.tokens or ({0: 1} if synchronous else {})
    levels = [*_of_level(TRAJECTORY, whole, found), *_of_level(TOKEN, tokens, found)]
    if not used.turns and view.fact("has_sandbox") == 0:
        return levels
    return [*levels, *_of_level(ENVIRONMENT, used.turns, found, _STALENESS_VERSIONS_BOUND if used.bound else "")]


def _of_level(level: str, ages: Mapping[int, int], found: Window, why: str = "") -> list[Value]:
    labels = {stat: (("level", level), ("stat", stat)) for stat in _STATS}
    if not ages:
        return missing(_gap(level, found), *labels.values())
    return [Value(fold(ages), labels[stat], why) for stat, fold in _STATS.items()]


def _gap(level: str, found: Window) -> str:
    """The most frequent reason among the window's rollouts."""
    if not found.consumed:
        return "no record reports a consumption: log `version_consumed` (and `consumed_at`)"
    reasons = found.used.gaps.get(level)
    return max(sorted(reasons), key=reasons.__getitem__) if reasons else _HINTS[level]


PARTS = ("in_flight", "in_group", "in_queue")


@signal(title="Staleness by part", unit="versions", actor="queue", cadence="step", hint=NO_RECORDS, records=True)
@recorded
def staleness_part_versions(_: View, found: Window) -> Answer:
    """Mean trajectory staleness by where it arises: in flight, waiting for the group, in the queue. The parts add up to
    the mean of the rollouts whose parts are known; last 10 consumed versions. Needs rollout records.
    """
    part = found.used
    if not part.parted:
        return Unknown(
            "the parts of staleness are not reported: log `version_finish` (or `token_versions`) of a group's members, "
            "`version_consumed`, and `group_complete_at` where versions are published meanwhile"
        )
    return [Value(total / part.parted, (("part", name),)) for name, total in zip(PARTS, part.parts, strict=True)]


_AFTER_COMPLETION = ("trained", "truncated_drop", "surplus", "stale", "zero_advantage")
_NO_QUEUE = "the number of waiting samples is not reported: push records as rollouts end, or log the queue's depth"
_ABOUT = "estimate, +-1 version"


@signal(title="Estimated staleness", unit="versions", actor="queue", cadence="step", hint=NO_RECORDS, records=True)
@recorded
def staleness_estimated_versions(view: View, found: Window) -> Answer:
    """Staleness estimated from the duration of groups, the waiting samples and the rate of published versions
    (asynchronous runs, error about 1 version); last 10 consumed versions. Needs rollout records.

    (mean time of a group from dispatch to completion + waiting samples / departures per second) x publications per
    second. Departures are trained and dropped.
    """
    if view.mode not in ("async", "async_colocated", ""):
        return NotApplicable("only asynchronous runs train on samples that waited")
    seconds = found.end - found.start
    if found.sampled or not found.consumed or not 0 < seconds < math.inf:
        return Unknown("needs a full window of 10 consumed versions: log `version_consumed` and `consumed_at`")
    flight, published = _in_flight(found), _published(view.rollouts, found)
    if flight is None or published is None:
        return Unknown("log `dispatched_at` and `finished_at` of rollouts, and the versions that are published")
    waits = _waiting(view, found)
    departed = sum(found.exits[name] for name in _AFTER_COMPLETION) / seconds
    if waits is None or not departed:
        return Unknown(_NO_QUEUE)
    return [Value((flight + waits / departed) * published, (), _ABOUT)]


def _waiting(view: View, found: Window) -> float | None:
    """Samples in the queue: records that wait, else as reported.

    Zero only where records have both end and consumption.
    """
    queued = sum(one.state == "queued" for one in view.rollouts.in_flight(view.now))
    reported = waiting(view, last_sum)
    if queued or reported is not None:
        return queued or reported
    return 0.0 if found.used.values.get("age") else None


def _in_flight(found: Window) -> float | None:
    """Mean seconds from dispatch to completion: of groups, the longest of their members; else of rollouts."""
    groups = [one.seconds for one in found.groups if one.seconds is not None and one.completed is not None]
    values = groups or found.ended_values("seconds")
    return mean(values) if values else None


def _published(book: RolloutBook, found: Window) -> float | None:
    """Versions per second: as published, else as consumed."""
    rates = book.clock.per_second(found.start, found.end)
    if rates is not None:
        return rates
    (_, first), (_, last) = found.versions[0], found.versions[-1]
    seconds = found.end - found.first_end
    return (last - first) / seconds if seconds > 0 else None


@signal(
    title="Staleness over its bound",
    unit="ratio",
    actor="queue",
    inputs=("staleness_versions_max",),
    cadence="step",
    hint="needs the largest staleness per step and the run's bound: state it as the fact max_staleness_versions "
    "where the framework's config does not give it",
    critical=1.001,  # at the bound a bounded queue simply is; only beyond it something is wrong
)
def staleness_bound_ratio(view: View) -> Answer:
    """Largest staleness of the last 10 steps / the run's configured bound; above 1 the bound is not enforced."""
    bound, rows = view.fact("max_staleness_versions"), window(view, "staleness_versions_max")
    if view.synchronous and not rows:
        return NotApplicable("synchronous run: samples are trained on by the policy that generated them")
    if bound is None or bound <= 0:
        return Unknown(staleness_bound_ratio.hint)
    missing = too_few(rows, staleness_bound_ratio.hint)
    return missing or [Value(max(row.values[("staleness_versions_max", ())] for row in rows) / bound)]


# Versions. The trainer logs a step after publishing its weights, so an engine may be this far ahead of the log.
_AHEAD = 1.0


@signal(
    title="Engine staleness",
    unit="versions",
    actor="generator",
    inputs=("generator_policy_version",),
    cadence="tick",
    hint="no engine reports the version of its weights "
    "(vLLM's /weight_info with VLLM_SERVER_DEV_MODE=1, SGLang's /model_info, once a version is set)",
)
def generator_staleness_versions(view: View) -> Answer:
    """Newest policy version - version that an engine serves: mean and worst engine. Unknown if the two count
    differently.

    It is the initial staleness of a rollout that begins now.
    """
    served = [gauge.last for gauge in view.fresh("generator_policy_version")]
    if not served:
        return Unknown(generator_staleness_versions.hint)
    rows = view.steps.rows(("policy_version", ()), count=1, until=view.now)
    if not rows:
        return Unknown("the trainer reports no policy version to compare the engines' with")
    newest = rows[-1].values[("policy_version", ())]
    if max(served) > newest + _AHEAD:
        return Unknown("the engines' versions are ahead of the trainer's: the two count differently")
    newest = max(newest, *served)
    behind = [newest - version for version in served]
    return [Value(fmean(behind), (("stat", "mean"),)), Value(max(behind), (("stat", "max"),))]


_OLDEST, _P95 = (("stat", "oldest"),), (("stat", "p95"),)
_WAITING = ("waiting_group", "queued")


@signal(title="Sample age", unit="seconds", actor="queue", cadence="tick", hint=NO_RECORDS, records=True)
def sample_age_seconds(view: View) -> Answer:
    """Time since the end of generation: of the oldest finished rollout that waits for its group or the trainer now, and
    p95 over rollouts when they were consumed (last 10 versions). Needs rollout records.
    """
    book = view.rollouts
    if not book.met:
        return Unknown(NO_RECORDS)
    if not book.consumption_told:
        return Unknown("no record reports when a rollout was used: log `consumed_at` (and `version_consumed`)")
    waiting = [one.waits_since for one in book.in_flight(view.now) if one.state in _WAITING]
    ages = [max(0.0, view.now - since) for since in waiting if since is not None]
    found, gap = recorded_window(view), "no rollout waits for the trainer now, as far as records report"
    used = found.used.values.get("age") if not found.why else None
    why = (
        found.why or "no record reports both its end and its use: log `finished_at` (or `scored_at`) and `consumed_at`"
    )
    return [
        Value(max(ages, default=math.nan), _OLDEST, "" if ages else gap),
        Value(quantile(used, 0.95) if used else math.nan, _P95, "" if used else why),
    ]


@signal(title="Mixed versions", unit="ratio", actor="generator", cadence="step", hint=NO_RECORDS, records=True)
@recorded
def mixed_version_ratio(_: View, found: Window) -> Answer:
    """Share of rollouts generated by more than one policy version, of those consumed at the last 10 versions. Needs
    rollout records.
    """
    part = found.made
    if not part.told:
        return Unknown(
            "no record of the window reports its policy version: log `token_versions`, or `version_start` and "
            "`version_finish`"
        )
    return [Value(part.mixed / part.told)]


_OLD_STATE_TURN_RATIO_BOUND = (
    "upper bound: every tool call counts as a change, because no record reports which ones were (`mutated`)"
)


@signal(title="Turns on old state", unit="ratio", actor="sandbox", cadence="step", hint=NO_RECORDS, records=True)
@recorded
def old_state_turn_ratio(view: View, found: Window) -> Answer:
    """Share of turns on an environment state that an older policy produced, of rollouts consumed at the last 10
    versions. An upper bound if records do not mark the turns that change the state.
    """
    turns, bound = found.made.turns, found.made.bound
    if turns:
        old = sum(count for age, count in turns.items() if age > 0)
        return [Value(old / sum(turns.values()), (), _OLD_STATE_TURN_RATIO_BOUND if bound else "")]
    if view.fact("has_sandbox") == 0:
        return NotApplicable("the task has no environment that keeps a state")
    return Unknown(f"no record of the window reports its turns: {HINT}")


_TRAINED_ONLY = "records contain trained batches only, without discarded rollouts: log `exit` of every rollout"


def _discarded_rollout_ratio_logged(view: View) -> Answer:
    share = window(view, "trainable_ratio")
    if share:
        return too_few(share, discarded_rollout_ratio.hint) or [
            Value(1.0 - step_windows_mean(share, "trainable_ratio"))
        ]
    rows = window(view, "stale_dropped_rollouts", "trainer_samples")
    missing = too_few(rows, discarded_rollout_ratio.hint)
    if missing is not None:
        return missing
    dropped, trained = total(rows, "stale_dropped_rollouts"), total(rows, "trainer_samples")
    return [Value(dropped / (dropped + trained) if dropped + trained > 0 else 0.0)]


@signal(
    title="Discarded rollouts",
    unit="ratio",
    actor="queue",
    inputs=("trainable_ratio", "stale_dropped_rollouts", "trainer_samples"),
    cadence="step",
    hint="this trainer reports neither the trainable share of its rollouts nor how many it dropped",
    # 60 % was a published problem case; discarding half doubles the price of every trained token.
    watch=0.30,
    critical=0.50,
    records=True,
)
@either(_discarded_rollout_ratio_logged)
def discarded_rollout_ratio(_: View, found: Window) -> Answer:
    """Share of rollouts not trained on. From records: all exits except trained, since the last 10 consumed versions
    began. From a trainer's log: errors, cancelled, filtered and stale, as far as reported, last 10 steps.

    Share of the ended rollouts that were not trained. A source of trained batches alone reports none of them.
    """
    left = sum(found.exits.values())
    if not left or not found.failures_told:
        return no_exits(found) if not left else Unknown(_TRAINED_ONLY)
    return [Value(1.0 - found.exits["trained"] / left)]
