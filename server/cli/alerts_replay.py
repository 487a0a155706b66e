"""`rollscope alerts test --replay RUN`: which rules would have fired on a stored run, when, and for how long.

Rules are evaluated as in the live driver, on what the store has of each instant. The report names rules for which it
has nothing.
"""

import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from msgspec import structs

import collectors
from collectors.model import Target
from server import signals
from server.alerts.inputs import TARGET_UP
from server.alerts.model import Alert, Condition, Rule
from server.alerts.rules import Evaluator
from server.alerts.settings import AlertSettings
from server.alerts.text import duration, expression, formatted, unit_of, utc
from server.derive.alerts import RunAlerts
from server.derive.deriver import GENERATED, Deriver
from server.derive.driver import carry_of
from server.derive.results import NO_LONGER, SignalResults
from server.ingest.sandboxes import arrivals_of
from server.lib.errors import ConfigError
from server.signals import Counter
from server.signals.model import TICK_SECONDS, Value
from server.store.types import Batch, LatestRow, PointState, RunRow, SeriesKey

if TYPE_CHECKING:
    from server.store import Store

# Between evaluations of a run longer than OLD_SECONDS; of a shorter one, as in the live driver.
OLD_TICK_SECONDS = 60.0
OLD_SECONDS = 86_400.0
# Memory depends on the chunk, not on the run: an hour of few series, minutes of many (10,000 series have 7 million
# samples an hour, 300 bytes each).
CHUNK_SECONDS = 3600.0
CHUNK_SHORTEST = 300.0  # seconds
CHUNK_SERIES = 500  # up to so many series a chunk is an hour
UP = "up"


@dataclass(frozen=True, slots=True)
class Episode:
    """One firing of a rule. ``ended_at`` None: it still fires at the end. ``peak``: its worst value."""

    rule: str
    severity: str
    labels: Mapping[str, str]
    active_at: float
    fired_at: float
    ended_at: float | None
    seconds: float
    peak: float | None
    unit: str
    reason: str


@dataclass(frozen=True, slots=True)
class Replay:
    """The result. ``never``: rule -> why it could not fire on this run; ``errors``: rule -> what failed."""

    run: str
    start: float
    end: float
    every: float
    running_since: float | None
    episodes: list[Episode]
    never: Mapping[str, str]
    quiet: list[str]
    errors: Mapping[str, str]


def run(store: "Store", run: str, rules: Sequence[Rule]) -> Replay:
    """Evaluate the rules over a stored run.

    Raises:
        ConfigError: no such run, or no data of it.
    """
    row = store.runs.get(run)
    if row is None:
        names = ", ".join(item.name for item in store.runs.all()) or "none"
        raise ConfigError([f"alerts test: no run is named {run!r}; runs: {names}"])
    if row.first_ts is None or row.last_ts is None:
        raise ConfigError([f"alerts test: run {run!r} has no data"])
    begin, end = row.first_ts / 1000, row.last_ts / 1000
    every = TICK_SECONDS if end - begin <= OLD_SECONDS else OLD_TICK_SECONDS
    stored, record = _StoredRun(store, row, rules), _Record(rules)
    running_since = None
    for now in _grid(begin, end, every):
        record.note(now, stored.tick(now), stored.alerts.evaluator)
        running_since = stored.deriver.running_since if running_since is None else running_since
    never = {rule.name: why for rule in rules if (why := stored.why_never(rule))}
    episodes = record.episodes(end)
    fired = {episode.rule for episode in episodes}
    quiet = [rule.name for rule in rules if rule.name not in fired and rule.name not in never]
    return Replay(run, begin, end, every, running_since, episodes, never, quiet, record.errors)


def _grid(begin: float, stop: float, every: float) -> Iterator[float]:
    """Instants of the tick grid; the last one is at or after the end, so that it includes all data."""
    number, last = math.ceil(begin / every), math.ceil(stop / every)
    return (n * every for n in range(number, last + 1))


class _StoredRun:
    """A stored run as its driver had it: newest values of its signals, and a deriver with gauges, steps and totals.

    Signals are the stored points, because records of rollouts and sandboxes show only how they ended, and because
    samples are kept for a shorter time than points. Counters are added up again from what they count, except those of
    rollouts and groups: of these the store has no times.
    """

    def __init__(self, store: "Store", row: RunRow, rules: Sequence[Rule]) -> None:
        self._store, self._run = store, row.name
        names = {condition.name for rule in rules for condition in rule.conditions if condition.source == "signal"}
        counted = {_COUNTERS[name].metric for name in names & _COUNTERS.keys()}
        self._counters = [item for item in _COUNTERS.values() if item.name in {*names, GENERATED}]
        self._integrated = {counter.metric for counter in self._counters if counter.of == "signal"}
        self.alerts = RunAlerts(store.alerts, row.name, AlertSettings(tuple(rules)))
        self._targets = {row.name: row for _, row in store.runs.targets(row.name)}
        self.deriver = Deriver(self._counters, self._carry(), self.alerts.metrics)
        self.deriver.facts.update(row.facts)
        self._results = SignalResults(store, row.name, {item.name: item for item in signals.load()}, self.deriver)
        keys = store.series.listed(row.name)
        self._points = {n: key for n, key in keys if not key.target and key.metric in names | self._integrated}
        self._stored = {("metric" if key.target else "signal", key.metric) for _, key in keys}
        self._axes = {key.axis for _, key in keys if key.axis}
        self._named = counted | self.alerts.metrics
        read = sum(key.metric in self.deriver.tick_metrics for _, key in keys)
        chunk = CHUNK_SECONDS * CHUNK_SERIES / max(1, read + len(self._points))
        self._chunk = min(CHUNK_SECONDS, max(CHUNK_SHORTEST, chunk // _MINUTE * _MINUTE))
        self._loaded = (row.first_ts or 0) / 1000 // _MINUTE * _MINUTE
        self._due = deque(sorted(self._changes_of_sandboxes_and_targets(), key=_time))

    def tick(self, now: float) -> list[Alert]:
        """Evaluates the rules at an instant, which must not decrease; returns the alerts that changed."""
        deriver, batch = self.deriver, Batch(self._run)
        while self._loaded <= now:
            until = self._loaded + self._chunk
            loaded = self._changes(round(self._loaded * 1000), round(until * 1000))
            self._due, self._loaded = deque(sorted([*self._due, *loaded], key=_time)), until
            deriver.forget(now)
        while self._due and self._due[0][0] <= now:
            self._due.popleft()[1]()
        if deriver.lifecycle == "starting" and (not self._axes or deriver.is_running(now)):
            deriver.begin(now)
        deriver.counting.answered((name, now, self._values(name)) for name in self._integrated)
        self.alerts.tick(now, deriver, self._results.now(), partial(self._results.stale, now), batch, replayed=True)
        return batch.alerts

    def why_never(self, rule: Rule) -> str:
        """After the last tick: why no alert of this rule was possible, or ""."""
        counted = {("signal", name) for name, _ in self.deriver.counter_values()}
        for condition in rule.conditions:
            if condition.kind == "absence" or (condition.source, condition.name) in self._stored | counted:
                continue
            if condition.name == TARGET_UP and self.deriver.health:
                continue
            if condition.name in _COUNTERS:
                return f"the store has no history of the counter {condition.name}"
            return f"the {condition.source} {condition.name} is not stored"
        return ""

    def _values(self, name: str) -> list[Value]:
        series = self._results.known.get(name, {}).values()
        return [Value(one.value, one.labels) for one in series if one.value is not None]

    def _carry(self) -> Callable[[str], float]:
        known, kinds = dict[str, tuple[Target, float]](), collectors.load()
        for name, row in self._targets.items():
            target = Target(name, self._run, row.collector, "generator", interval_seconds=row.interval_seconds)
            known[name] = target, kinds[row.collector].report_seconds if row.collector in kinds else TICK_SECONDS
        return carry_of(known)

    # ---- what the store has, as changes in the order of time

    def _changes(self, start: int, end: int) -> Iterator["_Change"]:
        """What happened in [start, end), epoch ms."""
        yield from self._points_within(start, end)
        for _, key, samples in self._store.samples.window(self._run, self._metrics(), start, end):
            for ts, value in samples if key.target else ():
                yield ts / 1000, partial(self._sample, ts / 1000, key, value)
        for axis in sorted(self._axes):
            yield from self._steps_within(axis, start, end)

    def _metrics(self) -> set[str]:
        """Metrics to load: engines that generate show only that a run has begun, but have many series."""
        metrics = {UP, *self.deriver.tick_metrics}
        begun = not self._axes or self.deriver.lifecycle != "starting"
        return metrics - ({_COUNTERS[GENERATED].metric} - self._named if begun else set())

    def _points_within(self, start: int, end: int) -> Iterator["_Change"]:
        points = self._store.samples.points(list(self._points), start, end)
        valued = {(self._points[n].metric, ts) for n, rows in points.items() for ts, v, _ in rows if v is not None}
        for number, rows in points.items():
            key = self._points[number]
            for ts, value, state in rows:
                # A point without this series but with others ends the series. A point without any value is a gap.
                ended = (key.metric, ts) in valued
                why = "" if value is not None else NO_LONGER if ended else "no data"
                latest = LatestRow(number, ts, value, PointState(state), why)
                yield ts / 1000, partial(self._results.recover, [(key, latest)])

    def _steps_within(self, axis: str, start: int, end: int) -> Iterator["_Change"]:
        # At most one step in a millisecond; the step before the first is none of them.
        numbers: dict[int, list[int]] = {}
        for one in self._store.steps.times(self._run, axis, start - 1, end - 1, end - start):
            if one.ts >= start:
                numbers.setdefault(one.incarnation, []).append(one.step)
        for incarnation, found in numbers.items():
            last, count = max(found), max(found) - min(found) + 1
            for row in self._store.steps.newest(self._run, axis, count, last + 1, incarnation):
                for target, values in row.told.items() if start <= row.ts < end else ():
                    ts = row.ts / 1000
                    yield ts, partial(self.deriver.step, axis, incarnation, row.step, ts, target, values)

    def _changes_of_sandboxes_and_targets(self) -> Iterator["_Change"]:
        counted = any(counter.of == "sandbox" for counter in self._counters)
        for row in self._store.sandboxes.recent(self._run, 0) if counted else ():
            ready, failed = row.ready_seen is not None, row.failed_seen is not None
            for arrival in arrivals_of(row, created=True, became_ready=ready, failed=failed):
                yield arrival.ts, partial(self.deriver.sandbox, arrival)
        for target in self._targets.values():
            if target.gone:
                yield target.last_ts, partial(self.deriver.see, target)

    def _sample(self, ts: float, key: SeriesKey, value: float) -> None:
        if key.metric == UP and key.target in self._targets:
            before = self.deriver.health.get(key.target)
            last_ok = ts if value else before and before.last_ok_ts
            row = self._targets[key.target]
            health = structs.replace(row, up=bool(value), last_ts=ts, last_ok_ts=last_ok, error="", error_kind="")
            self.deriver.see(health)
        self.deriver.sample(ts, key.target, key.metric, key.labels, value)


_COUNTERS = {item.name: item for item in signals.load() if isinstance(item, Counter)}
_MINUTE = 60.0
_Change = tuple[float, Callable[[], Any]]
_time = itemgetter(0)


@dataclass(slots=True)
class _Record:
    """Collects ended episodes, and the peak of those that still fire."""

    rules: Sequence[Rule]
    errors: dict[str, str] = field(default_factory=dict)
    _rules: dict[str, Rule] = field(init=False)
    _open: dict[tuple[str, float], tuple[Alert, float | None]] = field(default_factory=dict)
    _done: list[Episode] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._rules = {rule.name: rule for rule in self.rules}

    def note(self, now: float, changed: Sequence[Alert], evaluator: Evaluator) -> None:
        for name, why in evaluator.errors.items():
            self.errors.setdefault(name, f"{utc(now)}: {why}")
        for alert in changed:
            if alert.state == "resolved":
                _, peak = self._open.pop((alert.fingerprint, alert.active_at))
                self._done.append(self._episode(alert, peak, now))
        for alert in evaluator.firing:
            key = (alert.fingerprint, alert.active_at)
            _, peak = self._open.get(key, (alert, None))
            self._open[key] = (alert, _worse(self._rules[alert.rule].condition, peak, alert.value))

    def episodes(self, end: float) -> list[Episode]:
        """All episodes in order of firing; those that still fire are measured to `end`."""
        still_firing = [self._episode(alert, peak, end) for alert, peak in self._open.values()]
        return sorted(
            [*self._done, *still_firing],
            key=lambda episode: (episode.fired_at, episode.rule, sorted(episode.labels.items())),
        )

    def _episode(self, alert: Alert, peak: float | None, now: float) -> Episode:
        rule, fired = self._rules[alert.rule], alert.fired_at or alert.active_at
        series = {name: value for name, value in alert.labels if name not in ("alertname", "run", "severity", "class")}
        return Episode(
            rule.name, rule.severity, series, alert.active_at, fired, alert.resolved_at, max(0.0, now - fired), peak,
            unit_of(rule.condition), alert.reason,
        )  # fmt: skip


def _worse(condition: Condition, peak: float | None, value: float | None) -> float | None:
    """The value further beyond the threshold; without a direction, the newest."""
    if peak is None or value is None or condition.op in ("==", "!="):
        return peak if value is None else value
    return max(peak, value) if condition.op in (">", ">=") else min(peak, value)


def text(replay: Replay, rules: Sequence[Rule]) -> str:
    """A table for the terminal."""
    span = f"{utc(replay.start)} to {utc(replay.end)} ({duration(round(replay.end - replay.start))})"
    lines = [
        f"run {replay.run}: {span}, every {duration(replay.every)}",
        "  at no time running" if replay.running_since is None else f"  running from {utc(replay.running_since)} on",
        "would have fired:" if replay.episodes else "nothing would have fired",
    ]
    expressions = {rule.name: expression(rule) for rule in rules}
    lines += [f"  {row}" for episode in replay.episodes for row in _rows(episode, expressions)]
    if replay.never:
        lines += ["could not fire:", *(f"  {name}: {why}" for name, why in replay.never.items())]
    if replay.errors:
        lines += ["failed:", *(f"  {name}: {why}" for name, why in replay.errors.items())]
    if replay.quiet:
        lines += ["did not fire:", *(f"  {name}: {expressions[name]}" for name in replay.quiet)]
    return "\n".join(lines)


def _rows(episode: Episode, expressions: Mapping[str, str]) -> Iterator[str]:
    labels = ",".join(f'{name}="{value}"' for name, value in sorted(episode.labels.items()))
    lasted = f"for {duration(round(episode.seconds))}" + ("" if episode.ended_at else " (still firing at the end)")
    peak = "" if episode.peak is None else f", peak {formatted(episode.peak, episode.unit)}"
    yield f"{utc(episode.fired_at)}  {episode.rule}{{{labels}}} ({episode.severity}) {lasted}{peak}"
    ended = f"; ended: {episode.reason}" if episode.ended_at and episode.reason else ""
    yield f"    {expressions[episode.rule]}; true since {utc(episode.active_at)}{ended}"


def dump(replay: Replay) -> str:
    """The same as JSON; times are epoch seconds."""
    return json.dumps(asdict(replay), indent=2)
