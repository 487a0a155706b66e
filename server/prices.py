"""[run.NAME.cost]: what the user states of prices, as facts of the run."""

import math
from collections.abc import Mapping
from typing import Any

from server.problems import Problems

PER_GPU_HOUR = "usd_per_gpu_hour"


def parse(problems: Problems, table: Mapping[str, Any], where: str) -> dict[str, float]:
    """Facts of a run's table; what is wrong with them goes into ``problems``."""
    cost = problems.take(table, "cost", dict, {}, where)
    problems.unknown(cost, {PER_GPU_HOUR}, f"{where}.cost")
    price = problems.take(cost, PER_GPU_HOUR, (int, float), None, f"{where}.cost")
    if price is None:
        return {}
    if not (math.isfinite(price) and price > 0):
        problems.add(f"{where}.cost.{PER_GPU_HOUR}", "must be a positive number")
        return {}
    return {PER_GPU_HOUR: float(price)}
