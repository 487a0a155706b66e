"""Counters and histograms that several processes push for one run, added up into one. Pure: state in, state out.

What each process counted last is remembered, so that a push that comes twice adds nothing, a process that begins
again loses nothing, and one that comes later only adds what it counted since. Both of OTLP's temporalities.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from typing import Any

from collectors.model import Histogram, Sample
from server.push.body import Grown

# Two thousand rollout workers; the state is written with every push of the target.
STREAMS, SERIES = 2_000, 1_000
# A process that began so shortly before its first push counted everything in what is "now".
RECENT_SECONDS = 300.0
# Between two pushes of the SDKs, by default: of one that does not say since when it counted.
UNSAID_SECONDS = 60.0
# The store's resolution: two values of one series need two instants.
TICK = 0.001
EDGES_MOVED = "{}: other buckets than those it is added up in"
TOO_MANY = f"more than {SERIES} series to add up"


@dataclass(slots=True)
class ProcessTotals:
    """Running totals of one target.

    Attributes:
        since: shortly before its first push (epoch s): a process that began later was counted whole. None: no push yet.
        at: time of the newest total given out.
        streams: process -> [its newest time, *what it counted then].
        starts: process -> when it says it began to count (epoch s), where it does.
        sums: series -> what was added up, numbers in the order of `_numbers`.
        why: the first reason why something was left out, of `dropped` values.
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
        """From what `cursor` gave."""
        streams, starts = cursor.get("streams", {}), cursor.get("starts", {})
        return cls(cursor.get("since"), cursor.get("at", 0.0), streams, starts, cursor.get("sums", {}))

    def cursor(self) -> dict[str, Any]:
        """JSON-able, to be stored with what was given out."""
        if self.since is None:
            return {}
        if len(self.streams) > STREAMS:
            newest = sorted(self.streams.items(), key=lambda item: item[1][0])[-STREAMS:]
            self.streams = dict(newest)
            self.starts = {stream: start for stream, start in self.starts.items() if stream in self.streams}
        found = {"since": self.since, "at": self.at, "streams": self.streams, "sums": self.sums}
        return found | {"starts": self.starts} if self.starts else found

    def add(self, grown: Sequence[Grown], now: float) -> tuple[list[Sample], list[Histogram]]:
        """Totals that changed, at `now`; a series that begins with growth is given its zero before it."""
        if not grown:
            return [], []
        first, self.since = self.since is None, now - RECENT_SECONDS if self.since is None else self.since
        found: list[Sample | Histogram] = []
        # By their own times: what an exporter held back while it could not send is not of the moment it arrives.
        for ts, of_then in groupby(sorted(grown, key=partial(_time, now=now)), key=partial(_time, now=now)):
            found += self._add(of_then, ts, now, first)
        return [v for v in found if isinstance(v, Sample)], [v for v in found if isinstance(v, Histogram)]

    def _add(self, grown: Iterable[Grown], ts: float, now: float, first: bool) -> list[Sample | Histogram]:
        """Totals that changed by what was counted until `ts`."""
        at = max(ts, self.at + TICK)
        changed: dict[str, Sample | Histogram] = {}
        begun: list[Sample | Histogram] = []
        for one in grown:
            key = _key(one.value)
            amount = self._growth(one, now, first)
            if amount is None or not self._fits(key, one.value):
                continue
            if key not in self.sums:
                self.sums[key] = [0.0] * len(amount)
                if self._fresh(one):
                    begun.append(_made(one.value, self.sums[key], _begun(one, at)))
            self.sums[key] = [a + b for a, b in zip(self.sums[key], amount, strict=True)]
            changed[key] = _made(one.value, self.sums[key], at)
        self.at = at if changed else self.at
        return [*begun, *changed.values()]

    def _growth(self, one: Grown, now: float, first: bool) -> list[float] | None:
        """What a process counted since its last push; None: it said this before."""
        value, ts = _numbers(one.value), one.value.ts if one.value.ts is not None else now
        before = self.streams.get(one.stream)
        if before is not None and ts <= before[0]:
            return None
        self.streams[one.stream] = [ts, *value]
        if one.delta:
            return value
        # A process that began again may have counted more than before: only its start tells.
        begun = self.starts.get(one.stream, one.start)
        if one.start:
            self.starts[one.stream] = one.start
        if before is None:
            # Of a process that is older than we know it, nobody knows when it counted what: it is where we begin.
            return value if first or self._fresh(one) else [0.0] * len(value)
        last = before[1:]
        again = 0 < begun < one.start or len(last) != len(value)
        if again or _fell(last[1:] or last, value[1:] or value):
            return value  # the process began again
        return [new - old for new, old in zip(value, last, strict=True)]

    def _fresh(self, one: Grown) -> bool:
        """Did it count all of it since we listen?"""
        return one.delta or one.start >= (self.since or 0.0)

    def _fits(self, key: str, value: Sample | Histogram) -> bool:
        known = self.sums.get(key)
        if known is None and len(self.sums) < SERIES:
            same = isinstance(value, Histogram) and any(other.startswith(_family(key)) for other in self.sums)
            why = EDGES_MOVED.format(value.metric) if same else ""
        else:
            why = "" if known is not None else TOO_MANY
        if why:
            self.dropped, self.why = self.dropped + 1, self.why or why
        return not why


def _time(one: Grown, now: float) -> float:
    """When it was counted; one whose clock is ahead counted it now."""
    return min(one.value.ts, now) if one.value.ts is not None else now


def _begun(one: Grown, at: float) -> float:
    """When a series was 0: when counting began. Dated later, what it counted would look like the work of a moment."""
    said = max(one.start, at - RECENT_SECONDS) if one.start else at - UNSAID_SECONDS
    return min(said, at - TICK)


def _fell(last: Sequence[float], value: Sequence[float]) -> bool:
    """Did a count fall? (The sum of a histogram may: what is observed can be below zero.)"""
    return any(new < old for new, old in zip(value, last, strict=True))


def _key(value: Sample | Histogram) -> str:
    edges = value.edges if isinstance(value, Histogram) else ()
    return json.dumps([value.metric, value.labels, edges])


def _family(key: str) -> str:
    """The key without the edges."""
    metric, labels, _ = json.loads(key)
    return json.dumps([metric, labels])[:-1] + ", ["


def _numbers(value: Sample | Histogram) -> list[float]:
    """What can be added: a counter's value; a histogram's sum, then its cumulative counts."""
    return [value.value] if isinstance(value, Sample) else [value.total, *value.counts]


def _made(like: Sample | Histogram, numbers: Sequence[float], ts: float) -> Sample | Histogram:
    if isinstance(like, Sample):
        return replace(like, value=numbers[0], ts=ts)
    return replace(like, total=numbers[0], counts=tuple(numbers[1:]), ts=ts)
