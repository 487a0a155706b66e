"""`[run.NAME.preflight]`: what the run will need, and limits that no provider reports."""

import math
from collections.abc import Mapping
from typing import Any

from server.alerts.text import parse_duration
from server.config.errors import Problems
from server.preflight.model import MAX_DANGLING, MIN_CREDIT_USD, RESOURCES, SIZES, PreflightPlan

KEYS = {
    "concurrency", "create_rate", "rollout_deadline", "run_length", "images", "limits", "price", "sandbox_ttl",
    "spinup", "size", "known_runs", "max_dangling", "min_credit", "engines_later",
}  # fmt: skip
UNLIMITED = "unlimited"


def parse(table: Mapping[str, Any], problems: Problems, where: str) -> PreflightPlan:
    """The plan of a table; errors go to ``problems``, each with its key below ``where``."""
    if not isinstance(table, dict):
        problems.add(where, "must be a table: [run.NAME.preflight]")
        return PreflightPlan()
    problems.unknown(table, KEYS, where)
    return PreflightPlan(
        concurrency=_count(table, "concurrency", problems, where, least=1),
        create_rate=_number(table, "create_rate", problems, where),
        rollout_deadline=_seconds(table, "rollout_deadline", problems, where),
        run_length=_seconds(table, "run_length", problems, where),
        images=_strings(table, "images", problems, where),
        limits=_numbers(table, "limits", RESOURCES, problems, where),
        price=_number(table, "price", problems, where),
        sandbox_ttl=_ttl(table, problems, where),
        spinup=_seconds(table, "spinup", problems, where),
        size=_numbers(table, "size", SIZES, problems, where),
        known_runs=_strings(table, "known_runs", problems, where),
        max_dangling=_or(_count(table, "max_dangling", problems, where, least=0), MAX_DANGLING),
        min_credit=_or(_number(table, "min_credit", problems, where, least=0.0), MIN_CREDIT_USD),
        engines_later=problems.take(table, "engines_later", bool, False, where),
    )


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def _count(table: Mapping[str, Any], key: str, problems: Problems, where: str, least: int) -> int | None:
    value: int | None = problems.take(table, key, int, None, where)
    if value is not None and value < least:
        problems.add(f"{where}.{key}", f"must be at least {least}")
        return None
    return value


def _number(
    table: Mapping[str, Any], key: str, problems: Problems, where: str, least: float | None = None
) -> float | None:
    """A finite number above 0, or from `least` on."""
    value = problems.take(table, key, (int, float), None, where)
    if value is None:
        return None
    if not math.isfinite(value) or (value <= 0 if least is None else value < least):
        problems.add(f"{where}.{key}", "must be above 0" if least is None else f"must be at least {least:g}")
        return None
    return float(value)


def _numbers(
    table: Mapping[str, Any], key: str, allowed: tuple[str, ...], problems: Problems, where: str
) -> dict[str, float]:
    """A table of finite numbers, at least 0: a limit of 0 is valid."""
    found = problems.take(table, key, dict, {}, where)
    problems.unknown(found, set(allowed), f"{where}.{key}")
    read = {name: _number(found, name, problems, f"{where}.{key}", least=0.0) for name in allowed}
    return {name: value for name, value in read.items() if value is not None}


def _seconds(table: Mapping[str, Any], key: str, problems: Problems, where: str) -> float | None:
    """A duration above 0: "30m", "24h" or a number of seconds."""
    if key not in table:
        return None
    try:
        seconds = parse_duration(table[key])
    except ValueError as error:
        problems.add(f"{where}.{key}", str(error))
        return None
    if seconds == 0:
        problems.add(f"{where}.{key}", "must be above 0")
        return None
    return seconds


def _ttl(table: Mapping[str, Any], problems: Problems, where: str) -> float | None:
    """A duration, or "unlimited" for providers whose sandboxes have no end."""
    return math.inf if table.get("sandbox_ttl") == UNLIMITED else _seconds(table, "sandbox_ttl", problems, where)


def _strings(table: Mapping[str, Any], key: str, problems: Problems, where: str) -> tuple[str, ...]:
    texts = problems.take(table, key, list, [], where)
    if not all(isinstance(text, str) and text for text in texts):
        problems.add(f"{where}.{key}", "must be a list of strings, none of them empty")
        return ()
    return tuple(texts)
