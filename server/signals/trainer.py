"""Time and throughput of the trainer's steps."""

from collections.abc import Sequence

from server.signals.aggregates import SYNC_HAS_NO_WAIT, mean, not_in_sync, row_limit, single, too_few, total, window
from server.signals.model import Answer, Counter, NotApplicable, Unknown, Value, View, signal
from server.signals.window import Step


@signal(
    title="Trainer step",
    unit="seconds",
    actor="trainer",
    inputs=("trainer_step_seconds",),
    cadence="step",
    hint="no step time yet: the trainer must log one (prime-rl `time/step`, TRL `step_time` or `perf/step_s`)",
)
def trainer_step_seconds(view: View) -> Answer:
    """Wall time of a trainer step, mean over the last 10 steps."""
    return single(view, "trainer_step_seconds", trainer_step_seconds.hint)


_OVERHEADS = ("trainer_weight_sync_seconds", "trainer_checkpoint_seconds", "trainer_other_seconds")


def _phase(rows: Sequence[Step], phase: str, metric: str) -> list[Value]:
    """Mean over the steps that report the phase: a missing value is not zero."""
    measured = [step for step in rows if (metric, ()) in step.values]
    return [Value(mean(measured, metric), (("phase", phase),))] if measured else []


def _overhead(rows: Sequence[Step]) -> list[Value]:
    """Mean over all steps of the window: a step without a checkpoint or a weight sync spent no time on it."""
    measured = [metric for metric in _OVERHEADS if any((metric, ()) in step.values for step in rows)]
    return [Value(sum(mean(rows, metric) for metric in measured), (("phase", "overhead"),))] if measured else []


def _fetch(view: View, rows: Sequence[Step]) -> list[Value]:
    """The phase in which the step's rollouts come: generation where both alternate, otherwise the wait for them."""
    generation, wait = ("generation", "generation_seconds"), ("wait", "trainer_wait_seconds")
    if view.synchronous:
        return _phase(rows, *generation)
    # Without a mode a reported generation is a phase of the step only if no wait is reported.
    return _phase(rows, *wait) or ([] if view.mode else _phase(rows, *generation))


@signal(
    title="Where each step goes",
    unit="seconds",
    actor="trainer",
    inputs=("trainer_step_seconds", "trainer_wait_seconds", "trainer_compute_seconds", *_OVERHEADS),
    cadence="step",
    hint="no phases yet: the trainer must log the step time and at least one phase of it (wait, compute, weight sync)",
)
def trainer_phase_seconds(view: View) -> Answer:
    """Mean seconds per step by phase: wait (generation in synchronous runs), compute, overhead.

    Overhead is weight sync, checkpoint and other phases of the trainer. A phase the trainer does not report is left
    out, never zero.
    """
    rows = window(view, "trainer_step_seconds")
    missing = too_few(rows, trainer_phase_seconds.hint)
    if missing is not None:
        return missing
    values = _fetch(view, rows) + _overhead(rows)
    return _with_compute(rows, values)


def _with_compute(rows: Sequence[Step], values: list[Value]) -> Answer:
    reported = _phase(rows, "compute", "trainer_compute_seconds")
    if reported or not values:
        return values + reported or Unknown(trainer_phase_seconds.hint)
    # Without any other phase the rest of the step is not known to be computation.
    rest = mean(rows, "trainer_step_seconds") - sum(value.value for value in values)
    return [*values, Value(max(0.0, rest), (("phase", "compute"),))]


@signal(
    title="Trainer wait",
    unit="ratio",
    actor="trainer",
    inputs=("trainer_wait_seconds", "trainer_step_seconds"),
    cadence="step",
    hint="this trainer reports no wait time: it must log one next to the step time "
    "(prime-rl `time/wait_for_batch`, TRL async `perf/rollout_wait_s`)",
    # 15 %: the wait that batch noise alone causes in a balanced run; 40 %: more than a published problem case (30 %).
    watch=0.15,
    critical=0.40,
)
@not_in_sync(SYNC_HAS_NO_WAIT)
def trainer_wait_ratio(view: View) -> Answer:
    """Share of the step in which the trainer waits for rollouts: sum of wait / sum of step over the last 10 steps."""
    rows = window(view, "trainer_wait_seconds", "trainer_step_seconds")
    missing = too_few(rows, trainer_wait_ratio.hint)
    if missing is not None:
        return missing
    step = total(rows, "trainer_step_seconds")
    return [Value(total(rows, "trainer_wait_seconds") / step)] if step > 0 else [Value(0.0)]


PHASES = {
    "weight_sync": "trainer_weight_sync_seconds",
    "checkpoint": "trainer_checkpoint_seconds",
    "eval": "trainer_eval_seconds",
    "other": "trainer_other_seconds",
}


@signal(
    title="Overhead by cause",
    unit="seconds",
    actor="trainer",
    inputs=("trainer_step_seconds", *PHASES.values()),
    cadence="step",
    hint="no overhead by cause: the trainer must log the step time and its weight sync, checkpoint or evaluation",
)
def trainer_overhead_seconds(view: View) -> Answer:
    """Mean seconds per step by cause: weight_sync, checkpoint, eval, other (the rest of the step), last 10 steps."""
    rows = window(view, "trainer_step_seconds")
    measured = {phase: metric for phase, metric in PHASES.items() if any((metric, ()) in row.values for row in rows)}
    missing = too_few(rows if measured else [], trainer_overhead_seconds.hint)
    if missing is not None:
        return missing
    # A step without a checkpoint spent none of its time on one: the mean is over all steps of the window.
    seconds = {phase: mean(rows, metric) for phase, metric in measured.items()}
    if "eval" in seconds and "other" in seconds:
        # An evaluation inside the step is part of the remainder.
        seconds["other"] = max(0.0, seconds["other"] - seconds["eval"])
    return [Value(value, (("phase", phase),)) for phase, value in seconds.items()]


OVER = {
    "finished": "the run is finished",
    "crashed": "the run has crashed",
    "paused": "the run is paused",
}


@signal(
    title="Stall",
    unit="ratio",
    actor="trainer",
    inputs=("trainer_step_seconds",),
    cadence="tick",
    hint="no trainer step so far: add the run's directory as a target",
    watch=0.5,
    critical=1.0,
)
def trainer_stall_ratio(view: View) -> Answer:
    """Seconds since the newest trainer step / max(6 x the usual step, 30 min); 1 or more is stalled."""
    if view.lifecycle in OVER:
        return NotApplicable(OVER[view.lifecycle])
    newest = view.steps.newest_of_all()
    if newest is None:
        return Unknown(trainer_stall_ratio.hint)
    # A trainer that does not answer is not reported as stalled, because another alert covers it.
    trainers = [target for target in view.targets if target.actor == "trainer" and target.last_ok_ts is not None]
    if trainers and not any(target.answers(view.now) for target in trainers):
        return Unknown("the trainer's target does not answer: whether it completes steps is unknown")
    # The latest of: its event time, when it was first seen (its clock may be behind), and the restart of the run.
    since = max(newest.ts, view.step_met or newest.ts, view.running_since or newest.ts)
    return [Value(max(0.0, view.now - since) / row_limit(view.steps))]


@signal(
    title="Fault",
    unit="",
    actor="trainer",
    cadence="tick",
    hint="the trainer's log reports no fault after its newest step",
    critical=1.0,
)
def trainer_fault(view: View) -> Answer:
    """1 if the trainer's printed log reports a fault after its newest step: a collective that timed out, a hang that
    the watchdog saw, or a worker that died. A new step ends it.

    The log reports it long before the next step is late.
    """
    kind, since = view.facts.get("fault_kind"), view.fact("fault_since") or 0.0
    if not kind or view.now < since or view.lifecycle in OVER:
        return NotApplicable(trainer_fault.hint)
    return [Value(1.0, (("fault", str(kind)),))]


@signal(
    title="MFU",
    unit="ratio",
    actor="trainer",
    inputs=("trainer_mfu_ratio",),
    cadence="step",
    hint="this trainer reports no MFU (prime-rl `perf/mfu`, TRL async `perf/mfu_wall_clock`)",
)
def trainer_mfu_ratio(view: View) -> Answer:
    """Model FLOPs utilisation, mean over the last 10 steps; basis wall or busy, as reported.

    `busy` counts the forward and backward seconds only (prime-rl), `wall` the whole step: the two must not be mixed.
    """
    values, missing = [], None
    for basis in ("wall", "busy"):
        labels = (("basis", basis),)
        rows = window(view, ("trainer_mfu_ratio", labels))
        lacking = too_few(rows, trainer_mfu_ratio.hint)
        if lacking is None:
            values.append(Value(mean(rows, "trainer_mfu_ratio", labels), labels))
        elif rows or missing is None:
            missing = lacking
    return values or missing or []


COUNTERS = (
    Counter(
        name="trainer_wait_seconds_total",
        title="Trainer wait",
        unit="seconds",
        actor="trainer",
        help="Seconds the trainer waited for rollouts, each step counted once.",
        metric="trainer_wait_seconds",
        of="step",
    ),
    Counter(
        name="trainer_busy_seconds_total",
        title="Trainer busy",
        unit="seconds",
        actor="trainer",
        help="Seconds of forward and backward computation, each step counted once.",
        metric="trainer_compute_seconds",
        of="step",
    ),
    Counter(
        name="trained_tokens_total",
        title="Trained tokens",
        unit="tokens",
        actor="trainer",
        help="Tokens trained on, each step counted once.",
        metric="trained_tokens",
        of="step",
    ),
)
"""Counters of this topic, which are counted as records arrive."""
