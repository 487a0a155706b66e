"""Which of the last steps belong to the present: a change of limiter must not wait until ten steps forget it. Pure."""

from collections.abc import Sequence
from math import sqrt

from server.signals._window import Step

# A mean over fewer than three earlier steps has no spread worth the name; two newer ones are no accident together.
EARLIER, NEWER = 3, 2
# Shares of a step jitter by a few hundredths in the calmest run; a change that matters is a fifth of the step.
LEAST_SPREAD, LEAST_CHANGE = 0.03, 0.20
# Of ten steps that do not change, one in a thousand runs shows such a difference (normal noise, nine places to cut).
SIGNIFICANT = 4.5
# Fewer steps than the window holds are all there ever were: the first of them waited while the pipeline filled.
WHOLE = 10

STEP, WAIT = ("trainer_step_seconds", ()), ("trainer_wait_seconds", ())


def waits(steps: Sequence[Step]) -> list[float]:
    """Wait share of each step that tells both."""
    told = [step for step in steps if STEP in step.values and WAIT in step.values]
    return [step.values[WAIT] / step.values[STEP] for step in told if step.values[STEP] > 0]


def present(shares: Sequence[float], least: int = NEWER) -> int:
    """How many of the newest shares belong together: all, or ``least`` and more after the newest clear change."""
    for newer in range(least, len(shares) - EARLIER + 1):
        if _differ(shares[:-newer], shares[-newer:]):
            return newer
    return len(shares) - _filling(shares)


def _filling(shares: Sequence[float]) -> bool:
    """Is the first of all steps in it, and waited clearly longer than any other?"""
    young = EARLIER < len(shares) < WHOLE
    return young and shares[0] >= max(shares[1:]) + LEAST_CHANGE


def _differ(before: Sequence[float], after: Sequence[float]) -> bool:
    change = abs(_mean(after) - _mean(before))
    if change < LEAST_CHANGE:
        return False
    spread = max(LEAST_SPREAD, sqrt((_squares(before) + _squares(after)) / max(1, len(before) + len(after) - 2)))
    return change > SIGNIFICANT * spread * sqrt(1 / len(before) + 1 / len(after))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _squares(values: Sequence[float]) -> float:
    mean = _mean(values)
    return sum((value - mean) ** 2 for value in values)
