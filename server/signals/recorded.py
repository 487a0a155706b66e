"""Shared by signals with values from rollout records: records first, else the trainer's log; and their statistics."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import wraps

from collectors.model import Labels
from server.rollouts.groups import mean, quantile
from server.rollouts.window import NO_RECORDS, WINDOW_VERSIONS, Window
from server.signals.aggregates import mean as mean_of_steps
from server.signals.aggregates import window as steps_window
from server.signals.model import Answer, NotApplicable, Unknown, Value, View

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


def recorded(compute: Recorded) -> Callable[[View], Answer]:
    """Decorator: a signal of records alone."""

    @wraps(compute)
    def asked(view: View) -> Answer:
        if not view.rollouts.met:
            return Unknown(NO_RECORDS)
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
    reported: Callable[[View], Answer], *, log_first: bool = False
) -> Callable[[Recorded], Callable[[View], Answer]]:
    """Decorator: the signal uses records, and for values missing in them the trainer's log.

    Records of a sample, and those that do not hold all that was consumed yet, come after the log.

    Args:
        reported: the values of the log.
        log_first: the log comes first in any case. For means of the trained samples: their population must not change
            when records begin, because it would look like a change of behaviour.
    """

    def decorate(compute: Recorded) -> Callable[[View], Answer]:
        @wraps(compute)
        def asked(view: View) -> Answer:
            if not view.rollouts.met:
                return reported(view)
            found = window(view)
            own = Unknown(found.why) if found.why else compute(view, found)
            targets = reported(view)
            first, second = (targets, own) if log_first or found.sampled or not covers(view, found) else (own, targets)
            if known(first):
                return _joined(first, second) if log_first else _filled(first, second)
            if known(second):
                return second
            # A user with records needs the reason why they do not suffice.
            return targets if isinstance(targets, NotApplicable) else own

        return asked

    return decorate


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


def distribution(found: Window, name: str, *stats: str) -> Answer:
    """Statistics of one of `VALUES`, which is also the name of a record's field."""
    values = found.made.values.get(name)
    return spread(values, *stats) if values else Unknown(f"no record of the window reports it: log `{name}`")


# ---- record fields
# Which signals can be computed from which fields of rollout records; docs/reference/rollouts.md lists the fields.

_GROUPS = ("group_id", "reward")
_DRIFT = (("response_tokens", "consumptions"), ("turns", "consumptions"), ("tool_calls", "consumptions"))

REQUIRED: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "discarded_rollout_ratio": (("failures",),),
    "drift_baseline": _DRIFT,
    "drift_since_step": _DRIFT,
    "drift_slope_ratio": _DRIFT,
    "in_flight_ratio": (("parts", "the cap on rollouts in flight"),),
    "in_flight_rollouts": (("parts",),),
    "infra_failure_ratio": (("failures",),),
    "mixed_version_ratio": (("version_start", "version_finish"), ("token_versions",)),
    "old_state_turn_ratio": (("turn versions",),),
    "production_samples_per_second": (("finished_at",), ("consumptions",)),
    "response_length_drift_ratio": (("response_tokens", "consumptions"),),
    "response_tokens": (("response_tokens",),),
    "reward": (("reward",),),
    "rollout_exit_ratio": (("consumptions",), ("exit",)),
    "rollouts_in_flight": (("parts",),),
    "sample_age_seconds": (("finished_at", "consumptions"),),
    "solve_band_ratio": (_GROUPS,),
    "solve_ratio": (_GROUPS,),
    "staleness_estimated_versions": (("dispatched_at", "finished_at", "consumptions"),),
    "staleness_part_versions": (
        ("version_start", "version_finish", "consumptions"), ("token_versions", "consumptions"),
    ),
    "staleness_versions": (
        ("version_start", "consumptions"), ("version_dispatched", "consumptions"), ("token_versions", "consumptions"),
    ),
    "tail_index_ratio": (("response_tokens",),),
    "tool_calls": (("tool_calls",),),
    "tool_calls_drift_ratio": (("tool_calls", "consumptions"),),
    "turns": (("turns",),),
    "turns_drift_ratio": (("turns", "consumptions"),),
    "zero_advantage_environment_ratio": ((*_GROUPS, "environment"),),
    "zero_advantage_group_ratio": (_GROUPS,),
    "zero_advantage_groups": (_GROUPS,),
    "zero_advantage_low_ratio": (_GROUPS,),
    "zero_advantage_ratio": (_GROUPS,),
}  # fmt: skip
"""Signal -> sets of values of `Collector.record_fields`; any one of the sets is enough."""

NEEDS_ALL_ROLLOUTS = frozenset({
    "discarded_rollout_ratio", "in_flight_ratio", "in_flight_rollouts", "infra_failure_ratio",
    "production_samples_per_second", "rollout_exit_ratio", "rollouts_in_flight",
})  # fmt: skip
"""Signals that count rollouts. A sample of the rollouts does not give their number."""


def available_signals(fields: Collection[str]) -> list[str]:
    """The signals that can be computed from records with these fields, by name; none without fields."""
    return [signal for signal in REQUIRED if not missing_fields(signal, fields)]


def missing_fields(signal: str, fields: Collection[str]) -> tuple[str, ...]:
    """The fields missing from the required set that lacks the fewest; () if the signal can be computed."""
    if signal in NEEDS_ALL_ROLLOUTS and "sampled" in fields:
        return ("all rollouts",)
    return min((tuple(name for name in names if name not in fields) for names in REQUIRED[signal]), key=len)
