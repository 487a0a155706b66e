"""The user's table "source key -> our metric" of the configuration: checks it and turns it into `Key`s."""

import difflib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from collectors import catalog
from collectors.catalog import METRICS, Metric
from collectors.training_logs.model import FOLDS, ONLY, Key

# ---- patterns
# Detects regular expressions of users that could hang: Python's engine backtracks, and a pattern runs on every key.

# Characters of a key; longer keys are not matched.
KEY_LENGTH = 256
# Three `.*` and a few alternatives: some tenths of a second, once per key.
MAX_CHOICES = 5 * KEY_LENGTH**3

_TOKEN = re.compile(
    r"(?P<comment>\(\?#[^)]*\))|(?P<flags>\(\?[aiLmsux]+\))|(?P<back>\(\?P=\w+\))"
    r"|(?P<open>\((?:\?(?:P<\w+>|<[=!]|[=!>:]|[aiLmsux]*(?:-[imsx]+)?:|\(\w+\)))?)|(?P<close>\))|(?P<bar>\|)"
    r"|(?P<times>[*+?]|\{(?!\})\d*(?:,\d*)?\})(?P<how>[+?]?)"
    r"|(?P<one>\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.)",
    re.DOTALL,
)


@dataclass(slots=True)
class _Group:
    """``choices``: of the finished alternatives; ``branch``: of the current one; ``last``: of its newest piece."""

    start: int
    choices: int = 0
    branch: int = 1
    last: int = 1
    text: str = ""

    def piece(self, choices: int, text: str) -> None:
        self.branch *= self.last
        self.last, self.text = choices, text

    def total_choices(self) -> int:
        return self.choices + self.branch * self.last


def hangs(pattern: re.Pattern[str]) -> str:
    """Returns why a pattern may hang on some key, and what to write instead; "" if it cannot."""
    text = pattern.pattern
    if pattern.flags & re.VERBOSE:
        return "(?x) is not supported: write the pattern without spaces and comments"
    groups = [_Group(0)]
    for token in _TOKEN.finditer(text):
        if problem := _apply_token(token, text, groups):
            return problem
    if groups[0].total_choices() > MAX_CHOICES:
        return "too many repetitions and alternatives one after another: at most three of .* or .+; [^/]+/ is free"
    return ""


def _apply_token(token: re.Match[str], text: str, groups: list[_Group]) -> str:
    group = groups[-1]
    if token["open"] is not None:
        groups.append(_Group(token.start()))
    elif token["close"] is not None:
        done = groups.pop()
        groups[-1].piece(done.total_choices(), text[done.start : token.end()])
    elif token["bar"] is not None:
        group.choices, group.branch, group.last = group.total_choices(), 1, 1
    elif token["times"] is not None:
        return _repeat(token, text, group)
    elif token["one"] is not None or token["back"] is not None:
        group.piece(1, token[0])
    return ""


def _repeat(token: re.Match[str], text: str, group: _Group) -> str:
    min_count, max_count = _bounds(token["times"])
    if group.last > 1 and max_count > 1:
        return (
            f"{group.text}{token[0]} repeats a part that varies, and may never finish: repeat a class such as [^/]+ "
            "or .*, or write the alternatives out"
        )
    free = token["how"] == "+" or _ends_by_itself(group.text, text[token.end() : token.end() + 1])
    group.last, group.text = group.last * (1 if free else max_count - min_count + 1), group.text + token[0]
    return ""


def _bounds(times: str) -> tuple[int, int]:
    if not times.startswith("{"):
        return (1 if times == "+" else 0), (1 if times == "?" else KEY_LENGTH)
    min_count, comma, max_count = times.strip("{}").partition(",")
    low = min(int(min_count or 0), KEY_LENGTH)
    return low, min(int(max_count or KEY_LENGTH), KEY_LENGTH) if comma else low


def _ends_by_itself(piece: str, following: str) -> bool:
    """Returns whether the piece is a class that excludes the character after it."""
    inside = piece[2:-1] if piece.startswith("[^") else ""
    return "\\" not in inside and following not in ("", *"\\.[(|)*+?{^$") and following in inside


# Unit -> factor to the metric's own unit.
UNITS: Mapping[str, Mapping[str, float]] = {
    "seconds": {"s": 1, "seconds": 1, "ms": 1e-3, "milliseconds": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60, "h": 3600},
    "ratio": {"ratio": 1, "fraction": 1, "percent": 0.01, "%": 0.01},
    "bytes": {"bytes": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30},
    "tokens": {"tokens": 1, "ktokens": 1e3, "Mtokens": 1e6},
    "tokens/s": {"tokens/s": 1, "ktokens/s": 1e3},
}
REDUCTIONS = {"value": "value", "per_step": "value", "total": "total", "cumulative": "total"}
FIELDS = ("key", "metric", "unit", "scale", "reduction", "fold", "labels", "axis", "ignore")
# Parts of a step, whose durations add up. The step itself is no part.
PHASES = frozenset(row.name for row in catalog.TRAINER_ROWS if row.unit == "seconds") - {"trainer_step_seconds"}
# Characters of a pattern. Every pattern is matched once against every key.
PATTERN_LENGTH = 300
# Rows of one table.
MAX_MAPS = 500
# Keys whose row is cached per table.
CACHED_KEYS = 20_000


@dataclass(frozen=True, slots=True)
class Map:
    """One row of the table. ``key`` None: the user ignores the key."""

    pattern: re.Pattern[str]
    key: Key | None
    axis: str = ""


def lookup(maps: tuple[Map, ...]) -> Callable[[str], Map | None]:
    """Returns a function: source key -> the first row whose pattern matches the whole key, None for long keys."""

    @lru_cache(maxsize=CACHED_KEYS)
    def row_of(key: str) -> Map | None:
        if len(key) > KEY_LENGTH:
            return None
        return next((row for row in maps if row.pattern.fullmatch(key)), None)

    return row_of


def parse(text: str) -> tuple[Map, ...]:
    """Parses rows from their JSON, which `check` has accepted."""
    problems: list[str] = []
    return check(json.loads(text or "[]"), lambda where, message: problems.append(f"{where}: {message}"))


def check(rows: Any, add: Callable[[str, str], None]) -> tuple[Map, ...]:
    """Parses rows of `[[run.NAME.target.map]]`; reports every error through ``add(where, message)``."""
    if not isinstance(rows, list) or len(rows) > MAX_MAPS:
        add("", f"must be a list of tables, {MAX_MAPS} at most: [[run.NAME.target.map]]")
        return ()
    maps = [_row(row, lambda text, n=n: add(f"[{n}]", text)) for n, row in enumerate(rows)]  # type: ignore[misc]
    _check_folds(maps, add)
    return tuple(row for row in maps if row is not None)


def _check_folds(maps: Sequence[Map | None], add: Callable[[str, str], None]) -> None:
    """Rows of one metric are folded together, so they must state the same fold."""
    folds: dict[tuple[object, ...], str] = {}
    for n, row in enumerate(maps):
        if row is None or (key := row.key) is None:
            continue
        if folds.setdefault((key.metric, key.labels, row.axis), key.fold) != key.fold:
            add(f"[{n}]", f"fold: another entry for {key.metric} has a different fold: use the same fold in both")


def _row(row: Any, add: Callable[[str], None]) -> Map | None:
    if not isinstance(row, dict):
        add("must be a table")
        return None
    for name in row.keys() - set(FIELDS):
        add(f"{name}: unknown key; known: {', '.join(FIELDS)}")
    pattern = _pattern(row.get("key"), add)
    if row.get("ignore") is True:
        return Map(pattern, None) if pattern is not None else None
    metric = _metric(row.get("metric"), add)
    axis = row.get("axis", "")
    if not isinstance(axis, str) or len(axis) > 40:
        add("axis: must be a word such as trainer")
        return None
    key = _key(row, metric, add) if metric is not None else None
    return Map(pattern, key, axis) if pattern is not None and key is not None else None


def _pattern(given: Any, add: Callable[[str], None]) -> re.Pattern[str] | None:
    if not isinstance(given, str) or not 0 < len(given) <= PATTERN_LENGTH:
        add("key: is missing: a regular expression that matches the whole of the source's key")
        return None
    try:
        pattern = re.compile(given)
    except (re.error, OverflowError, RecursionError) as error:
        add(f"key: not a regular expression: {error}")
        return None
    if problem := hangs(pattern):
        add(f"key: {given!r}: {problem}")
        return None
    return pattern


def _metric(given: Any, add: Callable[[str], None]) -> Metric | None:
    known = METRICS.get(given) if isinstance(given, str) else None
    if known is not None and known.kind != "histogram":
        return known
    names = [name for name, metric in METRICS.items() if metric.kind != "histogram"]
    close_names = difflib.get_close_matches(str(given), names, 3)
    hint = (
        f"; did you mean {' or '.join(close_names)}?"
        if close_names
        else "; docs/reference/input-metrics.md lists the names"
    )
    add(f"metric: {given!r} is not a metric{hint}" if given else "metric: is missing")
    return None


def _key(row: Mapping[str, Any], metric: Metric, add: Callable[[str], None]) -> Key | None:
    scale = _scale(row, metric, add)
    reduction = REDUCTIONS.get(str(row.get("reduction", "value")))
    if reduction is None:
        add(f"reduction: must be one of {', '.join(REDUCTIONS)}")
    fold = row.get("fold", "sum" if metric.name in PHASES else ONLY)
    if fold not in FOLDS and fold != ONLY:
        add(f"fold: must be one of {', '.join(FOLDS)}")
        return None
    labels = row.get("labels", {})
    if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
        add('labels: must be a table of texts, such as { basis = "wall" }')
        return None
    if scale is None or reduction is None:
        return None
    total = reduction == "total" and metric.reduction == "per_step"
    return Key(metric.name, scale, tuple(sorted(labels.items())), reduction="total" if total else "value", fold=fold)


def _scale(row: Mapping[str, Any], metric: Metric, add: Callable[[str], None]) -> float | None:
    scale = row.get("scale", 1)
    if isinstance(scale, bool) or not isinstance(scale, int | float) or not 0 < abs(scale) < 1e15:
        add("scale: must be a number that is not 0: stored value = source value * scale")
        return None
    unit = row.get("unit")
    if unit is None or unit == metric.unit:
        return float(scale)
    factors = UNITS.get(metric.unit, {})
    if unit not in factors:
        units = ", ".join(factors) or metric.unit or "none (a pure number)"
        add(f"unit: {metric.name} is in {metric.unit or 'no unit'}; units that can be converted: {units}")
        return None
    return float(scale) * factors[unit]
