"""[run.NAME.cost]: what the user states of GPUs and prices, as facts of the run. All errors at once."""

import math
from collections.abc import Mapping
from typing import Any

from server.config.errors import Problems
from server.signals.gpus import PRICES, ROLES, known_type

PER_GPU_HOUR, TARGET = "usd_per_gpu_hour", "target_usd_per_million_tokens"
COUNTS = ("gpus", "trainer_gpus", "generator_gpus")
# Key -> the fact it states; whose price must be known with it.
TYPES = {"gpu": "gpu_type", "trainer_gpu": "trainer_gpu_type", "generator_gpu": "generator_gpu_type"}
# More than any cluster has, any GPU-hour costs or any million tokens is worth: beyond, it is a typing error.
MOST_GPUS, MOST_USD = 1e6, 1e6

Facts = dict[str, str | float]


def parse(problems: Problems, table: Mapping[str, Any], where: str) -> Facts:
    """Facts of a run's table; what is wrong with them goes into ``problems``."""
    cost, where = problems.take(table, "cost", dict, {}, where), f"{where}.cost"
    problems.unknown(cost, {*TYPES, *COUNTS, PER_GPU_HOUR, TARGET}, where)
    found = _prices(problems, cost, where)
    found |= _numbers(problems, cost, (TARGET,), MOST_USD, where)
    found |= _numbers(problems, cost, COUNTS, MOST_GPUS, where)
    _add_up(problems, found, where)
    return found | _types(problems, cost, found, where)


def _prices(problems: Problems, cost: Mapping[str, Any], where: str) -> Facts:
    """One price, or a table of one per role."""
    given = cost.get(PER_GPU_HOUR)
    if not isinstance(given, dict):
        return _numbers(problems, cost, (PER_GPU_HOUR,), MOST_USD, where)
    problems.unknown(given, set(ROLES), f"{where}.{PER_GPU_HOUR}")
    found = _numbers(problems, given, ROLES, MOST_USD, f"{where}.{PER_GPU_HOUR}")
    return {f"{role}_{PER_GPU_HOUR}": usd for role, usd in found.items()}


def _numbers(problems: Problems, table: Mapping[str, Any], keys: tuple[str, ...], most: float, where: str) -> Facts:
    found: Facts = {}
    for key in keys:
        value = problems.take(table, key, (int, float), None, where)
        if value is None:
            continue
        if not (math.isfinite(value) and 0 < value <= most):
            problems.add(f"{where}.{key}", f"must be a positive number, at most {most:,.0f}")
        elif key in COUNTS and value != int(value):
            problems.add(f"{where}.{key}", "must be a whole number of GPUs")
        else:
            found[key] = float(value)
    return found


def _add_up(problems: Problems, found: Facts, where: str) -> None:
    """GPUs of a run that shares them may be told for both roles; more than all of them nobody has."""
    for key in COUNTS[1:]:
        if float(found.get(key, 0)) > float(found.get("gpus", math.inf)):
            problems.add(f"{where}.{key}", "more than gpus, which is all of the run's: leave one of them out")


def _types(problems: Problems, cost: Mapping[str, Any], found: Facts, where: str) -> Facts:
    """Types by fact; one without a default price needs one that is stated."""
    told: Facts = {}
    for key, fact in TYPES.items():
        name = problems.take(cost, key, str, "", where)
        if not name:
            continue
        told[fact] = name
        default = PRICES.get(known_type(name))
        if default is None or default.usd is None:
            for price in _unpriced(key, found):
                problems.add(f"{where}.{key}", f"{name!r} has no default price (those of {_known()} have): set {price}")
    return told


def _unpriced(key: str, found: Facts) -> list[str]:
    """Which keys would give it a price, where none does."""
    if PER_GPU_HOUR in found:
        return []
    if key == "gpu":
        return [] if all(f"{role}_{PER_GPU_HOUR}" in found for role in ROLES) else [PER_GPU_HOUR]
    role = key.removesuffix("_gpu")
    return [] if f"{role}_{PER_GPU_HOUR}" in found else [f"{PER_GPU_HOUR} = {{ {role} = ... }}"]


def _known() -> str:
    return ", ".join(sorted(name for name, price in PRICES.items() if price.usd is not None))
