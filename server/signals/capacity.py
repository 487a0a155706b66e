"""Samples per second: what the trainer could take, what is produced and what is trained."""

import math

from server.rollouts.staleness import ORIGIN_HINT
from server.rollouts.window import NO_RECORDS, Window
from server.signals.model import Answer, Counter, Signal, Unknown, Value, View
from server.signals.recorded import missing, recorded
from server.signals.step_windows import SYNC_HAS_NO_WAIT, mean, not_in_sync, too_few, total, window

# ---- capacity_samples_per_second

# What the trainer could consume: samples / (step - wait), ratio of sums over the last 10 steps.

_CAPACITY_SAMPLES_PER_SECOND_HINT = (
    "capacity needs samples per step, step time and wait time "
    "(prime-rl `progress/rollouts`, `time/step`, `time/wait_for_batch`)"
)


def samples_per_step(view: View) -> float | None:
    """Mean trainer samples of a step: logged, possibly on another axis, or the configured batch."""
    rows = window(view, "trainer_samples")
    return mean(rows, "trainer_samples") if rows else view.fact("batch_samples")


def _capacity_samples_per_second(view: View) -> Answer:
    rows = window(view, "trainer_step_seconds", "trainer_wait_seconds")
    samples = samples_per_step(view)
    missing = too_few(rows, _CAPACITY_SAMPLES_PER_SECOND_HINT)
    if missing is not None or samples is None:
        return missing or Unknown(_CAPACITY_SAMPLES_PER_SECOND_HINT)
    busy = total(rows, "trainer_step_seconds") - total(rows, "trainer_wait_seconds")
    return [Value(samples * len(rows) / busy)] if busy > 0 else Unknown("the trainer did nothing but wait")


CAPACITY_SAMPLES_PER_SECOND = Signal(
    name="capacity_samples_per_second",
    title="Trainer capacity",
    unit="samples/s",
    actor="trainer",
    help="Samples the trainer could take per second if it never waited: samples / (step - wait), last 10 steps.",
    inputs=("trainer_step_seconds", "trainer_wait_seconds", "trainer_samples"),
    cadence="step",
    compute=not_in_sync(SYNC_HAS_NO_WAIT, _capacity_samples_per_second),
    hint=_CAPACITY_SAMPLES_PER_SECOND_HINT,
)


# ---- compute_capacity_samples_per_second

# What the trainer could consume if it only computed: samples / compute, last 10 steps.
#
# In contrast, `capacity_samples_per_second` counts weight sync, checkpoints and the like as time of the trainer.

_COMPUTE_CAPACITY_SAMPLES_PER_SECOND_HINT = (
    "needs samples per step and the compute time of the step (log-probs, forward, backward, optimizer)"
)


def _compute_capacity_samples_per_second(view: View) -> Answer:
    rows = window(view, "trainer_compute_seconds")
    samples = samples_per_step(view)
    missing = too_few(rows, _COMPUTE_CAPACITY_SAMPLES_PER_SECOND_HINT)
    if missing is not None or samples is None:
        return missing or Unknown(_COMPUTE_CAPACITY_SAMPLES_PER_SECOND_HINT)
    if not total(rows, "trainer_compute_seconds"):
        return Unknown("the steps of the window have no compute time")
    return [Value(samples / mean(rows, "trainer_compute_seconds"))]


COMPUTE_CAPACITY_SAMPLES_PER_SECOND = Signal(
    name="compute_capacity_samples_per_second",
    title="Compute capacity",
    unit="samples/s",
    actor="trainer",
    help="Samples the trainer could take per second if it did nothing but compute: samples / compute, last 10 steps.",
    inputs=("trainer_compute_seconds", "trainer_samples"),
    cadence="step",
    compute=_compute_capacity_samples_per_second,
    hint=_COMPUTE_CAPACITY_SAMPLES_PER_SECOND_HINT,
)


# ---- production_samples_per_second

# Rate of production of samples, by the stage they reached. Finished requests of an engine are not samples.

_STAGE = {name: (("stage", name),) for name in ("dispatched", "completed", "delivered", "trainable")}

_UNTOLD = {
    "dispatched": "no record reports when it began: log `dispatched_at`",
    "completed": "no record reports when it ended: log `finished_at`",
}


def _production_samples_per_second(view: View, found: Window) -> Answer:
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
    told = [(stale, idle, count) for stale, idle, count in kinds if idle is not None]
    if not told:
        return missing("no record reports `advantage`, or the group from which it follows", _STAGE["trainable"])[0]
    # Staleness matters only where the run has a bound. Records without it are assumed to be like those that report it.
    known = [(stale, idle, count) for stale, idle, count in told if bound is None or stale is not None]
    if not known:
        why = f"no record reports how stale it is against the run's bound: {ORIGIN_HINT}"
        return missing(why, _STAGE["trainable"])[0]
    fresh = sum(n for stale, idle, n in known if not idle and (bound is None or (stale is not None and stale <= bound)))
    # Records without an advantage are assumed to carry a gradient as often as the others.
    return Value(fresh / sum(n for _, _, n in known) * found.used.count / seconds, _STAGE["trainable"])


PRODUCTION_SAMPLES_PER_SECOND = Signal(
    name="production_samples_per_second",
    title="Production",
    unit="samples/s",
    actor="generator",
    help="Rollouts per second that were dispatched, completed (generated to their end), delivered (consumed by the "
    "trainer) and trainable (delivered, within the run's staleness bound, with an advantage), over the last 10 "
    "consumed versions. Needs rollout records.",
    inputs=(),
    cadence="step",
    compute=recorded(_production_samples_per_second),
    hint=NO_RECORDS,
    higher_is_worse=False,
    records=True,
)


# ---- trainer_samples_per_second

# What the trainer consumes: samples / step, ratio of sums over the last 10 steps.

_TRAINER_SAMPLES_PER_SECOND_HINT = (
    "needs samples per step and step time "
    "(prime-rl `progress/rollouts`, `time/step`; TRL async `batch/samples_per_step`)"
)


def _trainer_samples_per_second(view: View) -> Answer:
    rows = window(view, "trainer_step_seconds")
    samples = samples_per_step(view)
    missing = too_few(rows, _TRAINER_SAMPLES_PER_SECOND_HINT)
    if missing is not None or samples is None:
        return missing or Unknown(_TRAINER_SAMPLES_PER_SECOND_HINT)
    seconds = total(rows, "trainer_step_seconds")
    return [Value(samples * len(rows) / seconds)] if seconds > 0 else Unknown(_TRAINER_SAMPLES_PER_SECOND_HINT)


TRAINER_SAMPLES_PER_SECOND = Signal(
    name="trainer_samples_per_second",
    title="Trained samples",
    unit="samples/s",
    actor="trainer",
    help="Samples the trainer consumed per second of wall time over the last 10 steps.",
    inputs=("trainer_step_seconds", "trainer_samples"),
    cadence="step",
    compute=_trainer_samples_per_second,
    hint=_TRAINER_SAMPLES_PER_SECOND_HINT,
)


SIGNALS: tuple[Signal | Counter, ...] = (
    CAPACITY_SAMPLES_PER_SECOND,
    COMPUTE_CAPACITY_SAMPLES_PER_SECOND,
    PRODUCTION_SAMPLES_PER_SECOND,
    TRAINER_SAMPLES_PER_SECOND,
)
