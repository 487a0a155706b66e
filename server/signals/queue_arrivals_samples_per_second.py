"""Samples that reach the queue per second, from the trainer's side of it: trained, dropped as stale, and its growth."""

from server.signals._model import Answer, Signal, Unknown, Value, View
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
    """Samples per second by which the queue grew over its window, by its first and newest number."""
    size = view.fact("group_size")
    groups, samples = view.fresh(INPUTS[1]), view.fresh(INPUTS[0])
    found = [(gauge, size) for gauge in groups] if size and groups else [(gauge, 1.0) for gauge in samples]
    slopes = [_slope(gauge) * unit for gauge, unit in found]
    return sum(slopes) if slopes else None


def _slope(gauge: Gauge) -> float:
    """By the mean of the first and the second half: one batch taken in between is no growth."""
    points = list(gauge.points)
    half = len(points) // 2
    if half < 2:
        return 0.0
    early, late = points[:half], points[half:]
    levels = [sum(value for _, value in part) / len(part) for part in (early, late)]
    times = [sum(ts for ts, _ in part) / len(part) for part in (early, late)]
    return (levels[1] - levels[0]) / (times[1] - times[0]) if times[1] > times[0] else 0.0


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
