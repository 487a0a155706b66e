"""Runs as the rules see them, written as one would say them: series names of the status contract and their numbers."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from collectors.model import Labels
from server.signals.model import TargetState
from server.signals.window import Step
from server.verdict.model import VerdictInput

NOW = 1_000_000.0

HEALTHY: Mapping[str, float] = {
    "trainer_step_seconds": 30.0,
    "trainer_wait_ratio": 0.06,
    "trainer_stall_ratio": 0.02,
    "trainer_samples_per_second": 8.5,
    "capacity_samples_per_second": 9.04,
    "compute_capacity_samples_per_second": 10.0,
    'trainer_overhead_seconds{phase="weight_sync"}': 1.5,
    'trainer_overhead_seconds{phase="checkpoint"}': 0.5,
    'trainer_overhead_seconds{phase="other"}': 0.6,
    "queue_batches": 1.5,
    "queue_arrivals_samples_per_second": 8.6,
    'generator_requests{state="running"}': 56.0,
    'generator_requests{state="waiting"}': 0.0,
    "kv_cache_usage_ratio": 0.5,
    "kv_concurrency_limit": 110.0,
    'generator_engines{state="up"}': 4.0,
    'in_flight_rollouts{state="generating"}': 57.0,
    "in_flight_ratio": 0.95,
    'zero_advantage_ratio{basis="completed"}': 0.3,
    'zero_advantage_group_ratio{basis="completed",cause="all_solved"}': 0.15,
    'zero_advantage_group_ratio{basis="completed",cause="none_solved"}': 0.15,
    'reward{stat="mean"}': 0.5,
}
"""An asynchronous run whose generator and trainer are matched: 256 samples a step of 30 s."""

STARVED: Mapping[str, float] = {
    "trainer_wait_ratio": 0.40,
    "trainer_samples_per_second": 5.42,
    "queue_batches": 0.4,
    "queue_arrivals_samples_per_second": 5.4,
}
"""The same waiting 40 % of its step: 9.04 samples/s could be taken and 5.4 arrive."""

SYNC: Mapping[str, float] = {
    "trainer_step_seconds": 60.0,
    "trainer_stall_ratio": 0.05,
    "trainer_samples_per_second": 4.27,
    "compute_capacity_samples_per_second": 12.8,
    'trainer_phase_seconds{phase="generation"}': 36.0,
    'trainer_phase_seconds{phase="compute"}': 20.0,
    'trainer_phase_seconds{phase="overhead"}': 4.0,
    'trainer_overhead_seconds{phase="weight_sync"}': 2.0,
    'generator_requests{state="running"}': 40.0,
    'generator_requests{state="waiting"}': 0.0,
    "kv_cache_usage_ratio": 0.4,
    "kv_concurrency_limit": 110.0,
    "tail_bubble_ratio": 0.3,
    'zero_advantage_ratio{basis="completed"}': 0.3,
}
"""A synchronous colocated run: 36 s of generation, 20 s of training."""


@dataclass(frozen=True)
class Answer:
    ts: float
    value: float | None
    why: str = ""


def key(series: str) -> tuple[str, Labels]:
    name, _, rest = series.partition("{")
    return name, tuple(sorted(re.findall(r'(\w+)="([^"]*)"', rest)))


def steps(*waits: float, seconds: float = 30.0) -> list[Step]:
    """One step per share of it that was waited, oldest first."""
    values = [{("trainer_step_seconds", ()): seconds, ("trainer_wait_seconds", ()): seconds * wait} for wait in waits]
    return [Step("trainer", 1, n, NOW - (len(waits) - n) * seconds, dict(one)) for n, one in enumerate(values, 1)]


def seen(
    *told: Mapping[str, float | None], mode: str = "async", lifecycle: str = "running", now: float = NOW,
    last: Sequence[Step] = (), targets: Sequence[TargetState] = (), old: float = 2.0, **facts: float,
) -> VerdictInput:  # fmt: skip
    """The last word on each series counts; None takes it away, and ``name*`` with None all that begin with it.

    ``old``: seconds since all of it was reported. The task uses sandboxes unless `has_sandbox` says otherwise.
    """
    numbers: dict[str, float] = {}
    for part in told:
        for series, value in part.items():
            if value is None:
                numbers = {k: v for k, v in numbers.items() if not _matches(series, k)}
            else:
                numbers[series] = value
    signals: dict[str, dict[Labels, Answer]] = {}
    for series, value in numbers.items():
        name, labels = key(series)
        signals.setdefault(name, {})[labels] = Answer(now - old, value)
    return VerdictInput(now, mode, lifecycle, {"has_sandbox": 1.0, **facts}, signals, targets, steps=last)


def _matches(pattern: str, series: str) -> bool:
    return series.startswith(pattern[:-1]) if pattern.endswith("*") else series == pattern
