"""Estimates a what-if of a run: the numbers of its status, the range of each change, and the result."""

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from msgspec import Struct

from server.query.types import Status
from server.signals.gpus import ROLES, Fleet, fleet
from server.verdict.what_if import (
    DELTAS,
    FIGURES,
    NEEDS,
    Changes,
    CurrentNumbers,
    Figure,
    RunSituation,
    WhatIf,
    what_if,
)

__all__ = [
    "DELTAS",
    "FIGURES",
    "MOST",
    "NEEDS",
    "Changes",
    "CurrentNumbers",
    "Figure",
    "OutOfRange",
    "Range",
    "RunSituation",
    "WhatIf",
    "WhatIfEstimate",
    "changes_of",
    "estimate",
]  # fmt: skip

# Accepted values (lowest, highest): a number beyond is a mistake. A run's own limits are narrower.
MOST: Mapping[str, tuple[float, float]] = {
    "move_gpus": (-100_000, 100_000),
    "add_engines": (-100_000, 100_000),
    "concurrency": (1, 10_000_000),
    "oversampling": (1, 16),
    "group_size": (2, 1024),
    # Below it tokens no longer dominate a rollout's time.
    "max_response_tokens": (16, 10_000_000),
    "max_staleness": (1, 10_000),
    "zero_advantage": (0, 0.99),
}

# The laws are those of the run's own neighbourhood: what is proportional there is not at a thousand times of it.
REACH = 8.0
_SCALED = {
    "concurrency": "rollouts in flight", "oversampling": "rollouts started per rollout kept",
    "group_size": "rollouts per group", "max_response_tokens": "tokens", "max_staleness": "versions",
}  # fmt: skip

LABEL = "an estimate from the verdict's throughput model, not a measurement"
# Below this share of zero-advantage groups a filter cannot be detected.
_FEW = 0.05


class Range(Struct, frozen=True):
    """What a slider of a change spans.

    Attributes:
        today: None if unknown, so that it cannot be changed: ``needs`` says how to report it.
    """

    name: str
    low: float
    high: float
    step: float
    today: float | None
    unit: str
    needs: str = ""


class WhatIfEstimate(Struct, frozen=True):
    """A run's numbers, how far they may be changed, and what comes of the changes.

    ``then``: the run with the changes. ``missing``: input -> how to report it.
    """

    run: str
    label: str
    changes: Mapping[str, float]
    now: RunSituation
    then: RunSituation
    assumptions: tuple[str, ...]
    missing: Mapping[str, str]
    inputs: CurrentNumbers
    ranges: Mapping[str, Range]


class OutOfRange(ValueError):
    """A change that is impossible in this run; its text states the possible range."""


def estimate(status: Status, changes: Changes) -> WhatIfEstimate:
    """The estimate for a run.

    Raises:
        OutOfRange: there are not as many GPUs or engines; or a number is more than `REACH` times today's, or less.
    """
    now = today(status)
    for name, low, high in _limits(now):
        value = getattr(changes, name)
        if not low <= value <= high:
            raise OutOfRange(f"{name} {value}: this run has {_has(name, now)}, so {low:g} to {high:g}")
    for name, unit in _SCALED.items():
        _reaches(name, getattr(now, name), getattr(changes, name), unit)
    if now.engines and now.generator_gpus and _left(now, now.engines, now.generator_gpus, changes) <= 0:
        raise OutOfRange("moving GPUs and adding engines together leave the generator nothing")
    found = what_if(now, changes)
    return WhatIfEstimate(
        status.run, LABEL, found.changes, found.now, found.then, found.assumptions, found.missing, now, ranges(now)
    )


def _reaches(name: str, today: float | None, value: float | None, unit: str) -> None:
    if today is None or value is None or today / REACH <= value <= today * REACH:
        return
    lowest, highest = (max(today / REACH, MOST[name][0]), min(today * REACH, MOST[name][1]))
    far = f"{_plain(lowest)} to {_plain(highest)}, from an eighth of it to eight times as many"
    raise OutOfRange(f"{name} {_plain(value)}: it is now {_plain(today)} {unit}, and the estimate holds for {far}")


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


# ---- today


class _StatusValues:
    """Values of a status by signal and labels."""

    def __init__(self, status: Status) -> None:
        self._signals = [one for one in status.signals.values() if one.value is not None]
        self._facts = status.facts

    def values(self, signal: str, **labels: str) -> list[float]:
        required = labels.items()
        return [
            item.value
            for item in self._signals
            if item.signal == signal and item.value is not None and required <= item.labels.items()
        ]

    def get(self, signal: str, **labels: str) -> float | None:
        matches = self.values(signal, **labels)
        return matches[0] if matches else None

    def total(self, signal: str, **labels: str) -> float | None:
        matches = self.values(signal, **labels)
        return sum(matches) if matches else None

    def fact(self, name: str) -> float | None:
        """A number above zero; frameworks write 0 or -1 for "no limit"."""
        value = self._facts.get(name)
        return float(value) if isinstance(value, (int, float)) and 0 < value < math.inf else None


def today(status: Status) -> CurrentNumbers:
    """The run's numbers as its status has them."""
    status_values, verdict = _StatusValues(status), status.verdict
    gpus = fleet({name: value for name, value in status.facts.items() if _counts(value)}, status.mode)
    numbers: dict[str, Any] = (
        _rates(status_values) | _generation(status_values) | _learning(status_values, status.facts)
    )
    numbers |= _money(status_values, gpus) | {f"{role}_gpus": getattr(gpus, role).gpus for role in ROLES}
    return CurrentNumbers(
        outcome=verdict.outcome if verdict.named else "", apart=_synchronous_note(status.mode),
        one_pool=_one_pool(status.mode), **numbers,
    )  # fmt: skip


def _counts(value: str | float) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _synchronous_note(mode: str) -> str:
    """A synchronous step is generation and training one after the other: no queue, and another arithmetic."""
    note = "synchronous run: trainer and generator take turns, so neither waits for the other at a queue"
    return note if mode.startswith("sync") else ""


def _one_pool(mode: str) -> str:
    return "trainer and generator share their GPUs: none can move" if mode.endswith("colocated") else ""


def _rates(status_values: _StatusValues) -> dict[str, float | None]:
    trained, step = status_values.get("trainer_samples_per_second"), status_values.get("trainer_step_seconds")
    compute = status_values.get("trainer_phase_seconds", phase="compute")
    has_times = trained is not None and step is not None and compute
    return {
        "capacity": status_values.get("capacity_samples_per_second"),
        "compute_capacity": trained * step / compute if has_times and trained and step and compute else None,
        "trained": trained,
        "wait": status_values.get("trainer_wait_ratio"),
        "step_seconds": step,
    }


def _generation(status_values: _StatusValues) -> dict[str, float | None]:
    in_flight, busy = status_values.get("rollouts_in_flight"), status_values.total("generator_requests")
    return {
        "engines": status_values.get("generator_engines", state="up") or None,
        "concurrency": status_values.fact("max_in_flight") or in_flight or None,
        "generating": min(1.0, busy / in_flight) if busy and in_flight else None,
        "kv_ceiling": status_values.get("kv_concurrency_limit"),
        "response_tokens": status_values.get("response_tokens", stat="mean"),
        "max_response_tokens": status_values.fact("max_response_tokens"),
        "truncation": status_values.get("truncation_ratio"),
    }


def _learning(status_values: _StatusValues, facts: Mapping[str, str | float]) -> dict[str, Any]:
    def left(way: str) -> float | None:
        return status_values.get("rollout_exit_ratio", exit=way)

    stale, trained = left("stale"), left("trained")
    staleness = status_values.get("staleness_versions", level="trajectory", stat="mean")
    return {
        "group_size": status_values.fact("group_size"),
        "solve_ratio": status_values.get("solve_ratio", stat="mean"),
        "oversampling": _oversampling(left("aborted_oversample"), left("surplus"))
        or status_values.fact("oversampling"),
        "zero_advantage": status_values.get("zero_advantage_ratio", basis="completed"),
        "filtered": _filtered(status_values, facts),
        "max_staleness": status_values.fact("max_staleness_versions"),
        "staleness": staleness if staleness is not None else status_values.get("staleness_estimated_versions"),
        "stale_share": stale / (stale + trained) if stale is not None and trained else None,
    }


def _oversampling(aborted: float | None, surplus: float | None) -> float | None:
    thrown = (aborted or 0.0) + (surplus or 0.0)
    return 1 / (1 - thrown) if (aborted, surplus) != (None, None) and thrown < 1 else None


def _filtered(status_values: _StatusValues, facts: Mapping[str, str | float]) -> bool | None:
    """As stated; else what is admitted has far fewer groups without a gradient than what is completed, or has not."""
    stated = facts.get("filters_zero_advantage")
    if isinstance(stated, (int, float)):
        return bool(stated)
    completed, admitted = (
        status_values.get("zero_advantage_ratio", basis=basis) for basis in ("completed", "admitted")
    )
    if completed is None or admitted is None or completed < _FEW:
        return None
    return admitted < completed / 2


def _idle(status_values: _StatusValues) -> float | None:
    """Idle dollars as in the verdict: causes that report 0 when they do not apply are no evidence alone."""
    total = status_values.total("idle_usd_per_hour")
    by_cause = [status_values.get("idle_usd_per_hour", cause=cause) for cause in ("stalled", "starting", "paused")]
    from_causes = sum(1 for usd in by_cause if usd is not None)
    return None if total == 0 and from_causes == len(status_values.values("idle_usd_per_hour")) else total


def _money(status_values: _StatusValues, gpus: Fleet) -> dict[str, float | None]:
    # One price is all the model has: GPUs of two prices are not moved between the sides for nothing.
    prices = {pool.usd_per_gpu_hour for pool in gpus.pools}
    price = prices.pop() if len(prices) == 1 else None
    return {
        "usd_per_gpu_hour": price,
        "usd_per_million_tokens": status_values.get("cost_usd_per_million_tokens", of="trained"),
        "idle_usd_per_hour": _idle(status_values),
    }


# ---- how far


def _limits(now: CurrentNumbers) -> list[tuple[str, float, float]]:
    """(change, lowest, highest) where the run itself bounds it: one GPU and one engine stay on either side."""
    limits: list[tuple[str, float, float]] = []
    if now.trainer_gpus and now.generator_gpus:
        limits.append(("move_gpus", 1 - now.generator_gpus, now.trainer_gpus - 1))
    if now.engines:
        limits.append(("add_engines", 1 - now.engines, 100_000.0))
    return limits


def _left(now: CurrentNumbers, engines: float, gpus: float, changes: Changes) -> float:
    """Share of the generator that both changes leave, as the model counts it."""
    return 1 + changes.add_engines / engines + (0.0 if now.one_pool else changes.move_gpus / gpus)


def _has(name: str, now: CurrentNumbers) -> str:
    if name == "add_engines":
        return f"{now.engines:g} engines"
    return f"{now.trainer_gpus:g} GPUs that train and {now.generator_gpus:g} that generate"


def ranges(now: CurrentNumbers) -> Mapping[str, Range]:
    """What a slider of each change spans, around today's value."""
    limits = {name: (low, high) for name, low, high in _limits(now)}
    low, high = limits.get("move_gpus", (0.0, 0.0))
    least, _ = limits.get("add_engines", (0.0, 0.0))
    gpus = "" if "move_gpus" in limits else _first(now, "trainer_gpus", "generator_gpus")
    engines = now.engines or 0.0
    spans = [
        Range("move_gpus", low, high, 1, None if gpus or now.one_pool else 0.0, "GPUs", now.one_pool or gpus),
        Range("add_engines", least, max(8.0, 2 * engines), 1, 0.0 if engines else None, "engines",
              "" if engines else NEEDS["engines"]),
        _around(now, "concurrency", 0.25, 4, "rollouts", 1),
        _around(now, "oversampling", 0, 2, "per kept one", 0.05, at_least=1.0, at_most=3.0),
        _around(now, "group_size", 0.5, 4, "rollouts", 1, at_least=2.0),
        _around(now, "max_response_tokens", 0.25, 2, "tokens", 64, at_least=64.0),
        _around(now, "max_staleness", 0.5, 4, "versions", 1, at_least=1.0, at_most=8.0),
        _around(now, "zero_advantage", 0, 2, "ratio", 0.01, at_least=0.0, at_most=0.95),
    ]  # fmt: skip
    return {item.name: item for item in spans}


def _first(now: CurrentNumbers, *names: str) -> str:
    return next((NEEDS[name] for name in names if not getattr(now, name)), "")


def _around(
    now: CurrentNumbers,
    name: str,
    down: float,
    up: float,
    unit: str,
    step: float,
    at_least: float = 1.0,
    at_most: float = 0.0,
) -> Range:
    """From ``down`` to ``up`` times today's value, at least up to ``at_most``; shares end there."""
    value: float | None = getattr(now, name)
    if value is None:
        return Range(name, at_least, max(at_least, at_most), step, None, unit, NEEDS[name])
    low, high = max(at_least, down * value), max(at_most, up * value)
    if unit == "ratio":
        low, high = 0.0, at_most
    low, high = math.floor(low / step) * step, math.ceil(high / step) * step
    return Range(name, min(low, value), max(high, value), step, value, unit)


def changes_of(query: Mapping[str, str]) -> Changes:
    """Changes from the query of an address; invalid values are left out."""
    changes: dict[str, Any] = {}
    for field in fields(Changes):
        value = _number(query.get(field.name, ""))
        low, high = MOST[field.name]
        if value is not None and low <= value <= high:
            changes[field.name] = value if field.name in _FRACTIONS else round(value)
    return Changes(**changes)


_FRACTIONS = ("oversampling", "zero_advantage")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
