"""`Reader` over the store. Thread-safe: every call, or block of one state, has a read connection of its own.

Nothing is kept but constants and the names of series."""

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from collectors import record_formats
from collectors.model import Labels
from server.clock import Clock
from server.config.alerts import AlertSettings
from server.query import shape, what_if
from server.query.alerts import AlertReader
from server.query.engines import EngineReader
from server.query.names import format_name, parse_name
from server.query.preflight import PreflightInfo
from server.query.rollouts.reader import RolloutReader
from server.query.rollouts.types import (
    Cells,
    CensusState,
    EventInfo,
    Funnel,
    GroupInfo,
    RolloutDetail,
    RolloutFilter,
    RolloutPage,
    Sort,
)
from server.query.run_state import RunState, state_of
from server.query.runs import FleetReader, run_info
from server.query.sandboxes import SandboxReader
from server.query.signals import (
    INFOS,
    ITEMS,
    TICK_STALE_SECONDS,
    Rows,
    never,
    newest_value,
    signal_now,
    step_stale_seconds,
    words,
)
from server.query.step_axis import StepAt
from server.query.steps import StepReader
from server.query.summary import RunSummary, summary
from server.query.types import (
    AlertInfo,
    DeliveryInfo,
    Delta,
    RuleInfo,
    RunInfo,
    RunNow,
    SandboxInfo,
    Series,
    SignalInfo,
    SignalNow,
    SilenceInfo,
    Status,
    StepSeries,
    TargetTrust,
    UnknownRun,
)
from server.query.verdicts import VerdictReader, VerdictSpan
from server.query.what_if_types import Changes, WhatIfAnswer
from server.signals.model import Counter
from server.signals.window import TRAINER
from server.store import Store
from server.store.fleet import TargetHealth
from server.store.retention import StoreSize
from server.store.rollouts.pages import BadKey
from server.store.types import UNKNOWN, LatestRow, Origin, PointState, RunRow, SeriesKey, TargetRow

GONE_SECONDS = 86_400.0
# More changes of the verdict than any run has had; a summary of its time must not grow without bound.
MOST_SPANS = 5000
# More than a browser tab that slept over night misses between two steps; beyond it a fresh range is cheaper.
DELTA_ROWS = 20_000
SeqPoint = tuple[int, int, int, float | None, int]
_T = TypeVar("_T")
# Results of queries in the current `one_state` block: a repeated query is answered without the store.
_TOLD: ContextVar[dict[Hashable, Any] | None] = ContextVar("rollscope_told", default=None)
_CURSOR = re.compile(r"([0-9]{1,18}):([0-9]{1,18})", re.ASCII)


def _not_configured(run: str) -> PreflightInfo:
    return PreflightInfo("not_configured")


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
        keys = dict(self._store.series(run, target=""))
        if len(self._keys) >= CACHED_RUNS:
            self._keys.clear()
        self._keys[run] = keys
        return keys


class StoreReader(EngineReader):
    """See `server.query.types.Reader`."""

    def __init__(
        self, store: Store, clock: Clock, alerts: AlertSettings | None = None,
        preflight: Callable[[str], PreflightInfo] | None = None,
    ) -> None:  # fmt: skip
        self._store, self._clock = store, clock
        self._preflight = preflight or _not_configured
        self._alerts = AlertReader(store, clock, alerts or AlertSettings())
        self._sandboxes = SandboxReader(store, clock)
        self._rollouts = RolloutReader(store, clock)
        self._verdicts = VerdictReader(store, clock)
        self._fleet, self._by_step = FleetReader(store, clock), StepReader(store)
        self._names = SeriesKeyCache(store)

    def now(self) -> float:
        return self._clock.now()

    def infos(self) -> Mapping[str, SignalInfo]:
        return INFOS

    def runs(self) -> list[RunInfo]:
        rows = sorted(self._store.runs(), key=lambda row: (row.last_ts or 0, row.name), reverse=True)
        return [run_info(row) for row in rows]

    def states(self) -> Mapping[str, RunState]:
        return self._fleet.states()

    def fleet(self) -> list[RunNow]:
        return self._fleet.now()

    def _run(self, run: str) -> RunRow:
        row = self._store.run(run)
        if row is None:
            raise UnknownRun(run)
        return row

    # ---- now

    def status(self, run: str) -> Status:
        row = self._run(run)
        now = self._clock.now()
        by_signal = self._by_signal(row)
        targets = self._store.targets(row.name)
        health = _health([target for _, target in targets], now)
        state = state_of(row, now, newest_value(by_signal), step_stale_seconds(by_signal), health)
        signals = tuple(self._signals(row, by_signal, now, state))
        return Status(
            run=row.name,
            framework=row.framework,
            mode=row.mode,
            lifecycle=row.lifecycle or "starting",
            now=now,
            verdict=self._verdicts.now(row, state),
            signals=signals,
            alerts=tuple(shape.alert_now(alert, now) for alert in self._active(run)),
            trust=tuple(_trust(owner, target, now, state) for owner, target in targets if _kept(target, now)),
            facts=row.facts,
            state=state,
            summary=self._summary(row, state, signals) if state.over else None,
        )

    def _summary(self, row: RunRow, state: RunState, signals: Sequence[SignalNow]) -> RunSummary:
        first = None if row.first_ts is None else row.first_ts / 1000
        steps = self._store.fleet.steps([row.id], TRAINER).get(row.id)
        spans = self._verdicts.spans(row, first or 0.0, self._clock.now(), MOST_SPANS)
        return summary(first, state.as_of, steps, signals, spans)

    def _by_signal(self, row: RunRow) -> dict[str, Rows]:
        by_signal: dict[str, Rows] = {name: [] for name in ITEMS}
        rows = self._store.newest(row.name)
        keys = self._names.of(row.name, [latest.series for latest in rows])
        for latest in rows:
            key = keys[latest.series]
            if key.metric in by_signal:
                by_signal[key.metric].append((key.labels, latest))
        return by_signal

    def _signals(self, row: RunRow, by_signal: Mapping[str, Rows], now: float, state: RunState) -> list[SignalNow]:
        stale = step_stale_seconds(by_signal)
        found = []
        for name, pairs in by_signal.items():
            item = ITEMS[name]
            if isinstance(item, Counter):
                continue
            # The row without labels was "unknown" until the first value with labels arrived.
            labelled = [pair for pair in pairs if pair[0]] or pairs
            found += [
                signal_now(item, labels, latest, row, now, stale, state)
                for labels, latest in sorted(labelled, key=_labels)
            ]
            if not pairs:
                found.append(never(item))
        return found + self._counters(row, now)

    def _counters(self, row: RunRow, now: float) -> list[SignalNow]:
        """Counters as of the watermark: they persist over restarts of the server and never become stale."""
        ts = row.watermark / 1000 if row.watermark is not None else now
        # Counters first: a series created in between then has its name.
        totals = self._store.counters(row.name)
        names = self._names.of(row.name, totals)
        found = []
        for series, value in totals.items():
            key = names[series]
            if key.metric in ITEMS:
                unit, name = ITEMS[key.metric].unit, format_name(key.metric, key.labels)
                found.append(SignalNow(name, key.metric, dict(key.labels), value, unit, "ok", now - ts, "", "", ts))
        return sorted(found, key=lambda signal: signal.name)

    def verdicts(self, run: str, start: float, end: float, limit: int = 1000) -> list[VerdictSpan]:
        return self._verdicts.spans(self._run(run), start, end, limit)

    def targets(self, run: str | None = None) -> list[TargetTrust]:
        name, now, states = self._name(run), self._clock.now(), self.states()
        rows = self._store.targets(name)
        return [_trust(owner, target, now, states.get(owner)) for owner, target in rows if _kept(target, now)]

    # ---- sandboxes

    def sandboxes(
        self, run: str, states: Sequence[str] = (), *, dangling: bool | None = None, find: str = "", limit: int = 100,
        before: str | None = None,
    ) -> list[SandboxInfo]:  # fmt: skip
        return self._sandboxes.page(self._run(run).name, states, dangling, find, limit, before)

    def sandbox_funnel(self, run: str) -> Mapping[str, int | None]:
        return self._sandboxes.funnel(self._run(run).name)

    def spinups(self, run: str, start: float, end: float, buckets: int = 60) -> list[tuple[float, Mapping[str, int]]]:
        return self._sandboxes.spinups(self._run(run).name, start, end, buckets)

    # ---- rollouts

    def rollouts(
        self, run: str, wanted: RolloutFilter = RolloutFilter(), *, sort: Sort = "seconds", descending: bool = True,  # noqa: B008
        limit: int = 100, after: str = "",
    ) -> RolloutPage:  # fmt: skip
        try:
            page = self._rollouts.page(run, wanted, sort, descending, limit, after)
        except BadKey:
            self._run(run)
            raise
        # A page with rows proves that the run exists: checking first would add a fifth of the time.
        if not page.rows:
            self._run(run)
        return page

    def rollout(self, run: str, rollout_id: str, life: int | None = None) -> RolloutDetail | None:
        return self._rollouts.one(self._run(run).name, rollout_id, life)

    def rollout_traces(self, run: str, start: float, end: float, limit: int = 5000) -> list[RolloutDetail]:
        return self._rollouts.traces(self._run(run).name, start, end, limit)

    def rollout_groups(
        self, run: str, outcomes: Sequence[str] = (), *, environment: str = "", limit: int = 100, after: str = ""
    ) -> tuple[list[GroupInfo], str]:
        return self._rollouts.groups(self._run(run).name, outcomes, environment, limit, after)

    def rollout_funnel(self, run: str, start: float, end: float, *, purpose: str = "train") -> Funnel:
        return self._rollouts.funnel(self._run(run), start, end, purpose)

    def rollout_census(self, run: str) -> list[CensusState]:
        return self._rollouts.census(self._run(run))

    def rollout_cells(self, run: str, kind: str, start: float, end: float, buckets: int = 60) -> Cells:
        return self._rollouts.cells(self._run(run).name, kind, start, end, buckets)

    def rollout_environments(self, run: str) -> list[str]:
        return self._rollouts.environments(self._run(run).name)

    def events(
        self, run: str, start: float, end: float, kinds: Sequence[str] = (), limit: int = 1000
    ) -> list[EventInfo]:
        return self._rollouts.events(self._run(run).name, start, end, kinds, limit)

    def step_times(self, run: str, start: float, end: float, most: int = 1000) -> list[StepAt]:
        name = self._run(run).name
        found = self._store.step_times(name, TRAINER, round(start * 1000), round(end * 1000), most)
        return [StepAt(one.ts / 1000, one.step, one.incarnation) for one in found]

    def what_if(self, run: str, changes: Changes) -> WhatIfAnswer:
        return what_if.ask(self.status(run), changes)

    def preflight(self, run: str) -> PreflightInfo:
        return self._preflight(self._run(run).name)

    # ---- alerts

    def alerts(self, run: str | None = None) -> list[AlertInfo]:
        return list(self._active(self._name(run)))

    def _active(self, run: str | None) -> list[AlertInfo]:
        return self._once(("active", run), lambda: self._alerts.active(run))

    def alert_history(self, run: str | None = None, limit: int = 100) -> list[AlertInfo]:
        return self._alerts.history(self._name(run), limit)

    def store_size(self) -> StoreSize:
        return self._store.retention.size()

    def silences(self, expired: bool = False) -> list[SilenceInfo]:
        return self._alerts.silences(expired)

    def rules(self, run: str | None = None) -> list[RuleInfo]:
        return self._alerts.rules(None if run is None else self.status(run))

    def deliveries(self, run: str | None = None, limit: int = 50) -> list[DeliveryInfo]:
        return self._alerts.deliveries(self._name(run), limit)

    def _name(self, run: str | None) -> str | None:
        if run is not None:
            self.cursor(run)
        return run

    # ---- history

    def series(self, run: str, names: Sequence[str], start: float, end: float, points: int = 600) -> list[Series]:
        row = self._run(run)
        width = max(1, round((end - start) * 1000 / max(1, points)))
        return [self._one(row.name, name, round(start * 1000), round(end * 1000), width) for name in names]

    def _one(self, run: str, name: str, start: int, end: int, width: int) -> Series:
        signal, labels = parse_name(name)
        item = ITEMS.get(signal)
        series = self._store.find(run, SeriesKey("", signal, labels))
        buckets = self._store.buckets(series, start, end, width) if series is not None else []
        return Series(
            name=name,
            unit=item.unit if item else "",
            ts=tuple(bucket.ts / 1000 for bucket in buckets),
            mean=tuple(bucket.total / bucket.n if bucket.n else None for bucket in buckets),
            low=tuple(bucket.low for bucket in buckets),
            high=tuple(bucket.high for bucket in buckets),
        )

    def by_step(self, run: str, names: Sequence[str], start: float, end: float, points: int = 600) -> list[StepSeries]:
        return self._by_step.series(self._run(run).name, names, start, end, points)

    @contextmanager
    def one_state(self) -> Iterator[None]:
        with self._store.one_state():
            before = _TOLD.set({})
            try:
                yield
            finally:
                _TOLD.reset(before)

    def _once(self, asked: Hashable, read: Callable[[], _T]) -> _T:
        told, key = _TOLD.get(), (self, asked)
        if told is None:
            return read()
        if key not in told:
            told[key] = read()
        found: _T = told[key]
        return found

    def mark(self) -> int | None:
        return self._store.mark()

    def cursor(self, run: str) -> str:
        found = self._once(("cursor", run), lambda: self._store.cursor(run))
        if found is None:
            raise UnknownRun(run)
        return f"{found[0]}:{found[1]}"

    def since(self, run: str, cursor: str) -> Delta:
        newest, now = self.cursor(run), self._clock.now()
        generation, _, last = newest.partition(":")
        match = _CURSOR.fullmatch(cursor)
        if match is None or match[1] != generation:
            return Delta(newest, True, now, {})
        seq = int(match[2])
        rows = self._store.points_since(run, seq, DELTA_ROWS)
        # A cursor beyond the newest seq belongs to another store, unless later points exist.
        if len(rows) >= DELTA_ROWS or (not rows and seq > int(last)):
            return Delta(newest, True, now, {})
        points = {name: tuple(sorted(found, key=_time)) for name, found in self._by_name(run, rows).items()}
        return Delta(f"{generation}:{rows[-1][0] if rows else seq}", False, now, points)

    def _by_name(self, run: str, rows: Sequence[SeqPoint]) -> dict[str, list[tuple[float, float | None]]]:
        keys = self._names.of(run, {series for _, series, *_ in rows})
        points: dict[int, list[tuple[float, float | None]]] = {}
        for _, series, ts, value, state in rows:
            points.setdefault(series, []).append((ts / 1000, value if state == PointState.VALUE else None))
        return {format_name(keys[series].metric, keys[series].labels): found for series, found in points.items()}


def _time(point: tuple[float, float | None]) -> float:
    return point[0]


def _labels(pair: tuple[Labels, LatestRow]) -> Labels:
    return pair[0]


def _health(targets: Sequence[TargetRow], now: float) -> TargetHealth:
    """As `FleetStore.targets` has it for all runs at once."""
    here = [target for target in targets if not target.gone]
    answered = max((target.last_ok_ts for target in here if target.last_ok_ts is not None), default=None)
    up = sum(target.up and not _unread(target, now) for target in here)
    return TargetHealth(up, len(here), answered, max((target.last_ts for target in here), default=None))


def _unread(row: TargetRow, now: float) -> bool:
    return not row.gone and now - row.last_ts / 1000 > TICK_STALE_SECONDS + 3 * row.interval_seconds


def _trust(run: str, row: TargetRow, now: float, state: RunState | None) -> TargetTrust:
    age = now - row.last_ok_ts / 1000 if row.last_ok_ts is not None else None
    lost = state is not None and state.name == "not_collected"
    silent = _unread(row, now) or (lost and not row.gone)
    read = words(max(0.0, now - row.last_ts / 1000))
    error = f"not read for {read}: no collector follows this run" if silent else row.error
    up = row.up and not silent
    health = (row.scrape_seconds, row.samples, row.dropped, row.unmapped)
    origin = row.origin or Origin("")
    return TargetTrust(
        row.name, run, row.collector, row.actor, up, age, error, *health, origin.source, origin.job,
        dict(origin.labels), row.last_ts / 1000 if row.gone else None, row.collector in record_formats(),
    )  # fmt: skip


def _kept(row: TargetRow, now: float) -> bool:
    """Whether to show a target. Removed targets are shown for a day: fleets that are replaced hourly have many.

    A target of unknown kind is hidden once it is identified or removed.
    """
    if row.collector == UNKNOWN:
        return not row.gone and now - row.last_ts / 1000 <= TICK_STALE_SECONDS + 3 * row.interval_seconds
    return not row.gone or now - row.last_ts / 1000 <= GONE_SECONDS
