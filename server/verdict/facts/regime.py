"""Selects the last steps that belong to the present, so that a change shows before it fills ten steps. Pure."""

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
# Phases that occur only in some steps; they do not mark a change.
NOW_AND_THEN = (("trainer_checkpoint_seconds", ()), ("trainer_eval_seconds", ()))


@dataclass(frozen=True, slots=True)
class Line:
    """Limits of a change: the least ``spread`` assumed of a series, and the least ``change`` that matters."""

    spread: float
    change: float


# Shares of a step jitter by a few hundredths in the calmest run; a change that matters is a fifth of the step.
SHARES = Line(SHARE_SPREAD, SHARE_CHANGE)
# The logarithm of the trainer's own work jitters as much; a quarter more work is a change.
WORK = Line(SHARE_SPREAD, log(WORK_CHANGE))


def waits(steps: Sequence[Step]) -> list[float]:
    """Returns the wait share of each step that reports its time and its wait."""
    complete = [step for step in steps if STEP in step.values and WAIT in step.values]
    return [step.values[WAIT] / step.values[STEP] for step in complete if step.values[STEP] > 0]


def work(step: Step) -> float:
    """Returns the seconds of a step without its wait and without phases that occur only in some steps."""
    values = step.values
    return values[STEP] - values[WAIT] - sum(values.get(key, 0.0) for key in NOW_AND_THEN)


def of_work(steps: Sequence[Step], more: bool = False) -> int:
    """Returns how many of the newest steps have the same work; all if a step does not report it.

    ``more``: the open step has the same work as the newest. Work varies less than waits, which come in bursts.
    """
    works = [work(step) if STEP in step.values and WAIT in step.values else 0.0 for step in steps]
    if min(works, default=0.0) <= 0.0:
        return len(steps)
    logs = [log(seconds) for seconds in works]
    start = changed([*logs, logs[-1]], WORK) if more else len(logs)
    return 1 if more and start == NEWER else changed(logs, WORK)


def changed(values: Sequence[float], line: Line, least: int = NEWER) -> int:
    """Returns how many of the newest values belong together: all, or at least ``least`` after the newest change."""
    cuts = range(least, len(values) - EARLIER + 1)
    return next((newer for newer in cuts if _differ(values[:-newer], values[-newer:], line)), len(values))


def present(shares: Sequence[float], least: int = NEWER) -> int:
    """As `changed`, for shares; a first step that waited while the pipeline filled is left out."""
    start = changed(shares, SHARES, least)
    return start - _filling(shares) if start == len(shares) else start


def _filling(shares: Sequence[float]) -> bool:
    """Returns whether the first step of the run is included and waited clearly longer than any other."""
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
