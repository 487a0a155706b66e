"""``[run.NAME.preflight]`` -> `PreflightPlan`: what the run is going to ask for, and limits that no provider tells."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from server.alerts.text import parse_duration
from server.config.errors import Problems

RESOURCES = ("concurrent", "starting", "creates_per_second", "creates_per_hour", "cpu", "memory_gb", "disk_gb", "gpu")

SIZES = ("cpu", "memory_gb", "disk_gb", "gpu")

# A handful of orphans is what a crash leaves; more is a leak, and it grows.
MAX_DANGLING = 10

# Less does not last an hour of a hundred sandboxes at what the cheapest of them costs.
MIN_CREDIT_USD = 10.0


@dataclass(frozen=True, slots=True)
class PreflightPlan:
    """What the run is going to ask for. None: not said; a check that needs it answers "unknown".

    Attributes:
        concurrency: sandboxes alive at once at the peak.
        create_rate: sandboxes created per second at the peak.
        rollout_deadline: the longest a rollout may take.
        run_length: how long the run is to go on.
        images: what the sandboxes start from.
        limits: quotas (of `RESOURCES`) that a provider does not tell; where it does, the lower one holds.
        price: USD per hour of one sandbox.
        sandbox_ttl: the time a sandbox is created to live for; inf for no limit.
        spinup: a typical time from requested to ready, where nothing is known yet.
        size: what one sandbox takes of `SIZES`.
        known_runs: names (shell patterns) of runs alive elsewhere in the same accounts.
        max_dangling: more dangling sandboxes than this fail.
        min_credit: USD below which a credit fails where no price is known.
        engines_later: the run starts its own engines: one that does not answer yet is no failure.
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
        """This plan where it says something, else the other's: a command line over a file.

        Thresholds (`max_dangling`, `min_credit`, `engines_later`) are the other's.
        """
        names = ("concurrency", "create_rate", "rollout_deadline", "run_length", "price", "sandbox_ttl", "spinup")
        said = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        told = {name: getattr(self, name) for name in ("images", "limits", "size", "known_runs") if getattr(self, name)}
        return replace(other, **said, **told)


KEYS = {
    "concurrency", "create_rate", "rollout_deadline", "run_length", "images", "limits", "price", "sandbox_ttl",
    "spinup", "size", "known_runs", "max_dangling", "min_credit", "engines_later",
}  # fmt: skip
UNLIMITED = "unlimited"


def parse(table: Mapping[str, Any], problems: Problems, where: str) -> PreflightPlan:
    """The plan a table describes; what is wrong goes to ``problems``, each with its key under ``where``."""
    if not isinstance(table, dict):
        problems.add(where, "must be a table: [run.NAME.preflight]")
        return PreflightPlan()
    problems.unknown(table, KEYS, where)
    return PreflightPlan(
        concurrency=_count(table, "concurrency", problems, where, least=1),
        create_rate=_number(table, "create_rate", problems, where),
        rollout_deadline=_seconds(table, "rollout_deadline", problems, where),
        run_length=_seconds(table, "run_length", problems, where),
        images=_words(table, "images", problems, where),
        limits=_numbers(table, "limits", RESOURCES, problems, where),
        price=_number(table, "price", problems, where),
        sandbox_ttl=_ttl(table, problems, where),
        spinup=_seconds(table, "spinup", problems, where),
        size=_numbers(table, "size", SIZES, problems, where),
        known_runs=_words(table, "known_runs", problems, where),
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
    table: Mapping[str, Any], key: str, known: tuple[str, ...], problems: Problems, where: str
) -> dict[str, float]:
    """A table of finite numbers from 0 on: a limit of 0 is a limit."""
    found = problems.take(table, key, dict, {}, where)
    problems.unknown(found, set(known), f"{where}.{key}")
    read = {name: _number(found, name, problems, f"{where}.{key}", least=0.0) for name in known}
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
    """Providers also sell sandboxes without an end: only a word can say so."""
    return math.inf if table.get("sandbox_ttl") == UNLIMITED else _seconds(table, "sandbox_ttl", problems, where)


def _words(table: Mapping[str, Any], key: str, problems: Problems, where: str) -> tuple[str, ...]:
    words = problems.take(table, key, list, [], where)
    if not all(isinstance(word, str) and word for word in words):
        problems.add(f"{where}.{key}", "must be a list of words")
        return ()
    return tuple(words)
