"""Frames of stored or written series on which rules are evaluated, for both forms of `alerts test`. Pure."""

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from collectors.model import Labels
from server.alerts.model import Condition, Table

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
