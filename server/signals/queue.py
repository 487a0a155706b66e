"""The queue between generator and trainer."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

from server.rollouts.staleness import ORIGIN_HINT
from server.rollouts.window import NO_RECORDS, Window
from server.signals.aggregates import (
    SYNC_HAS_NO_QUEUE,
    SYNC_HAS_NO_WAIT,
    last_sum,
    mean,
    not_in_sync,
    too_few,
    total,
    window,
    window_sum,
)
from server.signals.model import STEP_MINIMUM, STEP_WINDOW, Answer, Unknown, Value, View, signal
from server.signals.recorded import missing, recorded
from server.signals.window import Gauge, Step

# ---- capacity
# Samples per second: what the trainer could take, what is produced and what is trained.


def samples_per_step(view: View) -> float | None:
    """Mean trainer samples of a step: logged, possibly on another axis, or the configured batch."""
    rows = window(view, "trainer_samples")
    return mean(rows, "trainer_samples") if rows else view.fact("batch_samples")


@signal(
    title="Trainer capacity",
    unit="samples/s",
    actor="trainer",
    inputs=("trainer_step_seconds", "trainer_wait_seconds", "trainer_samples"),
    cadence="step",
    hint="capacity needs samples per step, step time and wait time "
    "(prime-rl `progress/rollouts`, `time/step`, `time/wait_for_batch`)",
)
@not_in_sync(SYNC_HAS_NO_WAIT)
def capacity_samples_per_second(view: View) -> Answer:
    """Samples the trainer could take per second if it never waited: samples / (step - wait), last 10 steps."""
    rows = window(view, "trainer_step_seconds", "trainer_wait_seconds")
    samples = samples_per_step(view)
    missing = too_few(rows, capacity_samples_per_second.hint)
    if missing is not None or samples is None:
        return missing or Unknown(capacity_samples_per_second.hint)
    busy = total(rows, "trainer_step_seconds") - total(rows, "trainer_wait_seconds")
    return [Value(samples * len(rows) / busy)] if busy > 0 else Unknown("the trainer did nothing but wait")


@signal(
    title="Compute capacity",
    unit="samples/s",
    actor="trainer",
    inputs=("trainer_compute_seconds", "trainer_samples"),
    cadence="step",
    hint="needs samples per step and the compute time of the step (log-probs, forward, backward, optimizer)",
)
def compute_capacity_samples_per_second(view: View) -> Answer:
    """Samples the trainer could take per second if it did nothing but compute: samples / compute, last 10 steps.

    In contrast, `capacity_samples_per_second` counts weight sync, checkpoints and the like as time of the trainer.
    """
    rows = window(view, "trainer_compute_seconds")
    samples = samples_per_step(view)
    missing = too_few(rows, compute_capacity_samples_per_second.hint)
    if missing is not None or samples is None:
        return missing or Unknown(compute_capacity_samples_per_second.hint)
    if not total(rows, "trainer_compute_seconds"):
        return Unknown("the steps of the window have no compute time")
    return [Value(samples / mean(rows, "trainer_compute_seconds"))]


_STAGE = {name: (("stage", name),) for name in ("dispatched", "completed", "delivered", "trainable")}

_UNTOLD = {
    "dispatched": "no record reports when it began: log `dispatched_at`",
    "completed": "no record reports when it ended: log `finished_at`",
}


@signal(
    title="Production",
    unit="samples/s",
    actor="generator",
    cadence="step",
    hint=NO_RECORDS,
    higher_is_worse=False,
    records=True,
)
@recorded
def production_samples_per_second(view: View, found: Window) -> Answer:
    """Rollouts per second that were dispatched, completed (generated to their end), delivered (consumed by the trainer)
    and trainable (delivered, within the run's staleness bound, with an advantage), over the last 10 consumed versions.
    Needs rollout records.

    Finished requests of an engine are not samples.
    """
    seconds = found.end - found.start
    if found.sampled:
        return Unknown("records cover only a sample of the rollouts, so no rate can be computed")
    if view.fact("times_copied"):
        return Unknown("the rollout files were copied and do not have the run's times, so no rate can be computed")
    if not 0 < seconds < math.inf:
        return Unknown("the first window of 10 consumed versions is not over; no action needed")
    rates = [(name, found.rate(name)) for name in ("dispatched", "completed")]
    values = [
        Value(rate, _STAGE[name]) if rate is not None else missing(_UNTOLD[name], _STAGE[name])[0]
        for name, rate in rates
    ]
    if not found.consumed:
        return [*values, *missing("no record reports a consumption: log `consumed_at`", _STAGE["delivered"])]
    return [*values, Value(found.used.count / seconds, _STAGE["delivered"]), _trainable(view, found, seconds)]


def _trainable(view: View, found: Window, seconds: float) -> Value:
    """Samples per second that are fresh enough and have a gradient; unknown where no record reports a gradient."""
    bound = view.fact("max_staleness_versions")
    kinds = [(kind[2], found.fruitless(kind), count) for kind, count in found.kinds]
    present = [(stale, idle, count) for stale, idle, count in kinds if idle is not None]
    if not present:
        return missing("no record reports `advantage`, or the group from which it follows", _STAGE["trainable"])[0]
    # Staleness matters only where the run has a bound. Records without it are assumed to be like those that report it.
    comparable = [(stale, idle, count) for stale, idle, count in present if bound is None or stale is not None]
    if not comparable:
        why = f"no record reports how stale it is against the run's bound: {ORIGIN_HINT}"
        return missing(why, _STAGE["trainable"])[0]
    fresh = sum(
        n for stale, idle, n in comparable if not idle and (bound is None or (stale is not None and stale <= bound))
    )
    # Records without an advantage are assumed to carry a gradient as often as the others.
    return Value(fresh / sum(n for _, _, n in comparable) * found.used.count / seconds, _STAGE["trainable"])


@signal(
    title="Trained samples",
    unit="samples/s",
    actor="trainer",
    inputs=("trainer_step_seconds", "trainer_samples"),
    cadence="step",
    hint="needs samples per step and step time "
    "(prime-rl `progress/rollouts`, `time/step`; TRL async `batch/samples_per_step`)",
)
def trainer_samples_per_second(view: View) -> Answer:
    """Samples the trainer consumed per second of wall time over the last 10 steps."""
    rows = window(view, "trainer_step_seconds")
    samples = samples_per_step(view)
    missing = too_few(rows, trainer_samples_per_second.hint)
    if missing is not None or samples is None:
        return missing or Unknown(trainer_samples_per_second.hint)
    seconds = total(rows, "trainer_step_seconds")
    return [Value(samples * len(rows) / seconds)] if seconds > 0 else Unknown(trainer_samples_per_second.hint)


# ---- ready samples
# Samples that are ready for the trainer, from a queue in samples or in groups.

INPUTS = ("queue_samples", "queue_groups")


def waiting(view: View, fold: Callable[[list[Gauge]], float]) -> float | None:
    """Samples in the queue; None when no source reports it.

    SkyRL reports the queue live in groups and once per step in samples; groups are preferred, the two are never added.
    """
    size, groups = view.fact("group_size"), view.fresh("queue_groups")
    if size and groups:
        return fold(groups) * size
    samples = view.fresh("queue_samples")
    return fold(samples) if samples else None


QUEUE_SAMPLES_HINT = (
    "this run reports no queue depth: prime-rl prints it in the orchestrator log (give the run directory with its "
    "logs), TRL async logs `sample/rollout_queue_size`"
)


def _answer(samples: float | None) -> Answer:
    return [Value(samples)] if samples is not None else Unknown(QUEUE_SAMPLES_HINT)


@signal(title="Queue depth", unit="samples", actor="queue", inputs=INPUTS, cadence="tick", hint=QUEUE_SAMPLES_HINT)
@not_in_sync(SYNC_HAS_NO_QUEUE)
def queue_samples(view: View) -> Answer:
    """Samples ready for the trainer and not yet consumed; time-weighted mean over 5 minutes of whole steps."""
    return _answer(waiting(view, partial(window_sum, view)))


@signal(title="Queue now", unit="samples", actor="queue", inputs=INPUTS, cadence="tick", hint=QUEUE_SAMPLES_HINT)
@not_in_sync(SYNC_HAS_NO_QUEUE)
def queue_samples_now(view: View) -> Answer:
    """Samples ready for the trainer in the newest report.

    The value rises with each refill and falls with each step.
    """
    return _answer(waiting(view, last_sum))


@signal(
    title="Queue in batches",
    unit="batches",
    actor="queue",
    inputs=INPUTS,
    cadence="tick",
    hint=QUEUE_SAMPLES_HINT,
    # Below one batch the trainer cannot start when it is ready; below half a batch it waits most of the time.
    watch=1.0,
    critical=0.6,
    higher_is_worse=False,
)
@not_in_sync(SYNC_HAS_NO_QUEUE)
def queue_batches(view: View) -> Answer:
    """Samples ready for the trainer / samples of one batch; time-weighted mean over 5 minutes of whole steps.

    With a batch size of 512, 500 samples are too few for the trainer.
    """
    samples = waiting(view, partial(window_sum, view))
    if samples is None:
        return Unknown(QUEUE_SAMPLES_HINT)
    batch = view.fact("batch_samples") or samples_per_step(view)
    if not batch:
        return Unknown("the batch size is unknown: it is in the run's configuration, or in the samples per step")
    return [Value(samples / batch)]


_NO_QUEUE = "neither the queue nor samples dropped as stale are reported: what arrives may be more than is used"
NO_GROWTH = "without the growth of the queue, which is not reported over two of these steps"
_SECONDS, _STALE = ("trainer_step_seconds", ()), ("stale_dropped_rollouts", ())


@signal(
    title="Arrivals at the queue",
    unit="samples/s",
    actor="queue",
    inputs=("trainer_step_seconds", "trainer_samples", "stale_dropped_rollouts", *INPUTS),
    cadence="step",
    hint="needs the trainer's samples per step, its step time, and what it drops as stale or holds in its queue",
)
@not_in_sync(SYNC_HAS_NO_QUEUE)
def queue_arrivals_samples_per_second(view: View) -> Answer:
    """Samples that reach the queue per second: trained + dropped as stale + growth of the queue, over the last 10
    steps. If this exceeds the trainer's capacity, the trainer limits the run.

    All three are of the same steps: a dropped backlog reduces the queue by the same amount, so that it does not count
    as an arrival.
    """
    rows, samples = view.steps.rows(_SECONDS, count=STEP_WINDOW + 1, until=view.now), samples_per_step(view)
    missing = too_few(rows, queue_arrivals_samples_per_second.hint)
    if missing is not None or samples is None:
        return missing or Unknown(queue_arrivals_samples_per_second.hint)
    stale = [row for row in view.steps.rows(_STALE, count=STEP_WINDOW + 1, until=view.now) if row.ts >= rows[0].ts]
    grown = _logged_growth(view) or _live_growth(view, rows)
    if grown is not None:
        growth, counted = grown
        seconds = max(total(counted[1:], _SECONDS[0]), counted[-1].ts - counted[0].ts)
        found = [row for row in stale if counted[0].ts < row.ts <= counted[-1].ts]
        arrived = samples * (len(counted) - 1) + total(found, _STALE[0]) + growth
        return [Value(max(0.0, arrived / seconds))] if seconds > 0 else Unknown(queue_arrivals_samples_per_second.hint)
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
        recent = [row for row in rows if row.ts >= since - _SAME_SECONDS]
        if usual <= 0 or len(recent) < STEP_MINIMUM:
            return None
        first, last = (sum(_level(gauge, row.ts, usual) for gauge in gauges) for row in (recent[0], recent[-1]))
        return (last - first) * unit, recent
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
