"""`rollscope alerts test --replay RUN`: which rules would have fired on a stored run, when, and for how long.

The same state machine runs on stored points, hour by hour. The report names what the store does not hold: the lifecycle
over time (a run counts as running from its first step to its last sample), totals of our own counters, and metrics of
steps.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import collectors
from collectors.model import Labels
from server import signals
from server.alerts.inputs import TARGET_UP
from server.alerts.model import Alert, Condition, Rule, Table
from server.alerts.rules import Evaluator
from server.alerts.text import duration, expression, formatted, unit_of, utc
from server.lib.errors import ConfigError
from server.signals import Counter, Signal
from server.signals.aggregates import stale_seconds
from server.store.types import PointState

if TYPE_CHECKING:
    from server.store import Store

# ---- alerts frames
# Frames of stored or written series on which rules are evaluated, for both forms of `alerts test`.

ENDED = None
"""A value of a track: the series has ended. NaN is a gap: the value is unknown."""


@dataclass(slots=True)
class Track:
    """One series: (time, value) in order of time; a value holds until the next one, at most `carry` seconds.

    Attributes:
        silent: (time) -> why the value is unknown after a silence longer than `carry`; "": the series has ended.
    """

    labels: Labels
    carry: float = math.inf
    silent: Callable[[float], str] = lambda _: "no sample"
    times: list[float] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)
    grown: list[float] = field(default_factory=list)

    def add(self, ts: float, value: float | None) -> None:
        """Append an item, unless it is not newer than the last one."""
        if self.times and ts <= self.times[-1]:
            return
        total = self.grown[-1] if self.grown else 0.0
        before = next((v for v in reversed(self.values) if v is not None and v == v), None)
        if value is not None and before is not None and value == value:
            # Prometheus' rule: a decrease is a reset, the new value is the increase.
            total += value - before if value >= before else value
        self.times.append(ts)
        self.values.append(value)
        self.grown.append(total)

    def forget(self, until: float) -> None:
        """Drop items before `until`, except the one whose value holds at `until`."""
        # A counter's growth is measured from that item, too.
        keep = max(0, bisect_right(self.times, until) - 1)
        del self.times[:keep], self.values[:keep], self.grown[:keep]

    def at(self, now: float) -> tuple[float | None, str]:
        """(value, reason for a missing value) at a time; before its first item a series counts as ended."""
        i = bisect_right(self.times, now) - 1
        if i < 0:
            return ENDED, ""
        if now - self.times[i] > self.carry and self.values[i] is not None:
            why = self.silent(now)
            return (math.nan, why) if why else (ENDED, "")
        value = self.values[i]
        return value, "no data" if value is not None and value != value else ""

    def increase(self, now: float, window: float) -> float:
        """Growth over the window, or since the first item if the series is younger."""
        i = bisect_right(self.times, now) - 1
        begin = max(0, bisect_right(self.times, now - window) - 1)
        return self.grown[i] - self.grown[begin]

    def young(self, now: float, window: float) -> bool:
        """Whether the series began within the window."""
        return not self.times or self.times[0] > now - window


@dataclass(frozen=True, slots=True)
class HistoryFrame:
    """See `server.alerts.model.Frame`. ``tracks``: the series of a condition, None when it has no source."""

    now: float
    run: str
    lifecycle: str
    tracks: Callable[[Condition], Sequence[Track] | None]
    replayed: bool = True
    cache: dict[tuple[str, str, str, float, bool], Table | None] = field(default_factory=dict)

    def reason(self, series: Labels) -> str:
        return ""

    def address(self, series: Labels) -> str:
        return ""

    def missing(self, condition: Condition, series: Labels) -> str:
        """Nothing is missing: a stored history holds every series that existed."""
        return ""

    def table(self, condition: Condition) -> Table | None:
        # Many rules use the same source, so its table is made once per instant.
        key = (condition.source, condition.name, condition.of, condition.window, condition.summed)
        if key not in self.cache:
            table = self._table(condition)
            self.cache[key] = table.summed() if condition.summed and table is not None else table
        return self.cache[key]

    def _table(self, condition: Condition) -> Table | None:
        tracks = self.tracks(condition)
        if tracks is None:
            return None
        labels: list[Labels] = []
        values: list[float] = []
        gaps: dict[int, str] = {}
        for track in tracks:
            value, why = self._value(track, condition)
            if value is None:
                continue
            if value != value:
                gaps[len(values)] = why
            labels.append(track.labels)
            values.append(value)
        return Table(labels, values, gaps, hash(tuple(labels)))

    def _value(self, track: Track, condition: Condition) -> tuple[float | None, str]:
        value, why = track.at(self.now)
        if value is None or value != value or condition.of == "value":
            return value, why
        if condition.source == "metric" and track.young(self.now, condition.window):
            return math.nan, "younger than the window"
        return track.increase(self.now, condition.window), ""


def by_name(tracks: Mapping[str, Sequence[Track]]) -> Callable[[Condition], Sequence[Track] | None]:
    """Finds tracks by the condition's name."""
    return lambda condition: tracks.get(condition.name)


# Between evaluations, as in the live driver; a run longer than OLD_SECONDS is evaluated every minute.
TICK_SECONDS = 5.0
OLD_TICK_SECONDS = 60.0
OLD_SECONDS = 86_400.0
# Memory depends on the chunk, not on the run: an hour of few series, minutes of many (10,000 series have 7 million
# samples an hour, 100 bytes each).
CHUNK_SECONDS = 3600.0
CHUNK_SHORTEST = 300.0  # seconds
CHUNK_SERIES = 500  # up to so many series a chunk is an hour
LOOK_BACK_SECONDS = 3600.0
# A value holds for three of its target's reports, at least 15 s, as in the live driver.
CARRIED_REPORTS = 3
CARRIED_SECONDS = 15.0
UP = "up"
STEP_SECONDS = "trainer_step_seconds"


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
    running_since: float
    episodes: list[Episode]
    never: Mapping[str, str]
    quiet: list[str]
    errors: Mapping[str, str]


def run(
    store: "Store", run: str, rules: Sequence[Rule], start: float | None = None, end: float | None = None
) -> Replay:
    """Evaluate the rules over a stored run; ``start`` and ``end`` (epoch seconds) narrow it.

    Raises:
        ConfigError: no such run, or no data in that time.
    """
    row = store.runs.get(run)
    if row is None:
        names = ", ".join(item.name for item in store.runs.all()) or "none"
        raise ConfigError([f"alerts test: no run is named {run!r}; runs: {names}"])
    first, last = (row.first_ts or 0) / 1000, (row.last_ts or 0) / 1000
    begin, stop = max(first, start or first), min(last, end or last)
    if row.first_ts is None or begin > stop:
        raise ConfigError([f"alerts test: run {run!r} has no data in that time"])
    every = TICK_SECONDS if stop - begin <= OLD_SECONDS else OLD_TICK_SECONDS
    since = _first_step(store, run)
    history, evaluator, record = _History(store, run, rules), Evaluator(rules, run), _Record(rules)
    for now in _grid(begin, stop, every):
        history.reach(now)
        lifecycle = "starting" if since is not None and now < since else "running"
        changed = evaluator.evaluate(HistoryFrame(now, run, lifecycle, history.tracks))
        record.note(now, changed, evaluator)
    never = {rule.name: why for rule in rules if (why := history.why_never(rule))}
    episodes = record.episodes(stop)
    fired = {episode.rule for episode in episodes}
    quiet = [rule.name for rule in rules if rule.name not in fired and rule.name not in never]
    return Replay(run, begin, stop, every, first if since is None else since, episodes, never, quiet, record.errors)


def _grid(begin: float, stop: float, every: float) -> Iterator[float]:
    """Instants of the tick grid; the last one is at or after the end, so that it includes all data."""
    number, last = math.ceil(begin / every), math.ceil(stop / every)
    return (n * every for n in range(number, last + 1))


def _first_step(store: "Store", run: str) -> float | None:
    """Event time of the first step of any axis; None without a trainer."""
    for incarnation in range(store.runs.incarnation(run) + 1):
        newest = store.steps.newest(run, last=1, incarnation=incarnation)
        if newest:
            return min(_first_of(store, run, row.axis, incarnation, row.step) for row in newest)
    return None


def _first_of(store: "Store", run: str, axis: str, incarnation: int, newest: int) -> float:
    """Time of an axis' first step, by bisection: the store pages backwards only, and a run may have a million steps."""
    low, high = -1, newest
    while low < high:
        middle = (low + high) // 2
        step_rows = store.steps.newest(run, axis, 1, before=middle + 1, incarnation=incarnation)
        low, high = (low, step_rows[0].step) if step_rows else (middle + 1, high)
    return store.steps.newest(run, axis, 1, before=high + 1, incarnation=incarnation)[0].ts / 1000


class _History:
    """The series of the rules, loaded in chunks; samples that no window needs are dropped."""

    def __init__(self, store: "Store", run: str, rules: Sequence[Rule]) -> None:
        self._store, self._run = store, run
        conditions = [condition for rule in rules for condition in rule.conditions]
        self._window = max((condition.window for condition in conditions), default=0.0)
        self._names = {c.name for c in conditions if c.source == "signal"} | {STEP_SECONDS}
        self._metrics = {c.name for c in conditions if c.source == "metric"} | {UP}
        self._targets = {row.name: row for _, row in store.runs.targets(run)}
        self._by_source: dict[tuple[str, str], list[Track]] = {}
        self._signals: dict[int, tuple[str, Track]] = {}
        self._raw: dict[int, Track] = {}
        self._ups: dict[str, Track] = {}
        self._health_of: dict[int, Track] = {}
        self._stepped: list[Track] = []
        self._loaded: float | None = None
        self._make_tracks()
        series = max(1, len(self._raw) + len(self._signals))
        self._chunk = min(CHUNK_SECONDS, max(CHUNK_SHORTEST, CHUNK_SECONDS * CHUNK_SERIES / series))

    def _make_tracks(self) -> None:
        by_step = {item.name for item in signals.load() if isinstance(item, Signal) and item.cadence == "step"}
        for number, key in self._store.series.listed(self._run):
            if key.target == "" and key.metric in self._names:
                track = Track(key.labels, silent=lambda _: "no step for a long time")
                self._signals[number] = (key.metric, track)
                self._by_source.setdefault(("signal", key.metric), []).append(track)
                if key.metric in by_step:
                    self._stepped.append(track)
            elif key.target and not key.axis and key.metric in self._metrics:
                labels = tuple(sorted((*key.labels, ("target", key.target))))
                track = self._raw[number] = Track(labels, self._carry(key.target), self._silent(key.target))
                self._by_source.setdefault(("metric", key.metric), []).append(track)
                if key.metric == UP:
                    self._health(number, key.target)

    def _health(self, number: int, target: str) -> None:
        """`up` as the rules' `target_up`: each value holds until the next scrape, as on the target list."""
        row = self._targets.get(target)
        track = Track((("kind", row.collector if row else ""), ("target", target)))
        self._ups[target] = self._health_of[number] = track
        for source in ("signal", "metric"):
            self._by_source.setdefault((source, TARGET_UP), []).append(track)

    def _carry(self, target: str) -> float:
        row = self._targets.get(target)
        if row is None:
            return CARRIED_SECONDS
        collector = collectors.load().get(row.collector)
        report = max(row.interval_seconds, collector.report_seconds if collector else TICK_SECONDS)
        return max(CARRIED_SECONDS, CARRIED_REPORTS * report)

    def _silent(self, target: str) -> "_Silent":
        return _Silent(target, self._ups)

    def reach(self, now: float) -> None:
        """Load all samples up to `now`."""
        if self._loaded is None:
            self._loaded = now - LOOK_BACK_SECONDS - self._window  # values that hold at the beginning
        while self._loaded <= now:
            until = self._loaded + self._chunk
            self._load(round(self._loaded * 1000), round(until * 1000))
            self._loaded = until
            for track in self._all():
                track.forget(min(now, until) - self._window)
        # A step's values hold for a time that depends on the current step duration.
        steps = [track.at(now)[0] for track in self._by_source.get(("signal", STEP_SECONDS), ())]
        limit = stale_seconds(value for value in steps if value is not None and value == value)
        for track in self._stepped:
            track.carry = limit

    def _all(self) -> Iterator[Track]:
        yield from self._raw.values()
        yield from self._health_of.values()
        yield from (track for _, track in self._signals.values())

    def _load(self, start: int, end: int) -> None:
        points = self._store.samples.points(list(self._signals), start, end)
        valued = {
            (self._signals[number][0], ts) for number, rows in points.items() for ts, v, _ in rows if v is not None
        }
        for number, rows in points.items():
            name, track = self._signals[number]
            for ts, value, state in rows:
                # A point without this series but with others ends the series. A point without any value is a gap.
                over = state == PointState.NOT_APPLICABLE or (name, ts) in valued
                track.add(ts / 1000, value if value is not None else ENDED if over else math.nan)
        for number, _, samples in self._store.samples.window(self._run, self._metrics, start, end):
            for track in (
                tracks_by_id[number] for tracks_by_id in (self._raw, self._health_of) if number in tracks_by_id
            ):
                for ts, value in samples:
                    track.add(ts / 1000, value)

    def tracks(self, condition: Condition) -> Sequence[Track] | None:
        """The series of a condition; the store has no history of our own counters."""
        if condition.name in _COUNTERS and condition.source == "signal":
            return None
        return self._by_source.get((condition.source, condition.name))

    def why_never(self, rule: Rule) -> str:
        """Why no alert of this rule was possible, or ""."""
        for condition in rule.conditions:
            if condition.kind != "absence" and self.tracks(condition) is None:
                if condition.source == "signal" and condition.name in _COUNTERS:
                    return f"the store has no history of the counter {condition.name}"
                return f"the {condition.source} {condition.name} is not stored"
        return ""


_COUNTERS = frozenset(item.name for item in signals.load() if isinstance(item, Counter))


@dataclass(frozen=True, slots=True)
class _Silent:
    """Decides whether a silent series has ended (its target is up) or is unknown (its target is down)."""

    target: str
    ups: Mapping[str, Track]

    def __call__(self, now: float) -> str:
        up = self.ups.get(self.target)
        return "" if up is None or up.at(now)[0] != 0 else f"target {self.target} does not answer"


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
        f"  assumed to run from {utc(replay.running_since)} on, because the store has no history of the lifecycle",
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
