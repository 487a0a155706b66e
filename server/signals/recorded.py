"""Shared by signals with values from rollout records: records first, else the trainer's log; and their statistics."""

import math
from collections.abc import Callable, Sequence

from collectors.model import Labels
from server.rollouts.spread import mean, quantile
from server.rollouts.window import NO_RECORDS, WINDOW_VERSIONS, Window
from server.signals.model import Answer, NotApplicable, Unknown, Value, View
from server.signals.step_windows import mean as mean_of_steps
from server.signals.step_windows import window as steps_window

Recorded = Callable[[View, Window], Answer]
QUANTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}


def window(view: View) -> Window:
    """The window of records as of the view's instant."""
    return view.rollouts.window(view.now)


def known(answer: Answer) -> bool:
    """Whether any value is a number."""
    return isinstance(answer, (list, tuple)) and any(not math.isnan(value.value) for value in answer)


def missing(why: str, *labels: Labels) -> list[Value]:
    """Unknown values for these label sets, with the reason."""
    return [Value(math.nan, one, why) for one in labels]


def recorded(compute: Recorded, hint: str = NO_RECORDS) -> Callable[[View], Answer]:
    """A compute function of records alone."""

    def asked(view: View) -> Answer:
        if not view.rollouts.met:
            return Unknown(hint)
        found = window(view)
        return Unknown(found.why) if found.why else compute(view, found)

    return asked


# Share of a step's samples that a version's records must hold. The first that come are of short rollouts: the others
# were dispatched before records began.
COVERED = 0.8


def covers(view: View, found: Window) -> bool:
    """Whether the records contain what the trainer consumed. Otherwise the trainer's log is the source.
    Records of ten versions that all contain less count another unit (several samples a rollout), and are used.
    """
    rows = steps_window(view, "trainer_samples")
    samples = mean_of_steps(rows, "trainer_samples") if rows else view.fact("batch_samples")
    if not samples:
        return True
    if not found.counts:
        # The first records of a run that went on before: of what ended in the last minutes, not of what was consumed.
        return False
    whole = [count >= COVERED * samples for count in found.counts]
    return all(whole) or (len(found.versions) >= WINDOW_VERSIONS and not any(whole))


def basis(view: View) -> str:
    """What the values of `either` come from: ``log`` or ``records``."""
    found = window(view)
    return "log" if found.why or found.sampled or not covers(view, found) else "records"


def either(
    compute: Recorded, reported: Callable[[View], Answer], *, log_first: bool = False
) -> Callable[[View], Answer]:
    """Uses records, and for values missing in them the trainer's log.

    Records of a sample, and those that do not hold all that was consumed yet, come after the log.

    Args:
        log_first: the log comes first in any case. For means of the trained samples: their population must not change
            when records begin, because it would look like a change of behaviour.
    """

    def asked(view: View) -> Answer:
        if not view.rollouts.met:
            return reported(view)
        found = window(view)
        own = Unknown(found.why) if found.why else compute(view, found)
        told = reported(view)
        first, second = (told, own) if log_first or found.sampled or not covers(view, found) else (own, told)
        if known(first):
            return _joined(first, second) if log_first else _filled(first, second)
        if known(second):
            return second
        # A user with records needs the reason why they do not suffice.
        return told if isinstance(told, NotApplicable) else own

    return asked


def _filled(answer: Answer, other: Answer) -> Answer:
    """Fills unknown values of the first from the second."""
    if not isinstance(answer, (list, tuple)) or not isinstance(other, (list, tuple)):
        return answer
    found: list[Value] = list(answer)
    others: dict[Labels, Value] = {value.labels: value for value in other}
    return [others.get(value.labels, value) if math.isnan(value.value) else value for value in found]


def _joined(answer: Answer, other: Answer) -> Answer:
    """As `_filled`, with the statistics that only the second has."""
    filled = _filled(answer, other)
    if not isinstance(filled, (list, tuple)) or not isinstance(other, (list, tuple)):
        return filled
    labels = {value.labels for value in filled}
    return [*filled, *(value for value in other if value.labels not in labels)]


def spread(values: Sequence[float], *names: str) -> list[Value]:
    """``{stat=...}`` of ascending values (at least one): mean, max, or one of `QUANTILES`."""
    return [Value(_stat(values, name), (("stat", name),)) for name in names]


def _stat(values: Sequence[float], name: str) -> float:
    if name in QUANTILES:
        return quantile(values, QUANTILES[name])
    return mean(values) if name == "mean" else float(values[-1])


def distribution(name: str, what: str, *stats: str) -> Recorded:
    """Statistics of one of `VALUES`; ``what``: the field of a record with it, named when it is missing."""

    def compute(_: View, found: Window) -> Answer:
        values = found.made.values.get(name)
        return spread(values, *stats) if values else Unknown(f"no record of the window reports it: log `{what}`")

    return compute
