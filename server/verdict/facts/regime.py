"""Which of the last steps belong to the present: a change of limiter must not wait until ten steps forget it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log, sqrt

from server.signals.window import Step
from server.verdict.thresholds import (
    EARLIER,
    NEWER,
    SHARE_CHANGE,
    SHARE_SPREAD,
    SIGNIFICANT,
    WINDOW_STEPS,
    WORK_CHANGE,
)  # fmt: skip

STEP, WAIT = ("trainer_step_seconds", ()), ("trainer_wait_seconds", ())
# What comes every so many steps is no change of the others.
NOW_AND_THEN = (("trainer_checkpoint_seconds", ()), ("trainer_eval_seconds", ()))


@dataclass(frozen=True, slots=True)
class Line:
    """What a change is held against: ``spread`` no series has less of, and the least ``change`` that matters."""

    spread: float
    change: float


# Shares of a step jitter by a few hundredths in the calmest run; a change that matters is a fifth of the step.
SHARES = Line(SHARE_SPREAD, SHARE_CHANGE)
# So does the logarithm of the trainer's own work, and a quarter more of it is no jitter.
WORK = Line(SHARE_SPREAD, log(WORK_CHANGE))


def waits(steps: Sequence[Step]) -> list[float]:
    """Wait share of each step that tells both."""
    told = [step for step in steps if STEP in step.values and WAIT in step.values]
    return [step.values[WAIT] / step.values[STEP] for step in told if step.values[STEP] > 0]


def work(step: Step) -> float:
    """Seconds of a step that neither wait nor come every so many steps."""
    told = step.values
    return told[STEP] - told[WAIT] - sum(told.get(key, 0.0) for key in NOW_AND_THEN)


def of_work(steps: Sequence[Step], more: bool = False) -> int:
    """How many of the newest steps are the same work; all where not every one tells. ``more``: so is the open one.

    Work jitters by hundredths where waits come in bursts: it is the trainer's alone.
    """
    works = [work(step) if STEP in step.values and WAIT in step.values else 0.0 for step in steps]
    if min(works, default=0.0) <= 0.0:
        return len(steps)
    logs = [log(one) for one in works]
    found = changed([*logs, logs[-1]], WORK) if more else len(logs)
    return 1 if more and found == NEWER else changed(logs, WORK)


def changed(values: Sequence[float], line: Line, least: int = NEWER) -> int:
    """How many of the newest belong together: all, or ``least`` and more after the newest clear change."""
    cuts = range(least, len(values) - EARLIER + 1)
    return next((newer for newer in cuts if _differ(values[:-newer], values[-newer:], line)), len(values))


def present(shares: Sequence[float], least: int = NEWER) -> int:
    """As `changed`, of shares; the first of all that waited while the pipeline filled is none of them."""
    found = changed(shares, SHARES, least)
    return found - _filling(shares) if found == len(shares) else found


def _filling(shares: Sequence[float]) -> bool:
    """Is the first of all steps in it, and waited clearly longer than any other?"""
    young = EARLIER < len(shares) < WINDOW_STEPS
    return young and shares[0] >= max(shares[1:]) + SHARES.change


def _differ(before: Sequence[float], after: Sequence[float], line: Line) -> bool:
    change = abs(_mean(after) - _mean(before))
    if change < line.change:
        return False
    spread = max(line.spread, sqrt((_squares(before) + _squares(after)) / max(1, len(before) + len(after) - 2)))
    return change > SIGNIFICANT * spread * sqrt(1 / len(before) + 1 / len(after))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _squares(values: Sequence[float]) -> float:
    mean = _mean(values)
    return sum((value - mean) ** 2 for value in values)
