"""Adds up counters and histograms that several processes push for one run. Pure: state in, state out.

The last count of each process is stored. So a repeated push adds nothing, a restarted process loses nothing, and a
process that appears later adds only its increase. Supports both temporalities of OTLP.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any

from collectors.model import Histogram, Sample
from server.push.body import Grown

# Most processes of one target. The state is written with every push of the target.
STREAMS = 2_000
# Most series added up for one target.
SERIES = 1_000
# A process that began at most this long (s) before its first push counts from its start.
RECENT_SECONDS = 300.0
# Assumed start of counting (s before the push) if none is reported: the SDKs' default interval.
DEFAULT_INTERVAL_SECONDS = 60.0
# The store's resolution (s): two values of one series need two instants.
TICK = 0.001
EDGES_CHANGED = "{}: its buckets differ from those of earlier pushes"
TOO_MANY = f"more than {SERIES} series to add up"


@dataclass(slots=True)
class ProcessTotals:
    """Running totals of one target.

    Attributes:
        since: shortly before its first push (epoch s); processes that began later are counted from their start. None:
            no push yet.
        at: time of the newest total returned.
        streams: process -> [its newest time, *its counts at that time].
        starts: process -> reported start of counting (epoch s), if any.
        sums: series -> the total, in the order of `_numbers`.
        why: the first reason for `dropped` values.
    """

    since: float | None = None
    at: float = 0.0
    streams: dict[str, list[float]] = field(default_factory=dict)
    starts: dict[str, float] = field(default_factory=dict)
    sums: dict[str, list[float]] = field(default_factory=dict)
    dropped: int = 0
    why: str = ""

    @classmethod
    def of(cls, cursor: Mapping[str, Any]) -> "ProcessTotals":
        """Restores totals from the value of `cursor`."""
        streams, starts = cursor.get("streams", {}), cursor.get("starts", {})
        return cls(cursor.get("since"), cursor.get("at", 0.0), streams, starts, cursor.get("sums", {}))

    def cursor(self) -> dict[str, Any]:
        """Returns the state as JSON-able values, to be stored with the totals."""
        if self.since is None:
            return {}
        if len(self.streams) > STREAMS:
            newest = sorted(self.streams.items(), key=lambda item: item[1][0])[-STREAMS:]
            self.streams = dict(newest)
            self.starts = {stream: start for stream, start in self.starts.items() if stream in self.streams}
        found = {"since": self.since, "at": self.at, "streams": self.streams, "sums": self.sums}
        return found | {"starts": self.starts} if self.starts else found

    def add(self, grown: Sequence[Grown], now: float) -> tuple[list[Sample], list[Histogram]]:
        """Adds increases; returns changed totals. A series that begins with an increase gets a zero before it."""
        if not grown:
            return [], []
        first, self.since = self.since is None, now - RECENT_SECONDS if self.since is None else self.since
        found: list[Sample | Histogram] = []
        # Grouped by their own times, because an exporter may send late what it counted earlier.
        for ts, group in groupby(sorted(grown, key=partial(_time, now=now)), key=partial(_time, now=now)):
            found += self._add(group, ts, now, first)
        return [v for v in found if isinstance(v, Sample)], [v for v in found if isinstance(v, Histogram)]

    def _add(self, grown: Iterable[Grown], ts: float, now: float, first: bool) -> list[Sample | Histogram]:
        """Adds increases up to `ts`; returns changed totals."""
        at = max(ts, self.at + TICK)
        changed: dict[str, Sample | Histogram] = {}
        begun: list[Sample | Histogram] = []
        for item in grown:
            key = _key(item.value)
            amount = self._growth(item, now, first)
            if amount is None or not self._fits(key, item.value):
                continue
            if key not in self.sums:
                self.sums[key] = [0.0] * len(amount)
                if self._fresh(item):
                    begun.append(_with_numbers(item.value, self.sums[key], _begun(item, at)))
            self.sums[key] = [a + b for a, b in zip(self.sums[key], amount, strict=True)]
            changed[key] = _with_numbers(item.value, self.sums[key], at)
        self.at = at if changed else self.at
        return [*begun, *changed.values()]

    def _growth(self, item: Grown, now: float, first: bool) -> list[float] | None:
        """Returns the increase of a process since its last push; None: a repeated push."""
        value, ts = _numbers(item.value), item.value.ts if item.value.ts is not None else now
        before = self.streams.get(item.stream)
        if before is not None and ts <= before[0]:
            return None
        self.streams[item.stream] = [ts, *value]
        if item.delta:
            return value
        # A restarted process may have counted more than before, so only its start time shows the restart.
        begun = self.starts.get(item.stream, item.start)
        if item.start:
            self.starts[item.stream] = item.start
        if before is None:
            # When an older process counted its total is unknown, so only its later increases count.
            return value if first or self._fresh(item) else [0.0] * len(value)
        last = before[1:]
        is_restart = 0 < begun < item.start or len(last) != len(value)
        if is_restart or _fell(last[1:] or last, value[1:] or value):
            return value  # the process restarted
        return [new - old for new, old in zip(value, last, strict=True)]

    def _fresh(self, item: Grown) -> bool:
        """Was everything counted since the first push?"""
        return item.delta or item.start >= (self.since or 0.0)

    def _fits(self, key: str, value: Sample | Histogram) -> bool:
        present = key in self.sums
        if not present and len(self.sums) < SERIES:
            same = isinstance(value, Histogram) and any(other.startswith(_family(key)) for other in self.sums)
            why = EDGES_CHANGED.format(value.metric) if same else ""
        else:
            why = "" if present else TOO_MANY
        if why:
            self.dropped, self.why = self.dropped + 1, self.why or why
        return not why


def _time(item: Grown, now: float) -> float:
    """Returns when the value was counted; now if its clock is ahead."""
    return min(item.value.ts, now) if item.value.ts is not None else now


def _begun(item: Grown, at: float) -> float:
    """Returns when a series was 0: the start of counting. A later time would turn its count into a spike."""
    start = max(item.start, at - RECENT_SECONDS) if item.start else at - DEFAULT_INTERVAL_SECONDS
    return min(start, at - TICK)


def _fell(last: Sequence[float], value: Sequence[float]) -> bool:
    """Did a count decrease? The sum of a histogram may decrease, because observations can be negative."""
    return any(new < old for new, old in zip(value, last, strict=True))


def _key(value: Sample | Histogram) -> str:
    edges = value.edges if isinstance(value, Histogram) else ()
    return json.dumps([value.metric, value.labels, edges])


def _family(key: str) -> str:
    """Returns the key without the edges."""
    metric, labels, _ = json.loads(key)
    return json.dumps([metric, labels])[:-1] + ", ["


def _numbers(value: Sample | Histogram) -> list[float]:
    """Returns the additive values: a counter's value; a histogram's sum, then its cumulative counts."""
    return [value.value] if isinstance(value, Sample) else [value.total, *value.counts]


def _with_numbers(like: Sample | Histogram, numbers: Sequence[float], ts: float) -> Sample | Histogram:
    if isinstance(like, Sample):
        return replace(like, value=numbers[0], ts=ts)
    return replace(like, total=numbers[0], counts=tuple(numbers[1:]), ts=ts)
