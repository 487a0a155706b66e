"""Where a step goes: step = wait + compute + overhead (DESIGN section 4), each a mean over the last 10 steps.

Overhead is weight sync, checkpoint and what the trainer names otherwise. In synchronous modes the phase
`generation` takes the place of `wait`. A phase the trainer does not report is left out, never zero.
"""

from collections.abc import Sequence

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._steps import mean, too_few, window
from server.signals._window import Step

_HINT = "no phases yet: the trainer must log the step time and at least one phase of it (wait, compute, weight sync)"
_OVERHEADS = ("trainer_weight_sync_seconds", "trainer_checkpoint_seconds", "trainer_other_seconds")


def _phase(rows: Sequence[Step], phase: str, metric: str) -> list[Value]:
    """Mean over the steps that report it: a step without is not a step with zero."""
    known = [step for step in rows if (metric, ()) in step.values]
    return [Value(mean(known, metric), (("phase", phase),))] if known else []


def _overhead(rows: Sequence[Step]) -> list[Value]:
    """Per step of the window: a step without a checkpoint or a weight sync did not spend any time on it."""
    known = [metric for metric in _OVERHEADS if any((metric, ()) in step.values for step in rows)]
    return [Value(sum(mean(rows, metric) for metric in known), (("phase", "overhead"),))] if known else []


def _compute(view: View) -> Answer:
    rows = window(view, "trainer_step_seconds")
    missing = too_few(rows, _HINT)
    if missing is not None:
        return missing
    wait = ("generation", "generation_seconds") if view.synchronous else ("wait", "trainer_wait_seconds")
    values = _phase(rows, *wait) + _overhead(rows)
    return _with_compute(rows, values)


def _with_compute(rows: Sequence[Step], values: list[Value]) -> Answer:
    reported = _phase(rows, "compute", "trainer_compute_seconds")
    if reported or not values:
        return values + reported or Unknown(_HINT)
    # Only when something else is known is the rest of the step its computation.
    rest = mean(rows, "trainer_step_seconds") - sum(value.value for value in values)
    return [*values, Value(max(0.0, rest), (("phase", "compute"),))]


SIGNAL = Signal(
    name="trainer_phase_seconds",
    title="Where each step goes",
    unit="seconds",
    actor="trainer",
    help="Mean seconds per step by phase: wait (generation in synchronous runs), compute, overhead.",
    inputs=("trainer_step_seconds", "trainer_wait_seconds", "trainer_compute_seconds", *_OVERHEADS),
    cadence="step",
    compute=_compute,
    hint=_HINT,
)
