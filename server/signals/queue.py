"""The queue between generator and trainer."""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

from server.signals.capacity import samples_per_step
from server.signals.model import STEP_MINIMUM, STEP_WINDOW, Answer, Counter, Signal, Unknown, Value, View
from server.signals.ready_samples import INPUTS, waiting
from server.signals.step_windows import SYNC_HAS_NO_QUEUE, not_in_sync, too_few, total
from server.signals.tick_windows import last_sum, window_sum
from server.signals.window import Gauge, Step

# ---- queue_samples

# Samples ready for the trainer: the buffer between generator and trainer, mean over 5 minutes of whole steps.

QUEUE_SAMPLES_HINT = (
    "this run reports no queue depth: prime-rl prints it in the orchestrator log (give the run directory with its "
    "logs), TRL async logs `sample/rollout_queue_size`"
)


def _answer(samples: float | None) -> Answer:
    return [Value(samples)] if samples is not None else Unknown(QUEUE_SAMPLES_HINT)


def _queue_samples(view: View) -> Answer:
    return _answer(waiting(view, partial(window_sum, view)))


QUEUE_SAMPLES = Signal(
    name="queue_samples",
    title="Queue depth",
    unit="samples",
    actor="queue",
    help="Samples ready for the trainer and not yet consumed; time-weighted mean over 5 minutes of whole steps.",
    inputs=INPUTS,
    cadence="tick",
    compute=not_in_sync(SYNC_HAS_NO_QUEUE, _queue_samples),
    hint=QUEUE_SAMPLES_HINT,
)


# ---- queue_samples_now

# Samples ready for the trainer in the newest report. The value rises with each refill and falls with each step.


def _queue_samples_now(view: View) -> Answer:
    return _answer(waiting(view, last_sum))


QUEUE_SAMPLES_NOW = Signal(
    name="queue_samples_now",
    title="Queue now",
    unit="samples",
    actor="queue",
    help="Samples ready for the trainer in the newest report.",
    inputs=INPUTS,
    cadence="tick",
    compute=not_in_sync(SYNC_HAS_NO_QUEUE, _queue_samples_now),
    hint=QUEUE_SAMPLES_HINT,
)


# ---- queue_batches

# The queue in batches: with a batch size of 512, 500 samples are too few for the trainer.


def _queue_batches(view: View) -> Answer:
    samples = waiting(view, partial(window_sum, view))
    if samples is None:
        return Unknown(QUEUE_SAMPLES_HINT)
    batch = view.fact("batch_samples") or samples_per_step(view)
    if not batch:
        return Unknown("the batch size is unknown: it is in the run's configuration, or in the samples per step")
    return [Value(samples / batch)]


QUEUE_BATCHES = Signal(
    name="queue_batches",
    title="Queue in batches",
    unit="batches",
    actor="queue",
    help="Samples ready for the trainer / samples of one batch; time-weighted mean over 5 minutes of whole steps.",
    inputs=INPUTS,
    cadence="tick",
    compute=not_in_sync(SYNC_HAS_NO_QUEUE, _queue_batches),
    hint=QUEUE_SAMPLES_HINT,
    # Below one batch the trainer cannot start when it is ready; below half a batch it waits most of the time.
    watch=1.0,
    critical=0.6,
    higher_is_worse=False,
)


# ---- queue_arrivals_samples_per_second

# Samples that reach the queue per second, derived from its output: trained, dropped as stale, and its growth.
#
# All three are of the same steps: a dropped backlog reduces the queue by the same amount, so that it does not count as
# an arrival.

_QUEUE_ARRIVALS_SAMPLES_PER_SECOND_HINT = (
    "needs the trainer's samples per step, its step time, and what it drops as stale or holds in its queue"
)
_NO_QUEUE = "neither the queue nor samples dropped as stale are reported: what arrives may be more than is used"
NO_GROWTH = "without the growth of the queue, which is not reported over two of these steps"
_SECONDS, _STALE = ("trainer_step_seconds", ()), ("stale_dropped_rollouts", ())


def _queue_arrivals_samples_per_second(view: View) -> Answer:
    rows, samples = view.steps.rows(_SECONDS, count=STEP_WINDOW + 1, until=view.now), samples_per_step(view)
    missing = too_few(rows, _QUEUE_ARRIVALS_SAMPLES_PER_SECOND_HINT)
    if missing is not None or samples is None:
        return missing or Unknown(_QUEUE_ARRIVALS_SAMPLES_PER_SECOND_HINT)
    stale = [row for row in view.steps.rows(_STALE, count=STEP_WINDOW + 1, until=view.now) if row.ts >= rows[0].ts]
    grown = _logged_growth(view) or _live_growth(view, rows)
    if grown is not None:
        growth, counted = grown
        seconds = max(total(counted[1:], _SECONDS[0]), counted[-1].ts - counted[0].ts)
        found = [row for row in stale if counted[0].ts < row.ts <= counted[-1].ts]
        arrived = samples * (len(counted) - 1) + total(found, _STALE[0]) + growth
        return [Value(max(0.0, arrived / seconds))] if seconds > 0 else Unknown(_QUEUE_ARRIVALS_SAMPLES_PER_SECOND_HINT)
    queued = any(view.fresh(metric) for metric in INPUTS)
    counted = rows[-STEP_WINDOW:]
    seconds = total(counted, _SECONDS[0])
    if seconds <= 0 or not (stale or queued):
        return Unknown(_NO_QUEUE)
    # A window without the metric dropped nothing, because TRL logs the count only when it is above zero.
    lost = total([row for row in stale if row.ts >= counted[0].ts], _STALE[0])
    return [Value((samples * len(counted) + lost) / seconds, why=NO_GROWTH if queued else "")]


def _units(view: View) -> list[tuple[str, float]]:
    """The unit of the queue and the samples per unit: groups where reported in groups, else samples."""
    size = view.fact("group_size")
    return [(INPUTS[1], size), (INPUTS[0], 1.0)] if size else [(INPUTS[0], 1.0)]


def _logged_growth(view: View) -> tuple[float, Sequence[Step]] | None:
    """Growth from the first of the last 11 steps to the last, where the queue is logged with the step.

    Each step logs it at the same point of the step, so the saw tooth of a step cancels.
    """
    for metric, unit in _units(view):
        rows = view.steps.rows(_SECONDS, (metric, ()), count=STEP_WINDOW + 1, until=view.now)
        if len(rows) >= STEP_MINIMUM:
            return (rows[-1].values[(metric, ())] - rows[0].values[(metric, ())]) * unit, rows
    return None


def _live_growth(view: View, rows: Sequence[Step]) -> tuple[float, Sequence[Step]] | None:
    """Growth of a queue that is read live: difference of its means over one usual step before either end."""
    usual = sorted(row.values[_SECONDS] for row in rows)[len(rows) // 2]
    for metric, unit in _units(view):
        gauges = view.fresh(metric)
        if not gauges:
            continue
        since = max(gauge.points[0][0] for gauge in gauges) + usual
        kept = [row for row in rows if row.ts >= since - _SAME_SECONDS]
        if usual <= 0 or len(kept) < STEP_MINIMUM:
            return None
        first, last = (sum(_level(gauge, row.ts, usual) for gauge in gauges) for row in (kept[0], kept[-1]))
        return (last - first) * unit, kept
    return None


# Rounding of two clocks: event times are in milliseconds.
_SAME_SECONDS = 0.01


def _level(gauge: Gauge, at: float, seconds: float) -> float:
    """Time-weighted mean over the ``seconds`` before ``at``."""
    area = covered = 0.0
    for (ts, value), (until, _) in pairwise((*gauge.points, (at, 0.0))):
        span = min(until, at, ts + gauge.carry) - max(ts, at - seconds)
        if span > 0:
            area, covered = area + value * span, covered + span
    return area / covered if covered > 0 else gauge.last


QUEUE_ARRIVALS_SAMPLES_PER_SECOND = Signal(
    name="queue_arrivals_samples_per_second",
    title="Arrivals at the queue",
    unit="samples/s",
    actor="queue",
    help="Samples that reach the queue per second: trained + dropped as stale + growth of the queue, over the last 10 "
    "steps. If this exceeds the trainer's capacity, the trainer limits the run.",
    inputs=("trainer_step_seconds", "trainer_samples", "stale_dropped_rollouts", *INPUTS),
    cadence="step",
    compute=not_in_sync(SYNC_HAS_NO_QUEUE, _queue_arrivals_samples_per_second),
    hint=_QUEUE_ARRIVALS_SAMPLES_PER_SECOND_HINT,
)


SIGNALS: tuple[Signal | Counter, ...] = (
    QUEUE_SAMPLES,
    QUEUE_SAMPLES_NOW,
    QUEUE_BATCHES,
    QUEUE_ARRIVALS_SAMPLES_PER_SECOND,
)
