"""Windows over the last steps, means and ratios of sums. Shared by step signals."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, wraps
from itertools import pairwise
from statistics import median

from collectors.model import Labels
from server.signals.model import (
    STEP_MINIMUM,
    STEP_WINDOW,
    TICK_WINDOW_SECONDS,
    Answer,
    NotApplicable,
    Unknown,
    Value,
    View,
)
from server.signals.window import Gauge, Step, StepBook, StepKey

# Seconds. A step takes minutes to hours, so its values are valid for at least this long.
STEP_STALE_SECONDS = 1800.0
# The same as a multiple of the median step.
STEP_STALE_FACTOR = 6.0


def stale_seconds(steps: Iterable[float]) -> float:
    """How old a step signal's answer may be, from what steps take (seconds)."""
    rows = list(steps)
    return max(STEP_STALE_SECONDS, STEP_STALE_FACTOR * median(rows)) if rows else STEP_STALE_SECONDS


def row_limit(steps: StepBook) -> float:
    """How old the newest row of the trainer may be, seconds: 6 x what a row usually takes, at least 30 min.

    A row may stand for several steps (TRL's logging_steps): what counts is how often rows come, and where the first
    ones are too few to tell, what their steps took.
    """
    return steps.once("row_limit", _row_limit)


def _row_limit(steps: StepBook) -> float:
    rows = steps.last(STEP_WINDOW + 1)
    gaps = [max(_took(row, row.number - before.number), row.ts - before.ts) for before, row in pairwise(rows)]
    # A first row alone may stand for all steps up to it; ten is what loggers that skip usually skip.
    return stale_seconds(gaps or [_took(row, min(row.number, STEP_WINDOW)) for row in rows])


def _took(row: Step, steps: int) -> float:
    return (row.get("trainer_step_seconds") or 0.0) * max(1, steps)


SYNC_HAS_NO_WAIT = (
    "synchronous run: the trainer and the generator take turns, so neither waits for a queue; "
    "see the generation share of the step instead"
)
SYNC_HAS_NO_QUEUE = "synchronous run: rollouts go straight into the step, there is no queue between the actors"


def window(view: View, *metrics: str | StepKey) -> list[Step]:
    """The last 10 steps, not later than the view's instant, as far as they hold all the metrics.

    If fewer than 3 of these do, the last 10 steps that do.
    """
    rows = view.steps.rows(*_keys(metrics), count=STEP_WINDOW, until=view.now)
    return view.steps.among_last(rows, STEP_WINDOW, STEP_MINIMUM)


@lru_cache(maxsize=1024)
def _keys(metrics: tuple[str | StepKey, ...]) -> tuple[StepKey, ...]:
    return tuple((metric, ()) if isinstance(metric, str) else metric for metric in metrics)


def too_few(rows: Sequence[Step], what: str) -> Unknown | None:
    """Unknown with the reason, when the window has too few steps."""
    if not rows:
        return Unknown(what)
    if len(rows) < STEP_MINIMUM:
        return Unknown(f"{len(rows)} of the {STEP_MINIMUM} steps needed so far; no action needed")
    return None


def total(rows: Sequence[Step], metric: str, labels: Labels = ()) -> float:
    """Sum over the steps that have the metric; steps without it add nothing."""
    key = (metric, labels)
    return sum([step.values.get(key, 0.0) for step in rows])


def mean(rows: Sequence[Step], metric: str, labels: Labels = ()) -> float:
    """Mean over steps: every step counts once."""
    return total(rows, metric, labels) / len(rows)


def stats(view: View, hint: str, *parts: tuple[str, str, Callable[[Sequence[float]], float]]) -> Answer:
    """Values of a ``{stat=...}`` signal.

    Args:
        parts: (stat, metric, how to fold the window's values). The first must be there for any answer.
    """
    missing = too_few(window(view, parts[0][1]), hint)
    if missing is not None:
        return missing
    values = []
    for stat, metric, fold in parts:
        rows = window(view, metric)
        if len(rows) >= STEP_MINIMUM:
            values.append(Value(fold([step.values[(metric, ())] for step in rows]), (("stat", stat),)))
    return values


def average(values: Sequence[float]) -> float:
    """Plain mean of at least one value."""
    return sum(values) / len(values)


def single(view: View, metric: str, hint: str) -> Answer:
    """The window's mean of one metric."""
    rows = window(view, metric)
    return too_few(rows, hint) or [Value(mean(rows, metric))]


def not_in_sync(why: str) -> Callable[[Callable[[View], Answer]], Callable[[View], Answer]]:
    """Decorator: the signal is not applicable in synchronous modes."""

    def decorate(compute: Callable[[View], Answer]) -> Callable[[View], Answer]:
        @wraps(compute)
        def guarded(view: View) -> Answer:
            return NotApplicable(why) if view.synchronous else compute(view)

        return guarded

    return decorate


# ---- tick windows
# Sums and means over the series that still report.


def window_sum(view: View, gauges: list[Gauge]) -> float:
    """Sum over series of their means over 5 minutes of whole steps, e.g. requests running in the whole fleet."""
    return sum(step_mean(view, gauge) for gauge in gauges)


def step_mean(view: View, gauge: Gauge) -> float:
    """Mean over 5 minutes of whole steps. Cached per view, because several signals need it for each engine."""
    means: dict[int, float] = view.once("step_mean", lambda _: {})
    if id(gauge) not in means:
        means[id(gauge)] = gauge.mean(view.now, view.once("whole_steps", whole_steps))
    return means[id(gauge)]


def whole_steps(view: View) -> float:
    """The largest whole number of mean steps within 5 minutes, in seconds; 5 minutes when a step is longer.

    Load rises and falls once per step, so a mean over 10.4 steps depends on the phase by up to 5 %.
    """
    rows = window(view, "trainer_step_seconds")
    step = mean(rows, "trainer_step_seconds") if rows else 0.0
    if not 0 < step <= TICK_WINDOW_SECONDS:
        return TICK_WINDOW_SECONDS
    return math.floor(TICK_WINDOW_SECONDS / step) * step


def last_sum(gauges: list[Gauge]) -> float:
    """Sum of the newest values."""
    return sum(gauge.last for gauge in gauges)


def grown(view: View, metric: str) -> float | None:
    """Increase of a counter over 5 minutes, summed over its series; None where no source reports it."""
    gauges = view.fresh(metric)
    return sum(gauge.increase(view.now)[0] for gauge in gauges) if gauges else None


def rate_sum(view: View, gauges: list[Gauge]) -> float | None:
    """Sum over series of their increase per second; None while each has a single sample."""
    found = [gauge.increase(view.now) for gauge in gauges]
    rates = [total / seconds for total, seconds in found if seconds > 0]
    return sum(rates) if rates else None
