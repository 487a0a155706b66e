"""A `Reader` in memory: the same promises as the store's, deterministic, with verbs to make things happen.

Points are a log; the cursor is ``generation:position in the log``, so late points are new and a rewrite resets.
"""

import bisect
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import islice
from types import SimpleNamespace
from typing import Any

import msgspec
from msgspec import structs

from dashboard.widgets.status import LAST
from server.query import runs as fleet_query
from server.query import what_if
from server.query.metrics import CATALOGUE
from server.query.preflight import PreflightInfo
from server.query.run_state import OVER, RunState, UnknownRun
from server.query.sandboxes import edge_of
from server.query.signals import COMPUTED
from server.query.types import (
    AlertInfo,
    DeliveryInfo,
    Delta,
    MetricInfo,
    RuleInfo,
    RunInfo,
    RunNow,
    RunSummary,
    Series,
    SignalInfo,
    SignalNow,
    SilenceInfo,
    Status,
    StepSeries,
    TargetTrust,
    VerdictSpan,
)
from server.query.verdicts import NO_VERDICT
from server.query.what_if import Changes, WhatIfEstimate
from server.store.types import SandboxRow
from server.verdict.model import Verdict
from tests.dashboard.memory_engines import MemoryEngines
from tests.dashboard.memory_rollouts import MemoryRollouts

Point = tuple[float, float | None]

_GRAVE = ("critical", "warning", "info")


@dataclass
class _Run:
    info: RunInfo
    signals: dict[str, SignalNow] = field(default_factory=dict)
    points: dict[str, list[Point]] = field(default_factory=dict)
    log: list[tuple[str, Point]] = field(default_factory=list)
    targets: list[TargetTrust] = field(default_factory=list)
    verdict: Verdict | None = None
    spans: list[VerdictSpan] = field(default_factory=list)
    state: RunState | None = None
    summary: RunSummary | None = None
    generation: int = 1
    # (epoch s, step) of the trainer's steps, by time.
    steps: list[tuple[float, int]] = field(default_factory=list)


class _Topic:
    """An attribute of `Reader`: names of its methods -> methods of `MemoryReader`, so that a test can replace one."""

    def __init__(self, **methods: str) -> None:
        self._methods = methods

    def __get__(self, reader: Any, owner: type) -> Any:
        return SimpleNamespace(**{name: getattr(reader, own) for name, own in self._methods.items()})


class MemoryReader(MemoryRollouts, MemoryEngines):
    """Thread-safe: the app reads on threads while a test appends."""

    runs = _Topic(all="all_runs", now="fleet", states="states", events="events")
    signals = _Topic(infos="infos", series="series", cursor="cursor", since="since")
    steps = _Topic(newest="newest_steps", times="step_times", series="by_step")
    verdicts = _Topic(spans="verdict_spans")
    engines = _Topic(now="engines_now", cells="engine_cells")
    sandboxes = _Topic(page="sandbox_page", funnel="sandbox_funnel", spinups="spinups")
    rollouts = _Topic(
        page="rollout_page", get="rollout", traces="rollout_traces", groups="rollout_groups", funnel="rollout_funnel",
        census="rollout_census", cells="rollout_cells", environments="rollout_environments",
    )  # fmt: skip
    metrics = _Topic(all="metric_catalogue", series="metric_series")
    alerts = _Topic(
        active="active_alerts", history="alert_history", silences="silences", rules="rules", deliveries="deliveries"
    )

    def __init__(self, now: float, infos: Iterable[SignalInfo] = ()) -> None:
        MemoryRollouts.__init__(self)
        MemoryEngines.__init__(self)
        self.clock = now
        self._infos = {info.name: info for info in infos}
        self._runs: dict[str, _Run] = {}
        self._lock = threading.RLock()
        self.calls: list[str] = []
        self.alert_rows: list[AlertInfo] = []
        self.rule_rows: list[RuleInfo] = []
        self.delivery_rows: list[DeliveryInfo] = []
        self.silence_rows: list[tuple[SilenceInfo, Mapping[str, str]]] = []
        # In the order in which they were met.
        self.boxes: dict[str, list[SandboxRow]] = {}
        self.preflights: dict[str, PreflightInfo] = {}
        # Of the boxes, how many had ended before anybody watched.
        self.met_ended = 0

    # Verbs of the test.

    def add_run(self, name: str, lifecycle: str = "running", facts: Mapping[str, str | float] | None = None) -> None:
        framework = str((facts or {}).get("framework", "unknown"))
        self._runs[name] = _Run(RunInfo(name, framework, "async", lifecycle, None, None, facts or {}))

    def change(self, run: str, **changes: object) -> None:
        """Lifecycle, mode: anything of `RunInfo`."""
        with self._lock:
            found = self._runs[run]
            found.info = structs.replace(found.info, **changes)

    def set_targets(self, run: str, *targets: TargetTrust) -> None:
        self._runs[run].targets = list(targets)

    def set_steps(self, run: str, *steps: tuple[float, int]) -> None:
        self._runs[run].steps = list(steps)

    def set_verdict(self, run: str, verdict: Verdict | Mapping[str, Any] | None, *spans: VerdictSpan) -> None:
        found = msgspec.convert(verdict, Verdict) if isinstance(verdict, Mapping) else verdict
        with self._lock:
            self._runs[run].verdict, self._runs[run].spans = found, list(spans)

    def set_state(self, run: str, state: RunState | None, summary: RunSummary | None = None) -> None:
        """None: as its lifecycle and its newest number have it."""
        with self._lock:
            self._runs[run].state, self._runs[run].summary = state, summary

    def silence(self, run: str, now: SignalNow) -> None:
        """A signal without a value, and why."""
        self._runs[run].signals[now.name] = now

    def append(self, run: str, now: SignalNow, points: Iterable[Point] = ()) -> None:
        """New points of a signal; its newest value is the last known one."""
        with self._lock:
            found = self._runs[run]
            kept = found.points.setdefault(now.name, [])
            for point in points:
                if kept and point[0] < kept[-1][0]:
                    bisect.insort(kept, point, key=lambda p: p[0])
                else:
                    kept.append(point)
                found.log.append((now.name, point))
            last = kept[-1] if kept else (now.ts, now.value)
            found.signals[now.name] = structs.replace(now, value=last[1], ts=last[0])
            self._reach(found)

    def rewrite(self, run: str) -> None:
        """History changed: every cursor of before is foreign now."""
        self._runs[run].generation += 1

    @staticmethod
    def _reach(run: _Run) -> None:
        ends = [(kept[0][0], kept[-1][0]) for kept in run.points.values() if kept]
        if ends:
            run.info = structs.replace(run.info, first_ts=min(e[0] for e in ends), last_ts=max(e[1] for e in ends))

    def set_alerts(self, *alerts: AlertInfo) -> None:
        with self._lock:
            self.alert_rows = list(alerts)

    def _muted(self, alert: AlertInfo) -> AlertInfo:
        if alert.muted.startswith("inhibited"):
            return alert
        hit = next((s for s, m in self.silence_rows if m.items() <= alert.labels.items()), None)
        if hit is None:
            return structs.replace(alert, muted="")
        return structs.replace(
            alert, muted=f"silenced by {hit.created_by} until 12:30 UTC: {hit.comment} (id {hit.id})"
        )

    def put_silence(self, matchers: Mapping[str, str], starts: float, ends: float, by: str, comment: str) -> str:
        """Exact matchers only; returns the new silence's id."""
        with self._lock:
            name = f"5ile-{len(self.silence_rows) + 1:04d}"
            words = tuple(f'{key}="{value}"' for key, value in matchers.items())
            self.silence_rows.append((SilenceInfo(name, "active", words, starts, ends, by, comment), dict(matchers)))
            return name

    def end_silence(self, name: str) -> bool:
        """False when there is none of that id that has not ended."""
        with self._lock:
            known = any(silence.id == name for silence, _ in self.silence_rows)
            self.silence_rows = [row for row in self.silence_rows if row[0].id != name]
            return known

    def put_boxes(self, run: str, *boxes: SandboxRow) -> None:
        """Sandboxes as last heard; one that is known keeps its place."""
        with self._lock:
            known = {(box.provider, box.id): box for box in self.boxes.get(run, ())}
            self.boxes[run] = list((known | {(box.provider, box.id): box for box in boxes}).values())

    # The protocol.

    def sandbox_page(
        self, run: str, states: Sequence[str] = (), *, dangling: bool | None = None, find: str = "", limit: int = 100,
        before: str | None = None,
    ) -> list[SandboxRow]:  # fmt: skip
        with self._lock:
            self.calls.append(f"sandboxes {run}")
            self._run(run)
            found = list(reversed(self.boxes.get(run, ())))
        if before is not None:
            found = found[1 + next((i for i, box in enumerate(found) if box.id == before), -1) :]
        found = [box for box in found if find.lower() in f"{box.id}\n{box.name}".lower()]
        wanted = (box for box in found if (not states or box.state in states) and dangling in (None, box.dangling))
        return [self._aged(box) for box in islice(wanted, limit)]

    def _aged(self, box: SandboxRow) -> SandboxRow:
        waits = box.ready_at is None and box.state not in ("terminated", "failed") and box.requested_at is not None
        return structs.replace(box, pending_seconds=self.clock - (box.requested_at or 0) if waits else None)

    def what_if(self, run: str, changes: Changes) -> WhatIfEstimate:
        return what_if.estimate(self.status(run), changes)

    def preflight(self, run: str) -> PreflightInfo:
        with self._lock:
            self._run(run)
            return self.preflights.get(run, PreflightInfo("not_configured"))

    def sandbox_funnel(self, run: str) -> Mapping[str, int | None]:
        with self._lock:
            self._run(run)
            own = [box for box in self.boxes.get(run, ()) if box.own]
        times = {"started": "started_at", "ready": "ready_at", "ended": "ended_at"}
        counts = {stage: sum(getattr(box, name) is not None for box in own) for stage, name in times.items()}
        tells = {box.provider for box in own if box.first_exec_at is not None}
        ran = sum(box.first_exec_at is not None for box in own) if tells else None
        told = {"first_exec": ran, "first_exec_of": sum(box.provider in tells for box in own)}
        failed = sum(bool(box.cause) for box in own)
        return {"requested": len(own), **counts, **told, "failed": failed, "met_ended": self.met_ended}

    def spinups(self, run: str, start: float, end: float, buckets: int = 60) -> list[tuple[float, Mapping[str, int]]]:
        with self._lock:
            self.calls.append(f"spinups {run}")
            self._run(run)
            boxes = [box for box in self.boxes.get(run, ()) if box.own and box.spinup_seconds is not None]
        width, cells = (end - start) / buckets, dict[int, dict[str, int]]()
        for box in boxes:
            if box.ready_at is not None and start <= box.ready_at < end:
                column, edge = (
                    cells.setdefault(int((box.ready_at - start) / width), {}),
                    edge_of(box.spinup_seconds or 0),
                )
                column[edge] = column.get(edge, 0) + 1
        return [(start + number * width, cells[number]) for number in sorted(cells)]

    def active_alerts(self, run: str | None = None) -> list[AlertInfo]:
        with self._lock:
            found = [self._muted(a) for a in self.alert_rows if run in (None, a.run) and a.state != "resolved"]
        return sorted(found, key=lambda a: (a.state != "firing", _GRAVE.index(a.severity), a.active_at))

    def alert_history(self, run: str | None = None, limit: int = 100) -> list[AlertInfo]:
        with self._lock:
            found = [a for a in self.alert_rows if run in (None, a.run) and a.state == "resolved"]
        return sorted(found, key=lambda a: -(a.resolved_at or 0))[:limit]

    def silences(self, expired: bool = False) -> list[SilenceInfo]:
        with self._lock:
            return sorted((silence for silence, _ in self.silence_rows), key=lambda s: s.ends_at)

    def rules(self, status: Status | None = None) -> list[RuleInfo]:
        return list(self.rule_rows)

    def metric_catalogue(self, run: str | None = None) -> list[MetricInfo]:
        """No target reports anything below a signal."""
        return list(CATALOGUE.values())

    def metric_series(self, run: str, selectors: Sequence[str], start: float, end: float, points: int) -> list[Series]:
        return []

    def deliveries(self, run: str | None = None, limit: int = 50) -> list[DeliveryInfo]:
        with self._lock:
            found = [d for d in self.delivery_rows if run in (None, d.run)]
        return sorted(found, key=lambda d: -d.created_at)[:limit]

    def health(self) -> dict[str, str]:
        return {"store": "47.0 MB in use", "writes": "12,000 rows/h"}

    def now(self) -> float:
        return self.clock

    def all_runs(self) -> list[RunInfo]:
        with self._lock:
            found = [run.info for run in self._runs.values()]
        return sorted(found, key=lambda run: -(run.last_ts or 0))

    @property
    def infos(self) -> Mapping[str, SignalInfo]:
        return self._infos

    def fleet(self) -> list[RunNow]:
        with self._lock:
            self.calls.append("fleet")
            return [self._run_now(self._runs[name]) for name in sorted(self._runs)]

    def _run_now(self, run: _Run) -> RunNow:
        told = [s for s in run.signals.values() if s.value is not None and s.ts is not None]
        here = [target for target in run.targets if target.gone_since is None]
        shown = tuple(
            structs.replace(s, age_seconds=self._age(s)) for s in run.signals.values() if s.signal in fleet_query.SHOWN
        )
        return RunNow(
            run.info, run.verdict, shown, run.steps[-1][1] if run.steps else None,
            max((s.ts or 0 for s in told), default=None), sum(target.up for target in here), len(here), _state(run),
        )  # fmt: skip

    def states(self) -> Mapping[str, RunState]:
        with self._lock:
            return {name: _state(run) for name, run in self._runs.items()}

    def by_step(self, run: str, names: Sequence[str], start: float, end: float, points: int = 600) -> list[StepSeries]:
        found, series = self._run(run), self.series(run, names, start, end, points)
        return [_by_step(one, found.steps) for one in series]

    def _run(self, name: str) -> _Run:
        if name not in self._runs:
            raise UnknownRun(name)
        return self._runs[name]

    def status(self, run: str) -> Status:
        with self._lock:
            self.calls.append(f"status {run}")
            found = self._run(run)
            signals = {name: structs.replace(s, age_seconds=self._age(s)) for name, s in found.signals.items()}
            info = found.info
            return Status(
                info.name,
                info.framework,
                info.mode,
                info.lifecycle,
                self.clock,
                found.verdict or NO_VERDICT,
                signals,
                (),
                tuple(target for target in found.targets if target.gone_since is None),
                info.facts,
                _state(found),
                found.summary,
                tuple(target for target in found.targets if target.gone_since is not None),
            )

    def _age(self, signal: SignalNow) -> float | None:
        return self.clock - signal.ts if signal.ts is not None else None

    def series(self, run: str, names: Sequence[str], start: float, end: float, points: int = 600) -> list[Series]:
        with self._lock:
            found = self._run(run)
            return [_buckets(found, name, start, end, points) for name in names]

    def one_state(self) -> AbstractContextManager[None]:
        return nullcontext()

    def mark(self) -> int | None:
        return None

    def cursor(self, run: str) -> str:
        with self._lock:
            found = self._run(run)
            return f"{found.generation}:{len(found.log)}"

    def since(self, run: str, cursor: str) -> Delta:
        with self._lock:
            self.calls.append(f"since {run}")
            found = self._run(run)
            generation, _, position = cursor.partition(":")
            fits = generation == str(found.generation) and position.isdigit() and int(position) <= len(found.log)
            new: dict[str, list[Point]] = {}
            for name, point in found.log[int(position) :] if fits else ():
                new.setdefault(name, []).append(point)
            points = {name: tuple(sorted(kept, key=lambda p: p[0])) for name, kept in new.items()}
            return Delta(self.cursor(run), not fits, self.clock, points)

    def verdict_spans(self, run: str, start: float, end: float, limit: int = 1000) -> list[VerdictSpan]:
        with self._lock:
            self.calls.append(f"verdicts {run}")
            found = self._run(run).spans
        return [one for one in found if one.start <= end and (one.end is None or one.end > start)][-limit:]

    def targets(self, run: str | None = None) -> list[TargetTrust]:
        runs = [self._run(run)] if run is not None else list(self._runs.values())
        return [target for found in runs for target in found.targets]


def _state(run: _Run) -> RunState:
    if run.state is not None:
        return run.state
    told = (s for s in run.signals.values() if s.ts is not None and (s.value is not None or LAST in s.why))
    measured = (s for s in told if s.signal not in COMPUTED and not s.signal.endswith("_total"))
    newest = max((s.ts for s in measured if s.ts is not None), default=None)
    over = run.info.lifecycle in OVER
    return RunState("finished", newest, newest) if over else RunState("live", None, newest)


def _by_step(series: Series, steps: Sequence[tuple[float, int]]) -> StepSeries:
    """Of several points of one step the last, which suits what tests append."""
    rows: dict[int, tuple[float, float, float]] = {}
    for ts, mean, low, high in zip(series.ts, series.mean, series.low, series.high, strict=True):
        at = bisect.bisect_left(steps, (ts, -1))
        if mean is not None and low is not None and high is not None and steps:
            rows[steps[at][1] if at < len(steps) else steps[-1][1] + 1] = (mean, low, high)
    columns = list(zip(*(rows[step] for step in sorted(rows)), strict=True)) or [(), (), ()]
    return StepSeries(series.name, series.unit, tuple(sorted(rows)), columns[0], columns[1], columns[2])


def _buckets(run: _Run, name: str, start: float, end: float, points: int) -> Series:
    signal = run.signals.get(name)
    unit = signal.unit if signal else ""
    width = max((end - start) / points, 1e-9)
    cells: dict[int, list[Point]] = {}
    for point in run.points.get(name, ()):
        if start <= point[0] <= end:
            cells.setdefault(int((point[0] - start) / width), []).append(point)
    rows = [_bucket(cells[i]) for i in sorted(cells)]
    columns = list(zip(*rows, strict=True)) or [(), (), (), ()]
    return Series(name, unit, columns[0], columns[1], columns[2], columns[3])


def _bucket(points: list[Point]) -> tuple[float, float | None, float | None, float | None]:
    known = [value for _, value in points if value is not None]
    if not known:
        return points[0][0], None, None, None
    return points[0][0], sum(known) / len(known), min(known), max(known)
