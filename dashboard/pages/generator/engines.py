"""Cells of single engines for the Generator page: outliers, a heat map over time, and a table."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, get_args
from urllib.parse import parse_qs

from msgspec import structs

from dashboard.charts.time_columns import Grid, grid
from dashboard.shell.page import Scope
from dashboard.widgets.format import number, short, text
from dashboard.widgets.status import StatusFacts, View, engine_name
from server.query.types import MOST_ENGINES, EngineInfo, EngineMetric

KEEP_SECONDS = 4.0
"""How long a fleet's answer is cached, seconds: it reads every series of every engine."""

# A thousand take a third of a second to read: every 20 s then.
_PER_ENGINE = 0.02

HEATS: Mapping[EngineMetric, tuple[str, str]] = {
    "kv": ("KV cache", "% used"),
    "running": ("Running", "requests"),
    "waiting": ("Waiting", "requests"),
    "preemptions": ("Preempted", "per minute"),
    "tokens": ("Tokens", "tokens/s"),
}
"""Metrics of the heat map: (title, unit)."""

# Half and twice the median, as `generator_outlier_ratio` has it: routers that balance by requests keep engines within a
# few percent of each other.
LOW, HIGH = 0.5, 2.0
# A cache without room for a longer mix, and so much above the median's that it is this engine's own.
FULL, ABOVE = 0.9, 0.05
# Below it twice the median is two requests, not one sick engine.
LEAST_REQUESTS, LEAST_PREEMPTIONS = 2.0, 3.0
MOST_OUTLIERS = 8
_RANK = ("down", "hung", "silent", "stale", "asleep", "paused", "up")
_WORDS = {
    "down": "does not answer",
    "hung": "no tokens for over a minute with requests running",
    "silent": "answers, but reports no numbers",
    "stale": "idle; its gauges kept their last values",
    "asleep": "asleep",
    "paused": "paused",
}
HEALTH = {
    "down": "critical", "hung": "critical", "silent": "watch",
    "stale": "unknown", "asleep": "unknown", "paused": "unknown",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine, the state it is in, and how it differs from the others: [what, its own, the median's, ratio]."""

    info: EngineInfo
    state: str
    error: str = ""
    odd: tuple[tuple[str, str, str, float], ...] = ()

    @property
    def name(self) -> str:
        return engine_name(self.info.target, self.info.labels)

    @property
    def sick(self) -> bool:
        return bool(self.odd) or self.state in ("down", "hung", "silent")


def fleet(scope: Scope) -> list[Engine]:
    """Every engine, outliers first; for a fixed time range as of its end."""
    at = scope.at if scope.at is not None or scope.span is None or scope.span.follow else scope.span.end
    facts = scope.facts
    counts = (one.value or 0.0 for one in facts.signals if one.signal == "generator_engines")
    keep = max(KEEP_SECONDS, _PER_ENGINE * sum(counts))
    return scope.shared.get(("engines", scope.run, at), keep, lambda: _read(scope, at), scope.cursor)


def _read(scope: Scope, at: float | None) -> list[Engine]:
    found, facts = scope.reader.engines.now(scope.run, at), scope.facts
    live = at is None and not facts.over
    rows = list(judged(found, facts, live))
    rows += _unmet(rows, facts) if live else []
    return sorted(_compared(rows), key=_order)


def _order(one: Engine) -> tuple[int, bool, list[tuple[int, str]]]:
    """Outliers first; then by name, ``vllm-9`` before ``vllm-10``."""
    parts = [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", one.name)]
    return _RANK.index(one.state), not one.odd, parts


def judged(found: Sequence[EngineInfo], facts: StatusFacts, live: bool) -> Iterator[Engine]:
    """Adds states: the tick's state of a named engine, else what its readings show."""
    named = {_identity(one.labels): one.labels for one in facts.named("generator_engine_state")} if live else {}
    hung = {one.labels["target"] for one in facts.named("generator_frozen") if one.value} if live else set()
    # A target of several ranks is frozen when one is; which one, the tick has named.
    ranks = Counter(info.target for info in found)
    trust = {target.target: target for target in facts.targets} if live else {}
    for info in found:
        health = trust.get(info.target)
        reported = named.pop(_identity({**info.labels, "target": info.target}), {}).get("state", "")
        frozen = "hung" if info.target in hung and ranks[info.target] == 1 else ""
        state = reported or ("down" if health and not health.up else frozen or info.held or "up")
        if state == "stale":
            info = structs.replace(
                info,
                running=None,
                waiting=None,
                kv_ratio=None,
                mean_running=None,
                mean_waiting=None,
                mean_kv_ratio=None,
            )
        yield Engine(info, state if state in _RANK else "up", health.error if health and state == "down" else "")
    for labels in named.values():
        yield _silent(labels)


def _silent(labels: Mapping[str, str]) -> Engine:
    """An engine that the tick knows and that reported nothing for five minutes."""
    own = {name: value for name, value in labels.items() if name not in ("state", "target")}
    key = ",".join((labels["target"], *(f"{name}={value}" for name, value in sorted(own.items()))))
    return Engine(EngineInfo(key, labels["target"], own), labels["state"] if labels["state"] in _RANK else "silent")


def _identity(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, value) for name, value in labels.items() if name != "state"))


def _unmet(found: Sequence[Engine], facts: StatusFacts) -> Iterator[Engine]:
    """Targets of the generator that are down and of which no engine is known."""
    targets = {one.info.target for one in found}
    for target in facts.targets:
        if target.actor == "generator" and not target.records and not target.up and target.target not in targets:
            yield Engine(EngineInfo(target.target, target.target, {}), "down", target.error)


# ---- outliers


def _compared(found: Sequence[Engine]) -> list[Engine]:
    """Each against the median of those that work and have its role."""
    working = [one.info for one in found if one.state == "up"]
    if len(working) < 2:
        return list(found)
    middles = {role: _middles([one for one in working if one.role == role]) for role in {one.role for one in working}}
    newest = max((one.version for one in working if one.version is not None), default=None)
    return [
        replace(one, odd=tuple(_odd(one.info, middles[one.info.role], newest))) if one.state == "up" else one
        for one in found
    ]


def _middles(fleet: Sequence[EngineInfo]) -> dict[str, float | None]:
    return {name: _median(map(value, fleet)) for name, (_, value, _) in _MEASURES.items()}


def _median(values: Any) -> float | None:
    measured = [value for value in values if value is not None]
    return median(measured) if len(measured) > 1 else None


def _speed(info: EngineInfo) -> float | None:
    """Tokens per second and request: shows a slow GPU at any load."""
    running = info.mean_running
    return info.tokens_per_second / running if info.tokens_per_second is not None and running and running >= 1 else None


_MEASURES: Mapping[str, tuple[str, Callable[[EngineInfo], float | None], str]] = {
    "running": ("running", lambda info: info.mean_running, ""),
    "waiting": ("waiting", lambda info: info.mean_waiting, ""),
    "kv": ("KV cache", lambda info: info.mean_kv_ratio, "ratio"),
    "speed": ("tokens/s per request", _speed, ""),
    "preemptions": ("preemptions per minute", lambda info: info.preemptions_per_minute, ""),
}
Odd = tuple[str, str, str, float]


def _odd(info: EngineInfo, middles: Mapping[str, float | None], newest: float | None) -> Iterator[Odd]:
    for name, (label, value, unit) in _MEASURES.items():
        own, middle = value(info), middles[name]
        if own is not None and middle is not None and _far(name, own, middle):
            ratio = own / middle if middle else float("inf")
            yield label, text(own, unit), text(middle, unit), ratio
    if info.version is not None and newest is not None and info.version < newest:
        yield "weights", f"v{info.version:,.0f}", f"v{newest:,.0f}", 1.0


def _far(name: str, own: float, middle: float) -> bool:
    if name == "kv":
        return own >= FULL and own - middle >= ABOVE
    if name == "speed":
        return own < LOW * middle
    if name == "running":
        return middle > 0 and (own < LOW * middle or own > max(HIGH * middle, LEAST_REQUESTS))
    least = LEAST_REQUESTS if name == "waiting" else LEAST_PREEMPTIONS
    return own > max(HIGH * middle, least)


def outliers(found: Sequence[Engine]) -> View:
    """Keys ``outliers.N``: an engine and what is wrong with it; ``.none``, ``.more``, ``.p`` and its state."""
    rows = [row for one in found for row in _complaints(one)]
    cells: View = {
        f"outliers.{i}": {"engine": engine, "text": what, "state": state}
        for i, (engine, what, state) in enumerate(rows[:MOST_OUTLIERS])
    }
    ill = sum(one.sick for one in found)
    worst = "critical" if any(row[2] == "critical" for row in rows) else "watch" if ill else "ok"
    return cells | {
        "outliers.none": "" if rows else _none(found),
        "outliers.more": f"and {len(rows) - MOST_OUTLIERS:,} more" if len(rows) > MOST_OUTLIERS else "",
        "outliers.p": f"{ill} of {len(found)}" if ill else "None" if len(found) > 1 else "",
        "outliers.s": worst,
    }


def _complaints(one: Engine) -> Iterator[tuple[str, str, str]]:
    if one.state != "up":
        error = f": {one.error}" if one.error else ""
        yield one.name, _WORDS[one.state] + error, HEALTH[one.state]
    for what, own, middle, ratio in one.odd:
        if what == "weights":
            yield one.name, f"serves {own}; newest is {middle}", "watch"
        else:
            times = f" ({_times(ratio)})" if what != "KV cache" and ratio != float("inf") else ""
            yield one.name, f"{what} {own}, median {middle}{times}", "watch"


def _times(ratio: float) -> str:
    return text(ratio, "ratio") if ratio < 1 else f"{number(ratio)}×"


def _none(found: Sequence[Engine]) -> str:
    if not found:
        return "No engine has reported yet."
    if len(found) == 1:
        return "Only one engine: nothing to compare."
    loads = [one.info.mean_running for one in found if one.info.mean_running is not None]
    if len(loads) < 2:
        return "Outliers appear after 5 minutes of data."
    spread = f"{number(min(loads))} to {number(max(loads))}"
    return f"{spread} running requests per engine (5 min mean)."


# ---- heat map


def heat_of(search: str) -> EngineMetric:
    """The metric that the address requests; KV cache if it names no valid one."""
    requested = (parse_qs(search.lstrip("?")).get("heat") or [""])[-1]
    return next((name for name in get_args(EngineMetric) if name == requested), "kv")


def heat(scope: Scope, found: Sequence[Engine]) -> View:
    """Keys ``gh.*``: ``engine_heat.names`` the rows from above, ``engine_heat.N`` values of column N in their order."""
    metric = heat_of(scope.search)
    title, unit = HEATS[metric]
    cells: View = {"engine_heat.metric": metric, "engine_heat.unit": unit, "engine_heat.title": title}
    if scope.span is None:
        return cells
    columns = grid(scope.span)
    shown = list(found[:MOST_ENGINES])
    values = _columns(scope, metric, sorted(one.info.key for one in shown), columns)
    cells |= {f"engine_heat.{at}": [short(column.get(one.info.key)) for one in shown] for at, column in values.items()}
    top = 1.0 if metric == "kv" else max((v for column in values.values() for v in column.values()), default=0.0)
    more = len(found) - len(shown)
    return cells | {
        "engine_heat.names": [
            {"name": one.name, "state": one.state if one.state != "up" else "odd" if one.odd else "up"} for one in shown
        ],
        "engine_heat.width": columns.width,
        "engine_heat.top": short(top),
        "engine_heat.none": "" if values else _no_history(title, found),
        "engine_heat.more": f"{len(shown)} of {len(found):,} engines shown, outliers first" if more > 0 else "",
    }


def _no_history(reason: str, found: Sequence[Engine]) -> str:
    if not found:
        return "No engine has reported yet: add the engines' /metrics as targets."
    return f"No engine reported {reason if reason.startswith('KV') else reason.lower()} in this range."


def _columns(scope: Scope, metric: EngineMetric, keys: Sequence[str], columns: Grid) -> dict[int, dict[str, float]]:
    """Number of a column -> engine -> value."""
    reader, run = scope.reader, scope.run

    def read() -> dict[int, dict[str, float]]:
        found: dict[int, dict[str, float]] = {}
        cells = reader.engines.cells(run, metric, keys, columns.start, columns.end, columns.width)
        for key, values in cells.items():
            for ts, value in values.items():
                found.setdefault(columns.number(ts), {})[key] = value
        return found

    return scope.shared.get(("engine_cells", run, metric, tuple(keys), columns), columns.keep_seconds, read)


# ---- table


def table(found: Sequence[Engine]) -> View:
    """Keys ``engine_rows.N``: an engine's numbers as texts; ``odd``: which of them differ from the other engines'."""
    shown = found[:MOST_ENGINES]
    more, ill = len(found) - len(shown), any(one.sick for one in found[MOST_ENGINES:])
    return {f"engine_rows.{i}": _row(one) for i, one in enumerate(shown)} | {
        "engine_rows.more": f"and {more:,} more" + ("" if ill else ", all up and without outliers") if more > 0 else "",
        "engine_rows.none": "" if found else "No engine has reported yet.",
    }


def _row(one: Engine) -> dict[str, Any]:
    info = one.info
    limit = f" of {number(info.request_limit)}" if info.request_limit is not None and info.running is not None else ""
    return {
        "name": one.name,
        "state": one.state,
        "health": HEALTH.get(one.state, "watch" if one.odd else "ok"),
        "running": _shown(info.running) + limit,
        "waiting": _shown(info.waiting),
        "kv": _shown(info.kv_ratio, "ratio"),
        "tokens": _shown(info.tokens_per_second),
        "prefix": _shown(info.prefix_hit_ratio, "ratio"),
        "preempted": _shown(info.preemptions_per_minute),
        "version": f"v{info.version:,.0f}" if info.version is not None else "",
        "seen": round(info.last_ts) if info.last_ts is not None else None,
        "odd": [what for what, *_ in one.odd],
        "role": info.role,
    }


def _shown(value: float | None, unit: str = "") -> str:
    """A missing value is empty, never zero."""
    return "" if value is None else text(value, unit)
