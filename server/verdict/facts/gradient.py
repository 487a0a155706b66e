"""The share of groups without a gradient, with its sample size and the bound from the trainer's log. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt

from server.signals.window import Step
from server.verdict.inputs import VerdictInput
from server.verdict.model import Contradiction
from server.verdict.thresholds import EARLIER, NEAR_LINE, NORMAL_95, SAMPLED, WINDOW_STEPS

_SPREAD = ("reward_group_std_mean", ())
_REWARD = ("reward_mean", ())


@dataclass(frozen=True, slots=True)
class Gradient:
    """Groups without a gradient.

    Attributes:
        share: of all completed groups; for a sample the middle of its interval, at most ``upper_bound``; None: not
            reported.
        counted: the reported share.
        groups: number of counted groups; None: not reported.
        low, high: 95 % interval (Wilson) of the share for that number.
        is_sample: fewer than half of the groups of ten steps were counted.
        upper_bound: the largest share that the spread of rewards within groups allows; None: it allows any.
    """

    share: float | None = None
    counted: float | None = None
    groups: float | None = None
    low: float = 0.0
    high: float = 1.0
    is_sample: bool = False
    upper_bound: float | None = None
    contradictions: tuple[Contradiction, ...] = ()

    @property
    def certain(self) -> float:
        """The share that is certain enough to act on: for a sample the lower end of its interval."""
        return self.low if self.is_sample else self.share or 0.0

    @property
    def likely(self) -> float:
        """The largest likely share: for a sample the upper end, otherwise a tenth or two standard errors more."""
        if self.share is None:
            return 0.0
        return self.high if self.is_sample else max(self.share / NEAR_LINE, self.high)


def gradient(seen: VerdictInput, per_step: float | None) -> Gradient:
    """Computes the share. ``per_step``: samples trained per step."""
    upper_bound = _upper_bound(seen, seen.steps)
    share, groups = _of(seen, "zero_advantage_ratio"), _of(seen, "zero_advantage_groups")
    size = seen.fact("group_size")
    every = WINDOW_STEPS * per_step / size if per_step and size else None
    if share is None:
        return Gradient(upper_bound=upper_bound)
    if groups is None and every is None:
        return Gradient(share, share, low=share, high=share, upper_bound=upper_bound)
    is_sample = groups is not None and every is not None and groups < SAMPLED * every
    low, high = interval(share, (groups if is_sample or every is None else every) or 0.0)
    contradictions: tuple[Contradiction, ...] = ()
    if is_sample and upper_bound is not None and share > upper_bound:
        text = (
            f"{share:.0%} of the {groups:.0f} groups counted carry no gradient; the spread of rewards within groups "
            f"that the trainer logs allows {upper_bound:.0%} at most"
        )
        contradictions = (Contradiction("gradient", text, {"counted": share, "most": upper_bound}),)
    if not is_sample:
        return Gradient(share, share, groups, low, high, upper_bound=upper_bound)
    top = 1.0 if upper_bound is None else upper_bound
    low, high = min(low, top), min(high, top)
    return Gradient(
        (low + high) / 2,
        share,
        groups,
        low,
        high,
        is_sample=True,
        upper_bound=upper_bound,
        contradictions=contradictions,
    )


def interval(share: float, count: float) -> tuple[float, float]:
    """Returns the 95 % interval of a share of ``count`` draws (Wilson, 1927): 3 of 6 are 19 to 81 %."""
    if count <= 0:
        return 0.0, 1.0
    square = NORMAL_95 * NORMAL_95 / count
    half = NORMAL_95 * sqrt(max(0.0, share * (1 - share) / count + square / (4 * count)))
    middle = share + square / 2
    return max(0.0, (middle - half) / (1 + square)), min(1.0, (middle + half) / (1 + square))


def _of(seen: VerdictInput, signal: str) -> float | None:
    completed = seen.get(signal, basis="completed")
    return completed if completed is not None else seen.get(signal)


def _upper_bound(seen: VerdictInput, steps: Sequence[Step]) -> float | None:
    """Returns the largest share that the mean standard deviation within groups allows.

    Rewards from 0 to R deviate by at most R / 2, in a group in which half of the rewards are 0 and half are R. R is the
    task's largest reward, else twice the mean reward and at least 1.
    """
    rows = [row for row in steps if _SPREAD in row.values and _REWARD in row.values]
    if len(rows) < EARLIER:
        return None
    spread = sum(row.values[_SPREAD] for row in rows) / len(rows)
    mean = sum(row.values[_REWARD] for row in rows) / len(rows)
    largest = seen.fact("max_reward") or max(1.0, 2 * mean)
    return max(0.0, 1.0 - 2 * spread / largest) if mean >= 0 and spread > 0 else None
