"""Samples that reach the queue per second, from the trainer's side of it: trained, dropped as stale, and its growth."""

import math

from server.signals._model import TICK_WINDOW_SECONDS, Answer, Signal, Unknown, Value, View
from server.signals._queue import INPUTS
from server.signals._steps import SYNC_HAS_NO_QUEUE, mean, not_in_sync, too_few, total, window
from server.signals._window import Gauge
from server.signals.capacity_samples_per_second import samples_per_step

_HINT = "needs the trainer's samples per step, its step time, and what it drops as stale or holds in its queue"


def _compute(view: View) -> Answer:
    rows, samples = window(view, "trainer_step_seconds"), samples_per_step(view)
    dropped = window(view, "stale_dropped_rollouts")
    missing = too_few(rows, _HINT)
    if missing is not None or samples is None:
        return missing or Unknown(_HINT)
    growth = _growth(view)
    seconds = total(rows, "trainer_step_seconds")
    if seconds <= 0 or (growth is None and not dropped):
        return Unknown(
            "nobody tells of the queue or of samples dropped as stale: what arrives may be more than is used"
        )
    # A window without a row of it dropped nothing: TRL logs the count only when there was one.
    lost = sum(row.values[("stale_dropped_rollouts", ())] for row in dropped if row.ts >= rows[0].ts)
    used = samples / mean(rows, "trainer_step_seconds")
    return [Value(max(0.0, used + lost / seconds + (growth or 0.0)))]


def _growth(view: View) -> float | None:
    """Samples per second by which the queue grew over its window; None where nobody tells of it."""
    size = view.fact("group_size")
    groups, samples = view.fresh(INPUTS[1]), view.fresh(INPUTS[0])
    found = [(gauge, size) for gauge in groups] if size and groups else [(gauge, 1.0) for gauge in samples]
    rows = window(view, "trainer_step_seconds")
    step = mean(rows, "trainer_step_seconds") if rows else 0.0
    slopes = [_slope(gauge, view.now, step) * unit for gauge, unit in found]
    return sum(slopes) if slopes else None


def _slope(gauge: Gauge, now: float, step: float) -> float:
    """By the means of two halves of whole steps, within 5 minutes; taken as steady where they hold no two steps.

    A queue saws once per step: what it gained within one is no growth, and a batch taken at its end no loss.
    """
    most = min(TICK_WINDOW_SECONDS, now - gauge.points[0][0]) / 2
    half = math.floor(most / step) * step if step > 0 else 0.0
    if half <= 0:
        return 0.0
    late, both = gauge.mean(now, half), gauge.mean(now, 2 * half)
    return 2 * (late - both) / half


SIGNAL = Signal(
    name="queue_arrivals_samples_per_second",
    title="Arrivals at the queue",
    unit="samples/s",
    actor="queue",
    help="Samples reaching the queue per second: trained + dropped as stale (last 10 steps) + its growth (5 minutes). "
    "More than the trainer's capacity: it is the trainer that holds the run back.",
    inputs=("trainer_step_seconds", "trainer_samples", "stale_dropped_rollouts", *INPUTS),
    cadence="step",
    compute=not_in_sync(SYNC_HAS_NO_QUEUE, _compute),
    hint=_HINT,
)
