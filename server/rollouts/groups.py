"""Derives the outcome of a group of rollouts, by the same rule for every source. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import ceil, fsum, hypot, sqrt

from msgspec import Struct

from collectors.model import Rollout
from server.rollouts import model as rollouts_model

ZERO_ADVANTAGE = ("all_solved", "none_solved", "equal_unknown", "too_few_valid")
"""Outcomes without any gradient, by cause."""

OUTCOMES = ("open", "mixed", *ZERO_ADVANTAGE)

# Rewards are sums of single-precision numbers: equal ones differ by this share of them at most.
_SAME = 1e-7
_SAME_AT_ZERO = 1e-8


class Member(Struct, frozen=True, gc=False):
    """What its group needs to know of a rollout. ``reward``: None where it has none that counts; ``purpose``: "" if it
    is not reported.
    """

    reward: float | None
    max_reward: float | None
    solved: bool | None
    ended: bool
    ended_at: float | None
    begun_at: float | None
    version_finish: int | None
    size: int | None
    complete_at: float | None
    settled: bool
    consumed: int | None
    trained: bool
    sampled: bool
    aborted: bool = False
    purpose: str = ""


def member(record: Rollout) -> Member:
    """Of a record. A rollout that its infrastructure or environment lost is no honest zero: its reward does not count.

    An advantage or a consumption shows that the group was complete (``settled``).
    """
    uses = [use.version for use in record.consumptions if use.version is not None]
    reward = None if record.exit in rollouts_model.FAILED else record.reward
    settled = bool(record.consumptions) or record.advantage is not None
    begun = [at for at in (record.dispatched_at, record.started_at) if at is not None]
    return Member(
        reward, record.max_reward, record.solved, rollouts_model.ended(record), rollouts_model.ended_at(record),
        min(begun, default=None), finish(record), record.group_size, record.group_complete_at, settled,
        min(uses, default=None), bool(record.consumptions) or record.exit == "trained", record.sampled,
        record.exit == "aborted_oversample", record.purpose or "",
    )  # fmt: skip


def of_one_purpose(members: Collection[Member]) -> tuple[str, list[Member]]:
    """(purpose, its members): of training if any is, else of one other purpose.

    An evaluation of the prompt that a training group has, under the same id, is no member of that group. A purpose that
    is not reported is ``train``.
    """
    purposes = {one.purpose or "train" for one in members}
    purpose = max(purposes, default="train")
    if len(purposes) <= 1:
        return purpose, list(members)
    return purpose, [one for one in members if (one.purpose or "train") == purpose]


def finish(record: Rollout) -> int | None:
    """The version of its last token."""
    if record.version_finish is not None:
        return record.version_finish
    return max([version for version, tokens in record.token_versions if tokens > 0], default=None)


def complete(members: Collection[Member], size: int | None) -> bool:
    """Whether every expected member has ended, or a member shows that the group is complete.

    A use or an advantage shows it, too, but not that every member was reported: it counts if the group's size is
    unknown. A group that was aborted because others were faster is never complete: its members are no measure of the
    curriculum.
    """
    finished = sum(not one.aborted for one in members)
    if finished < 2 and finished < len(members):
        return False
    if any(one.complete_at is not None for one in members):
        return True
    return sum(one.ended for one in members) >= size if size is not None else any(one.settled for one in members)


def outcome(members: Sequence[Member], size: int | None, max_reward: float | None) -> str:
    """One of `OUTCOMES`.

    ``all_solved`` only if the largest possible reward is known and reached; ``none_solved``: all rewards are 0.
    """
    if not complete(members, size):
        return "open"
    rewards = [one.reward for one in members if one.reward is not None]
    if len(rewards) < 2:
        return "too_few_valid"
    low, high = min(rewards), max(rewards)
    if high - low > _SAME_AT_ZERO + _SAME * max(abs(low), abs(high)):
        return "mixed"
    if high <= _SAME_AT_ZERO:
        return "none_solved"
    top = max((one.max_reward for one in members if one.max_reward is not None), default=max_reward)
    return "all_solved" if top is not None and high >= top - _SAME_AT_ZERO - _SAME * abs(top) else "equal_unknown"


def solved(members: Sequence[Member], max_reward: float | None) -> int | None:
    """How many members with a valid reward solved the task; None unless that is known of all."""
    found = [_solved(one, max_reward) for one in members if one.reward is not None]
    return None if not found or None in found else sum(map(bool, found))


def _solved(one: Member, max_reward: float | None) -> bool | None:
    if one.solved is not None:
        return one.solved
    top = one.max_reward if one.max_reward is not None else max_reward
    return None if top is None or one.reward is None else one.reward >= top - _SAME_AT_ZERO - _SAME * abs(top)


def completed_at(members: Sequence[Member], size: int | None) -> float | None:
    """When it was complete: as reported, else the end of the last member."""
    times = [one.complete_at for one in members if one.complete_at is not None]
    if times:
        return max(times)
    ends = sorted(one.ended_at for one in members if one.ended and one.ended_at is not None)
    if not ends:
        return None
    return ends[min(size, len(ends)) - 1] if size else ends[-1]


def version_complete(members: Sequence[Member], size: int | None) -> int | None:
    """The policy version when the last member ended, from the members: versions ascend within an incarnation."""
    versions = [one.version_finish for one in members if one.version_finish is not None]
    whole = len(members) >= (size or 2) and len(versions) == len(members)
    return max(versions) if whole else None


# ---- spread
# Means and quantiles of values, weighted or not.


def quantile(ordered: Sequence[float], q: float) -> float:
    """Linear between the two neighbours (as numpy does), of ascending values; at least one."""
    place = (len(ordered) - 1) * q
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def mean(values: Sequence[float]) -> float:
    """Of at least one."""
    return fsum(values) / len(values)


def deviation(values: Sequence[float]) -> float:
    """The standard deviation of all of them; at least one. (`statistics` is exact, and takes twenty times as long.)"""
    middle = mean(values)
    return hypot(*[value - middle for value in values]) / sqrt(len(values))


# Two-sided 95 % of the normal distribution.
NORMAL_95 = 1.96


def lowest_share(share: float, count: float) -> float:
    """Lower end of the 95 % interval of a share of ``count`` draws (Wilson, 1927); 0 for no draw."""
    if count <= 0:
        return 0.0
    square = NORMAL_95 * NORMAL_95 / count
    half = NORMAL_95 * sqrt(max(0.0, share * (1 - share) / count + square / (4 * count)))
    return max(0.0, (share + square / 2 - half) / (1 + square))


def joined(counts: Iterable[Mapping[int, int]]) -> dict[int, int]:
    """Counts by value, added up."""
    found: dict[int, int] = {}
    for one in counts:
        for value, count in one.items():
            found[value] = found.get(value, 0) + count
    return found


def counted_mean(counts: Mapping[int, int]) -> float:
    """The mean of values that were counted; at least one was."""
    return sum(value * count for value, count in counts.items()) / sum(counts.values())


def counted_quantile(counts: Mapping[int, int], q: float) -> float:
    """As `quantile`, of values that were counted; at least one was."""
    place = (sum(counts.values()) - 1) * q
    low = _ranked(counts, int(place))
    return low + (_ranked(counts, ceil(place)) - low) * (place - int(place))


def _ranked(counts: Mapping[int, int], rank: int) -> float:
    for value in sorted(counts):
        rank -= counts[value]
        if rank < 0:
            return float(value)
    return float(max(counts))
