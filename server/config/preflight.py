"""`[run.NAME.preflight]`: what the run will need, and limits that no provider reports."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from server.alerts.text import parse_duration
from server.config.errors import Problems

RESOURCES = ("concurrent", "starting", "creates_per_second", "creates_per_hour", "cpu", "memory_gb", "disk_gb", "gpu")

SIZES = ("cpu", "memory_gb", "disk_gb", "gpu")

# A crash leaves a few sandboxes; more are a leak that grows.
MAX_DANGLING = 10

# Less pays for less than an hour of a hundred sandboxes of the cheapest kind.
MIN_CREDIT_USD = 10.0


@dataclass(frozen=True, slots=True)
class PreflightPlan:
    """What the run will need. None: not stated; a check that needs the value answers "unknown".

    Attributes:
        concurrency: sandboxes alive at once at the peak.
        create_rate: sandboxes created per second at the peak.
        rollout_deadline: longest duration of a rollout in seconds.
        run_length: planned duration of the run in seconds.
        images: images that sandboxes start from.
        limits: quotas (of `RESOURCES`); if the provider reports one too, the lower one holds.
        price: USD per hour of one sandbox.
        sandbox_ttl: lifetime of a sandbox in seconds; inf for no limit.
        spinup: typical seconds from request to ready, used until some were observed.
        size: resources (of `SIZES`) of one sandbox.
        known_runs: names (shell patterns) of runs elsewhere that use the same accounts.
        max_dangling: more dangling sandboxes than this fail the check.
        min_credit: USD; a lower credit fails the check if no price is available.
        engines_later: the run starts its own engines, so an engine without an answer is no failure.
    """

    concurrency: int | None = None
    create_rate: float | None = None
    rollout_deadline: float | None = None
    run_length: float | None = None
    images: tuple[str, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    price: float | None = None
    sandbox_ttl: float | None = None
    spinup: float | None = None
    size: Mapping[str, float] = field(default_factory=dict)
    known_runs: tuple[str, ...] = ()
    max_dangling: int = MAX_DANGLING
    min_credit: float = MIN_CREDIT_USD
    engines_later: bool = False

    def over(self, other: "PreflightPlan") -> "PreflightPlan":
        """This plan with the other's values where this one has none: a command line over a file.

        Thresholds (`max_dangling`, `min_credit`, `engines_later`) are the other's.
        """
        names = ("concurrency", "create_rate", "rollout_deadline", "run_length", "price", "sandbox_ttl", "spinup")
        numbers = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        collections = {
            name: getattr(self, name) for name in ("images", "limits", "size", "known_runs") if getattr(self, name)
        }
        return replace(other, **numbers, **collections)


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
