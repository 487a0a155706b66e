"""Time and throughput of the trainer's steps."""

from collections.abc import Sequence

from server.signals.aggregates import SYNC_HAS_NO_WAIT, mean, not_in_sync, row_limit, single, too_few, total, window
from server.signals.model import Answer, Counter, NotApplicable, Signal, Unknown, Value, View
from server.signals.window import Step

# ---- trainer_step_seconds

# How long a trainer step takes, mean over the last 10 steps.

_TRAINER_STEP_SECONDS_HINT = (
    "no step time yet: the trainer must log one (prime-rl `time/step`, TRL `step_time` or `perf/step_s`)"
)

TRAINER_STEP_SECONDS = Signal(
    name="trainer_step_seconds",
    title="Trainer step",
    unit="seconds",
    actor="trainer",
    help="Wall time of a trainer step, mean over the last 10 steps.",
    inputs=("trainer_step_seconds",),
    cadence="step",
    compute=single("trainer_step_seconds", _TRAINER_STEP_SECONDS_HINT),
    hint=_TRAINER_STEP_SECONDS_HINT,
)


# ---- trainer_phase_seconds

# Phases of a step: step = wait + compute + overhead, each a mean over the last 10 steps.
#
# Overhead is weight sync, checkpoint and other phases of the trainer. In synchronous modes the phase
# `generation` takes the place of `wait`. A phase the trainer does not report is left out, never zero.

_TRAINER_PHASE_SECONDS_HINT = (
    "no phases yet: the trainer must log the step time and at least one phase of it (wait, compute, weight sync)"
)
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


def _trainer_phase_seconds(view: View) -> Answer:
    rows = window(view, "trainer_step_seconds")
    missing = too_few(rows, _TRAINER_PHASE_SECONDS_HINT)
    if missing is not None:
        return missing
    values = _fetch(view, rows) + _overhead(rows)
    return _with_compute(rows, values)


def _with_compute(rows: Sequence[Step], values: list[Value]) -> Answer:
    reported = _phase(rows, "compute", "trainer_compute_seconds")
    if reported or not values:
        return values + reported or Unknown(_TRAINER_PHASE_SECONDS_HINT)
    # Without any other phase the rest of the step is not known to be computation.
    rest = mean(rows, "trainer_step_seconds") - sum(value.value for value in values)
    return [*values, Value(max(0.0, rest), (("phase", "compute"),))]


TRAINER_PHASE_SECONDS = Signal(
    name="trainer_phase_seconds",
    title="Where each step goes",
    unit="seconds",
    actor="trainer",
    help="Mean seconds per step by phase: wait (generation in synchronous runs), compute, overhead.",
    inputs=("trainer_step_seconds", "trainer_wait_seconds", "trainer_compute_seconds", *_OVERHEADS),
    cadence="step",
    compute=_trainer_phase_seconds,
    hint=_TRAINER_PHASE_SECONDS_HINT,
)


# ---- trainer_wait_ratio

# The share of its step that the trainer spends waiting for rollouts: a ratio of sums over the last 10 steps.

_TRAINER_WAIT_RATIO_HINT = (
    "this trainer reports no wait time: it must log one next to the step time "
    "(prime-rl `time/wait_for_batch`, TRL async `perf/rollout_wait_s`)"
)


def _trainer_wait_ratio(view: View) -> Answer:
    rows = window(view, "trainer_wait_seconds", "trainer_step_seconds")
    missing = too_few(rows, _TRAINER_WAIT_RATIO_HINT)
    if missing is not None:
        return missing
    step = total(rows, "trainer_step_seconds")
    return [Value(total(rows, "trainer_wait_seconds") / step)] if step > 0 else [Value(0.0)]


TRAINER_WAIT_RATIO = Signal(
    name="trainer_wait_ratio",
    title="Trainer wait",
    unit="ratio",
    actor="trainer",
    help="Share of the step in which the trainer waits for rollouts: sum of wait / sum of step over the last 10 steps.",
    inputs=("trainer_wait_seconds", "trainer_step_seconds"),
    cadence="step",
    compute=not_in_sync(SYNC_HAS_NO_WAIT, _trainer_wait_ratio),
    hint=_TRAINER_WAIT_RATIO_HINT,
    # 15 %: the wait that batch noise alone causes in a balanced run; 40 %: more than a published problem case (30 %).
    watch=0.15,
    critical=0.40,
)


# ---- trainer_wait_seconds_total

# Seconds the trainer waited for rollouts, each step counted once.

TRAINER_WAIT_SECONDS_TOTAL = Counter(
    name="trainer_wait_seconds_total",
    title="Trainer wait",
    unit="seconds",
    actor="trainer",
    help="Seconds the trainer waited for rollouts, each step counted once.",
    metric="trainer_wait_seconds",
    of="step",
    by=(),
)


# ---- trainer_busy_seconds_total

# Seconds of forward and backward computation, each step counted once.

TRAINER_BUSY_SECONDS_TOTAL = Counter(
    name="trainer_busy_seconds_total",
    title="Trainer busy",
    unit="seconds",
    actor="trainer",
    help="Seconds of forward and backward computation, each step counted once.",
    metric="trainer_compute_seconds",
    of="step",
    by=(),
)


# ---- trainer_overhead_seconds

# Time of a step other than waiting and computing, by phase: mean seconds per step over the last 10 steps.

_TRAINER_OVERHEAD_SECONDS_HINT = (
    "no overhead by cause: the trainer must log the step time and its weight sync, checkpoint or evaluation"
)
PHASES = {
    "weight_sync": "trainer_weight_sync_seconds",
    "checkpoint": "trainer_checkpoint_seconds",
    "eval": "trainer_eval_seconds",
    "other": "trainer_other_seconds",
}


def _trainer_overhead_seconds(view: View) -> Answer:
    rows = window(view, "trainer_step_seconds")
    measured = {phase: metric for phase, metric in PHASES.items() if any((metric, ()) in row.values for row in rows)}
    missing = too_few(rows if measured else [], _TRAINER_OVERHEAD_SECONDS_HINT)
    if missing is not None:
        return missing
    # A step without a checkpoint spent none of its time on one: the mean is over all steps of the window.
    seconds = {phase: mean(rows, metric) for phase, metric in measured.items()}
    if "eval" in seconds and "other" in seconds:
        # An evaluation inside the step is part of the remainder.
        seconds["other"] = max(0.0, seconds["other"] - seconds["eval"])
    return [Value(value, (("phase", phase),)) for phase, value in seconds.items()]


TRAINER_OVERHEAD_SECONDS = Signal(
    name="trainer_overhead_seconds",
    title="Overhead by cause",
    unit="seconds",
    actor="trainer",
    help="Mean seconds per step by cause: weight_sync, checkpoint, eval, other (the rest of the step), last 10 steps.",
    inputs=("trainer_step_seconds", *PHASES.values()),
    cadence="step",
    compute=_trainer_overhead_seconds,
    hint=_TRAINER_OVERHEAD_SECONDS_HINT,
)


# ---- trainer_stall_ratio

# Whether the trainer has stopped: the age of its newest step relative to the usual interval of its rows.

_TRAINER_STALL_RATIO_HINT = "no trainer step so far: add the run's directory as a target"
OVER = {
    "finished": "the run is finished",
    "crashed": "the run has crashed",
    "paused": "the run is paused",
}


def _trainer_stall_ratio(view: View) -> Answer:
    if view.lifecycle in OVER:
        return NotApplicable(OVER[view.lifecycle])
    newest = view.steps.newest_of_all()
    if newest is None:
        return Unknown(_TRAINER_STALL_RATIO_HINT)
    # A trainer that does not answer is not reported as stalled, because another alert covers it.
    trainers = [target for target in view.targets if target.actor == "trainer" and target.last_ok_ts is not None]
    if trainers and not any(target.answers(view.now) for target in trainers):
        return Unknown("the trainer's target does not answer: whether it completes steps is unknown")
    # The latest of: its event time, when it was first seen (its clock may be behind), and the restart of the run.
    since = max(newest.ts, view.step_met or newest.ts, view.running_since or newest.ts)
    return [Value(max(0.0, view.now - since) / row_limit(view.steps))]


TRAINER_STALL_RATIO = Signal(
    name="trainer_stall_ratio",
    title="Stall",
    unit="ratio",
    actor="trainer",
    help="Seconds since the newest trainer step / max(6 x the usual step, 30 min); 1 or more is stalled.",
    inputs=("trainer_step_seconds",),
    cadence="tick",
    compute=_trainer_stall_ratio,
    hint=_TRAINER_STALL_RATIO_HINT,
    watch=0.5,
    critical=1.0,
)


# ---- trainer_fault

# A collective that timed out, or a worker that died: the trainer's own log reports it long before its step is late.

_TRAINER_FAULT_HINT = "the trainer's log reports no fault after its newest step"


def _trainer_fault(view: View) -> Answer:
    kind, since = view.facts.get("fault_kind"), view.fact("fault_since") or 0.0
    if not kind or view.now < since or view.lifecycle in OVER:
        return NotApplicable(_TRAINER_FAULT_HINT)
    return [Value(1.0, (("fault", str(kind)),))]


TRAINER_FAULT = Signal(
    name="trainer_fault",
    title="Fault",
    unit="",
    actor="trainer",
    help="1 if the trainer's printed log reports a fault after its newest step: a collective that timed out, a hang "
    "that the watchdog saw, or a worker that died. A new step ends it.",
    inputs=(),
    cadence="tick",
    compute=_trainer_fault,
    hint=_TRAINER_FAULT_HINT,
    critical=1.0,
)


# ---- trainer_mfu_ratio

# Model FLOPs utilisation as the trainer reports it, by its own basis.
#
# `busy` counts the forward and backward seconds only (prime-rl), `wall` the whole step: the two must not be mixed.

_TRAINER_MFU_RATIO_HINT = "this trainer reports no MFU (prime-rl `perf/mfu`, TRL async `perf/mfu_wall_clock`)"


def _trainer_mfu_ratio(view: View) -> Answer:
    values, missing = [], None
    for basis in ("wall", "busy"):
        labels = (("basis", basis),)
        rows = window(view, ("trainer_mfu_ratio", labels))
        lacking = too_few(rows, _TRAINER_MFU_RATIO_HINT)
        if lacking is None:
            values.append(Value(mean(rows, "trainer_mfu_ratio", labels), labels))
        elif rows or missing is None:
            missing = lacking
    return values or missing or []


TRAINER_MFU_RATIO = Signal(
    name="trainer_mfu_ratio",
    title="MFU",
    unit="ratio",
    actor="trainer",
    help="Model FLOPs utilisation, mean over the last 10 steps; basis wall or busy, as reported.",
    inputs=("trainer_mfu_ratio",),
    cadence="step",
    compute=_trainer_mfu_ratio,
    hint=_TRAINER_MFU_RATIO_HINT,
)


# ---- trained_tokens_total

# Tokens trained on, each step counted once.

TRAINED_TOKENS_TOTAL = Counter(
    name="trained_tokens_total",
    title="Trained tokens",
    unit="tokens",
    actor="trainer",
    help="Tokens trained on, each step counted once.",
    metric="trained_tokens",
    of="step",
    by=(),
)


SIGNALS: tuple[Signal | Counter, ...] = (
    TRAINER_STEP_SECONDS,
    TRAINER_PHASE_SECONDS,
    TRAINER_WAIT_RATIO,
    TRAINER_WAIT_SECONDS_TOTAL,
    TRAINER_BUSY_SECONDS_TOTAL,
    TRAINER_OVERHEAD_SECONDS,
    TRAINER_STALL_RATIO,
    TRAINER_FAULT,
    TRAINER_MFU_RATIO,
    TRAINED_TOKENS_TOTAL,
)
