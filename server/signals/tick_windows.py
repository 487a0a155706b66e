"""Sums and means over the series that still report. Shared by tick signals."""

import math

from server.signals.model import TICK_WINDOW_SECONDS, View
from server.signals.step_windows import mean, window
from server.signals.window import Gauge


def window_sum(view: View, gauges: list[Gauge]) -> float:
    """Sum over series of their means over 5 minutes of whole steps, e.g. requests running in the whole fleet."""
    return sum(step_mean(view, gauge) for gauge in gauges)


def step_mean(view: View, gauge: Gauge) -> float:
    """Mean over 5 minutes of whole steps. Cached per view, because several signals need it for each engine."""
    known: dict[int, float] = view.once("step_mean", lambda _: {})
    if id(gauge) not in known:
        known[id(gauge)] = gauge.mean(view.now, view.once("whole_steps", whole_steps))
    return known[id(gauge)]


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
