"""`[run.NAME.cost]`: the GPUs and prices that the user states, as facts of the run."""

import math
from collections.abc import Mapping
from typing import Any

from server.config.errors import Problems
from server.signals.gpus import PRICES, ROLES, known_type

PER_GPU_HOUR = "usd_per_gpu_hour"
TARGET = "target_usd_per_million_tokens"
COUNTS = ("gpus", "trainer_gpus", "generator_gpus")
# Key -> the fact it states. A GPU type needs a price.
TYPES = {"gpu": "gpu_type", "trainer_gpu": "trainer_gpu_type", "generator_gpu": "generator_gpu_type"}
# Larger numbers are typing errors: no cluster has as many GPUs, no GPU-hour or million tokens costs as much.
MOST_GPUS = 1e6
MOST_USD = 1e6

Facts = dict[str, str | float]


def parse(problems: Problems, table: Mapping[str, Any], where: str) -> Facts:
    """Facts of a run's table; errors go into ``problems``."""
    cost, where = problems.take(table, "cost", dict, {}, where), f"{where}.cost"
    problems.unknown(cost, {*TYPES, *COUNTS, PER_GPU_HOUR, TARGET}, where)
    prices = _prices(problems, cost, where)
    prices |= _numbers(problems, cost, (TARGET,), MOST_USD, where)
    prices |= _numbers(problems, cost, COUNTS, MOST_GPUS, where)
    _add_up(problems, prices, where)
    return prices | _types(problems, cost, prices, where)


def _prices(problems: Problems, cost: Mapping[str, Any], where: str) -> Facts:
    """One price, or a table with a price for each role."""
    given = cost.get(PER_GPU_HOUR)
    if not isinstance(given, dict):
        return _numbers(problems, cost, (PER_GPU_HOUR,), MOST_USD, where)
    problems.unknown(given, set(ROLES), f"{where}.{PER_GPU_HOUR}")
    prices = _numbers(problems, given, ROLES, MOST_USD, f"{where}.{PER_GPU_HOUR}")
    return {f"{role}_{PER_GPU_HOUR}": usd for role, usd in prices.items()}


def _numbers(problems: Problems, table: Mapping[str, Any], keys: tuple[str, ...], limit: float, where: str) -> Facts:
    numbers: Facts = {}
    for key in keys:
        value = problems.take(table, key, (int, float), None, where)
        if value is None:
            continue
        if not (math.isfinite(value) and 0 < value <= limit):
            problems.add(f"{where}.{key}", f"must be a positive number, at most {limit:,.0f}")
        elif key in COUNTS and value != int(value):
            problems.add(f"{where}.{key}", "must be a whole number of GPUs")
        else:
            numbers[key] = float(value)
    return numbers


def _add_up(problems: Problems, prices: Facts, where: str) -> None:
    """No role may have more GPUs than the run. Both may have all of them, because colocated roles share GPUs."""
    for key in COUNTS[1:]:
        if float(prices.get(key, 0)) > float(prices.get("gpus", math.inf)):
            problems.add(f"{where}.{key}", "is more than gpus, the GPUs of the whole run: leave one of the two out")


def _types(problems: Problems, cost: Mapping[str, Any], prices: Facts, where: str) -> Facts:
    """Fact -> GPU type. A type without a default price needs a stated one."""
    types: Facts = {}
    for key, fact in TYPES.items():
        name = problems.take(cost, key, str, "", where)
        if not name:
            continue
        types[fact] = name
        default = PRICES.get(known_type(name))
        if default is None or default.usd is None:
            for price in _unpriced(key, prices):
                problems.add(
                    f"{where}.{key}",
                    f"{name!r} has no default price (default prices exist for {_priced_types()}): set {price}",
                )
    return types


def _unpriced(key: str, prices: Facts) -> list[str]:
    """Keys that would set the missing price; [] if there is a price."""
    if PER_GPU_HOUR in prices:
        return []
    if key == "gpu":
        return [] if all(f"{role}_{PER_GPU_HOUR}" in prices for role in ROLES) else [PER_GPU_HOUR]
    role = key.removesuffix("_gpu")
    return [] if f"{role}_{PER_GPU_HOUR}" in prices else [f"{PER_GPU_HOUR} = {{ {role} = ... }}"]


def _priced_types() -> str:
    return ", ".join(sorted(name for name, price in PRICES.items() if price.usd is not None))
