"""Reads signals: newest values with their states, history in buckets, and points since a cursor."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from msgspec import UNSET, structs

from collectors.model import Labels
from server import signals
from server.lib.clock import Clock
from server.query.run_state import OVER, RunState, position, stored_run
from server.query.types import Delta, Series, SignalInfo, SignalNow, SignalState, format_name, parse_name
from server.signals import availability as registry
from server.signals.aggregates import stale_seconds
from server.signals.model import Counter, Signal, lapsed
from server.store import Store
from server.store.types import Bucket, LatestRow, PointState, RunRow, SeriesKey
from server.verdict.model import Verdict

# A tick's values are 5 s old; after a minute no collector runs.
TICK_STALE_SECONDS = 60.0

ITEMS: Mapping[str, Signal | Counter] = {item.name: item for item in signals.load()}
"""Every signal and counter by name, in the order of the README."""

Rows = list[tuple[Labels, LatestRow]]
_SeqPoint = tuple[int, int, int, float | None, int]
_CURSOR = re.compile(r"([0-9]{1,18}):([0-9]{1,18})", re.ASCII)


def info(item: Signal | Counter) -> SignalInfo:
    """What it is: constant."""
    if isinstance(item, Counter):
        does = "adds up" if item.of == "signal" else "counts"
        hint = f"{does} {item.metric}, which no target reports yet"
        return SignalInfo(
            item.name, item.title, item.unit, item.help, hint, item.actor, inputs=(item.metric,), cadence="counter"
        )
    bands = (item.watch, item.critical, item.higher_is_worse)
    return SignalInfo(
        item.name, item.title, item.unit, item.help, item.hint, item.actor, *bands, item.inputs, item.cadence
    )


INFOS: Mapping[str, SignalInfo] = {name: info(item) for name, item in ITEMS.items()}
"""What each of them is."""


def step_stale_seconds(by_signal: Mapping[str, Rows]) -> float:
    """How old a run's newest step may be, by how long its steps take."""
    steps = by_signal.get("trainer_step_seconds", ())
    return stale_seconds(latest.value for _, latest in steps if latest.value is not None)


def newest_step(by_signal: Mapping[str, Rows]) -> float | None:
    """When the trainer's newest step ended (epoch s); None without a step whose time is known."""
    steps = by_signal.get("trainer_step_seconds", ())
    return max((latest.ts / 1000 for _, latest in steps if latest.state is PointState.VALUE), default=None)


def never(item: Signal) -> SignalNow:
    """Of a signal that was not answered yet."""
    return SignalNow(item.name, item.name, {}, None, item.unit, "unknown", None, "", item.hint, None)


# Values that each tick computes without new data: a total stays, a dead engine has a state, a GPU costs money, and the
# staleness of a synchronous run is always 0. They do not show that the run's data goes on.
COMPUTED = frozenset(name for name in ITEMS if name.endswith("_total")) | {
    "trusted_targets_ratio", "trainer_stall_ratio", "staleness_versions", "bottleneck", "generator_engines",
    "generator_engine_state", "cost_usd_per_hour", "cost_usd_per_million_tokens", "idle_usd_per_hour",
}  # fmt: skip


def newest_value(by_signal: Mapping[str, Rows]) -> float | None:
    """When the newest measured value was true (epoch s); None without one. `FleetStore.newest` is the same in SQL."""
    rows = (latest for name, pairs in by_signal.items() if name not in COMPUTED for _, latest in pairs)
    return max((latest.ts / 1000 for latest in rows if latest.state is PointState.VALUE), default=None)


def signal_now(
    item: Signal, labels: Labels, latest: LatestRow, row: RunRow, now: float, stale: float, run: RunState
) -> SignalNow:
    """Its newest point as of ``now``. ``stale``: `step_stale_seconds` of the run.

    While the run catches up its numbers are true at the driver's position: they are judged as of then, and their age
    says how long ago that is.
    """
    state, why, value = _state(item, latest, row), latest.why, latest.value
    age = max(0.0, now - latest.ts / 1000)
    judged = latest.state is PointState.VALUE and row.lifecycle not in OVER
    at = run.as_of if run.name == "catching_up" and run.as_of is not None else now
    if judged and run.name == "not_collected":
        silence = "not collected" + (f" for {duration_text(now - run.since)}" if run.since is not None else "")
    elif judged:
        silence = _silence(item, max(0.0, at - latest.ts / 1000), row, at, stale)
    else:
        silence = ""
    if silence:
        state, why, value = "unknown", lapsed(silence, latest.value, item.unit), None
    name = format_name(item.name, labels)
    ts = latest.ts / 1000
    return SignalNow(name, item.name, dict(labels), value, item.unit, state, age, latest.source, why, ts)


def without_withheld(signals_now: Iterable[SignalNow], verdict: Verdict | None) -> Iterator[SignalNow]:
    """The signals; that of a withheld verdict has no value, as the verdict has no outcome."""
    is_withheld = verdict is not None and verdict.last is not UNSET
    for signal in signals_now:
        if is_withheld and verdict is not None and signal.signal == "bottleneck" and signal.value is not None:
            yield structs.replace(signal, value=None, state="unknown", why=verdict.summary)
        else:
            yield signal


def _silence(item: Signal, age: float, row: RunRow, now: float, stale: float) -> str:
    """Why a value is no longer valid, or "". While ticks run, the carry time of its sources has decided."""
    if item.cadence == "step":
        return f"no step for {duration_text(age)}" if age > stale else ""
    silent = min(age, now - row.watermark / 1000) if row.watermark is not None else age
    return f"nothing collected for {duration_text(silent)}" if silent > TICK_STALE_SECONDS else ""


def _state(item: Signal, latest: LatestRow, row: RunRow) -> SignalState:
    if latest.state is PointState.UNKNOWN or latest.value is None:
        return "not_applicable" if latest.state is PointState.NOT_APPLICABLE else "unknown"
    if _beyond(item, latest.value, item.critical):
        return "critical"
    if _beyond(item, latest.value, item.watch) or _near_bound(item, latest.value, row):
        return "watch"
    return "ok"


def _beyond(item: Signal, value: float, band: float | None) -> bool:
    if band is None:
        return False
    return value >= band if item.higher_is_worse else value < band


def _near_bound(item: Signal, value: float, row: RunRow) -> bool:
    """Staleness has no band of its own: the run's configured bound is one, and at the bound it saturates."""
    bound = row.facts.get("max_staleness_versions")
    return item.name == "staleness_versions" and isinstance(bound, (int, float)) and bound > 0 and value >= 0.8 * bound


def duration_text(seconds: float) -> str:
    """How long: ``3 h``, ``12 min``, ``45 s``."""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


# More than a browser tab misses between two steps after a night in the background; beyond it a fresh range is cheaper.
DELTA_ROWS = 20_000
# A server shows few runs at a time; old runs that a script reads need not stay cached.
CACHED_RUNS = 64


class SeriesKeyCache:
    """Caches the keys of a run's derived series by series id; ids are permanent.

    Thread-safe: a run's table is replaced as a whole, never changed.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._keys: dict[str, Mapping[int, SeriesKey]] = {}

    def of(self, run: str, numbers: Iterable[int]) -> Mapping[int, SeriesKey]:
        """Series id -> key, with all of ``numbers`` that are derived series of the run."""
        keys = self._keys.get(run, {})
        if all(number in keys for number in numbers):
            return keys
        keys = dict(self._store.series.listed(run, target=""))
        if len(self._keys) >= CACHED_RUNS:
            self._keys.clear()
        self._keys[run] = keys
        return keys


class SignalReader:
    """Reads signals. Thread-safe. A series' name is `SignalNow.name`.

    Attributes:
        infos: every signal this version can derive, by name, in the order of the README.
    """

    infos = INFOS

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._names = SeriesKeyCache(store)

    def by_name(self, row: RunRow) -> dict[str, Rows]:
        """signal -> (labels, newest point) of a run."""
        by_signal: dict[str, Rows] = {name: [] for name in ITEMS}
        rows = self._store.runs.newest(row.name)
        keys = self._names.of(row.name, [latest.series for latest in rows])
        for latest in rows:
            key = keys[latest.series]
            if key.metric in by_signal:
                by_signal[key.metric].append((key.labels, latest))
        return by_signal

    def now(self, row: RunRow, by_signal: Mapping[str, Rows], now: float, state: RunState) -> list[SignalNow]:
        """Newest values of all signals and counters. ``by_signal``: of `by_name`."""
        stale = step_stale_seconds(by_signal)
        signals_now = []
        for name, pairs in by_signal.items():
            item = ITEMS[name]
            if isinstance(item, Counter):
                continue
            # The row without labels was "unknown" until the first value with labels arrived.
            labelled = [pair for pair in pairs if pair[0]] or pairs
            signals_now += [
                signal_now(item, labels, latest, row, now, stale, state)
                for labels, latest in sorted(labelled, key=_labels)
            ]
            if not pairs:
                signals_now.append(never(item))
        return signals_now + self._counters(row, now)

    def _counters(self, row: RunRow, now: float) -> list[SignalNow]:
        """Counters as of the watermark: they persist over restarts of the server and never become stale."""
        ts = row.watermark / 1000 if row.watermark is not None else now
        # Counters first: a series created in between then has its name.
        totals = self._store.runs.counters(row.name)
        names = self._names.of(row.name, totals)
        counters = []
        for series, value in totals.items():
            key = names[series]
            if key.metric in ITEMS:
                unit, name = ITEMS[key.metric].unit, format_name(key.metric, key.labels)
                counters.append(SignalNow(name, key.metric, dict(key.labels), value, unit, "ok", now - ts, "", "", ts))
        return sorted(counters, key=lambda signal: signal.name)

    def series(self, run: str, names: Sequence[str], start: float, end: float, points: int = 600) -> list[Series]:
        """One `Series` per name in the given order; unknown names give an empty series."""
        row = stored_run(self._store, run)
        width = max(1, round((end - start) * 1000 / max(1, points)))
        keys = {name: SeriesKey("", *parse_name(name)) for name in names}
        ids = self._store.series.find_all(row.name, list(keys.values()))
        found = self._store.samples.buckets_of(list(ids.values()), round(start * 1000), round(end * 1000), width)
        return [self._bucketed(one, keys[one], found[ids[keys[one]]] if keys[one] in ids else []) for one in names]

    def _bucketed(self, name: str, key: SeriesKey, buckets: Sequence[Bucket]) -> Series:
        item = ITEMS.get(key.metric)
        return series_of(name, item.unit if item else "", buckets)

    def cursor(self, run: str) -> str:
        """The newest position: `since` it gives only later points."""
        generation, seq = position(self._store, run)
        return f"{generation}:{seq}"

    def since(self, run: str, cursor: str) -> Delta:
        """Points of all signals written after ``cursor``. A foreign or old cursor answers ``reset``."""
        newest, now = self.cursor(run), self._clock.now()
        generation, _, last = newest.partition(":")
        match = _CURSOR.fullmatch(cursor)
        if match is None or match[1] != generation:
            return Delta(newest, True, now, {})
        seq = int(match[2])
        rows = self._store.samples.points_since(run, seq, DELTA_ROWS)
        # A cursor beyond the newest seq belongs to another store, unless later points exist.
        if len(rows) >= DELTA_ROWS or (not rows and seq > int(last)):
            return Delta(newest, True, now, {})
        points = {name: tuple(sorted(values, key=_time)) for name, values in self._by_name(run, rows).items()}
        return Delta(f"{generation}:{rows[-1][0] if rows else seq}", False, now, points)

    def _by_name(self, run: str, rows: Sequence[_SeqPoint]) -> dict[str, list[tuple[float, float | None]]]:
        keys = self._names.of(run, {series for _, series, *_ in rows})
        points: dict[int, list[tuple[float, float | None]]] = {}
        for _, series, ts, value, state in rows:
            points.setdefault(series, []).append((ts / 1000, value if state == PointState.VALUE else None))
        return {format_name(keys[series].metric, keys[series].labels): values for series, values in points.items()}


def series_of(name: str, unit: str, buckets: Sequence[Bucket]) -> Series:
    """The line of a chart; a bucket with ``n == 0`` breaks it."""
    return Series(
        name=name,
        unit=unit,
        ts=tuple(bucket.ts / 1000 for bucket in buckets),
        mean=tuple(bucket.total / bucket.n if bucket.n else None for bucket in buckets),
        low=tuple(bucket.low for bucket in buckets),
        high=tuple(bucket.high for bucket in buckets),
    )


def _time(point: tuple[float, float | None]) -> float:
    return point[0]


def _labels(pair: tuple[Labels, LatestRow]) -> Labels:
    return pair[0]


# ---- coverage
# Which framework reports what, and how to have it report more: `server.signals.availability` for readers.


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which signals each framework's own log can give.

    Attributes:
        frameworks: names of the trainer collectors with a key catalogue, sorted.
        cells: signal -> framework -> ``native``, ``derived``, ``-`` (unknown) or ``n/a``. Signals that come from
            engines, sandboxes or prices are not in it: they do not depend on the framework.
        hints: signal -> framework -> what to set so that it is reported.
    """

    frameworks: tuple[str, ...]
    cells: Mapping[str, Mapping[str, str]]
    hints: Mapping[str, Mapping[str, str]]


@cache
def coverage() -> Coverage:
    """Worked out once per process; the first call takes about a second, on a thread."""
    frameworks = registry.frameworks()
    by_framework = {framework.name: registry.cells(framework.name) for framework in frameworks}
    cells: dict[str, Mapping[str, str]] = {}
    hints: dict[str, Mapping[str, str]] = {}
    for item in registry.items():
        cells[item.name] = {framework.name: by_framework[framework.name][item.name] for framework in frameworks}
        inputs = registry.inputs(item)
        hint_texts = {
            framework.name: [framework.hints[name] for name in inputs if name in framework.hints]
            for framework in frameworks
        }
        hints[item.name] = {name: texts[0] for name, texts in hint_texts.items() if texts}
    return Coverage(tuple(framework.name for framework in frameworks), cells, hints)
