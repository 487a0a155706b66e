"""Histograms reported by sources, over five minutes: observations by the minute, summed over the fleet.

A reading is a total since the process began; what it adds to the one before is put into the minute of the reading, by
the rules of the store (`server.store.histograms`), whose minutes fill it again after a restart. Memory is one reading
per series, and six minutes per layout of edges: it does not grow with time, and hardly with the fleet.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add, lt, sub

from msgspec import structs

from collectors.model import Histogram, Labels

MINUTE_SECONDS = 60.0
WINDOW_SECONDS = 300.0
KEPT_MINUTES = 6
# Seconds. Observations of a source that was silent for longer are not current.
REMEMBERED_SECONDS = 10 * WINDOW_SECONDS

Bucket = tuple[float, float]
"""(upper edge, observations at most that large)."""
Edges = tuple[float, ...]

# Labels that are kept; series are summed over all others. Only metrics of single engines cost a pool per engine.
WINDOWED: Mapping[str, tuple[str, ...]] = {
    "sandbox_exec_seconds": (),
    "sandbox_spinup_seconds": ("image",),
    "time_to_first_token_seconds": (),
    "inter_token_latency_seconds": (),
    "e2e_request_seconds": (),
    "generator_queue_seconds": (),
    "generator_iteration_tokens": (),
    "kv_transfer_seconds": (),
    "generator_weight_update_seconds": ("operation", "target"),
}
"""Histograms that a tick signal reads: the dozens of others go to the store only."""


@dataclass(slots=True)
class Pool:
    """Observations of one metric under one label set and one layout of edges.

    Attributes:
        minutes: minute since the epoch -> cumulative counts (one per edge and one of all), then the sum.
        last_ts, until: the newest reading, and until when its sources count as reporting.
    """

    metric: str
    labels: Labels
    edges: Edges
    minutes: dict[int, list[float]] = field(default_factory=dict)
    last_ts: float = -math.inf
    until: float = -math.inf

    def fresh(self, now: float) -> bool:
        return now <= self.until

    def add(self, minute: int, grown: Sequence[float]) -> None:
        bins = self.minutes.get(minute)
        if bins is not None:
            self.minutes[minute] = list(map(add, bins, grown))
            return
        self.minutes[minute] = [*grown]
        for old in [at for at in self.minutes if at <= minute - KEPT_MINUTES]:
            del self.minutes[old]

    def within(self, now: float) -> list[float]:
        """As a minute, of the last five; the minute in which the window begins by its share within."""
        found = [0.0] * (len(self.edges) + 2)
        for minute, grown in self.minutes.items():
            begin = minute * MINUTE_SECONDS
            share = min(1.0, (begin + MINUTE_SECONDS - (now - WINDOW_SECONDS)) / MINUTE_SECONDS)
            if share > 0 and begin <= now:
                found = [a + share * b for a, b in zip(found, grown, strict=True)]
        return found


@dataclass(slots=True)
class Histograms:
    """All windowed histograms of one run: the last reading of every series, and the pools they go into."""

    pools: dict[tuple[str, Labels, Edges], Pool] = field(default_factory=dict)
    # Cached, because the pool of the next reading is nearly always the same.
    _last: dict[tuple[str, str, Labels], tuple[float, Histogram, Pool]] = field(default_factory=dict)

    def read(self, ts: float, target: str, new: Histogram, carry: float) -> None:
        """Adds the next reading of a series. The first is the base; one that is not newer is ignored."""
        key = (target, new.metric, new.labels)
        before = self._last.get(key)
        if before is not None and ts <= before[0]:
            return
        same = before is not None and before[1].edges == new.edges
        pool = before[2] if before is not None and same else self.pool(target, new.metric, new.labels, new.edges)
        self._last[key] = (ts, new, pool)
        pool.last_ts, pool.until = max(pool.last_ts, ts), max(pool.until, ts + carry)
        grown = _grown(before[1], new) if before is not None else None
        if grown is not None:
            pool.add(math.floor(ts / MINUTE_SECONDS), grown)

    def begin(self, target: str, labels: Labels) -> None:
        """The process of these series restarted at zero: the next reading counts completely."""
        for key, (ts, old, pool) in self._last.items():
            if key[0] == target and set(labels) <= set(key[2]):
                self._last[key] = (ts, structs.replace(old, counts=(0.0,) * len(old.counts), total=0.0), pool)

    def pool(self, target: str, metric: str, labels: Labels, edges: Edges) -> Pool:
        """The pool that receives the observations of a series."""
        windowed = WINDOWED.get(metric, ())
        own = tuple(pair for pair in sorted((*labels, ("target", target))) if pair[0] in windowed)
        key = (metric, own, edges)
        if key not in self.pools:
            self.pools[key] = Pool(metric, own, edges)
        return self.pools[key]

    def by_metric(self) -> dict[str, list[Pool]]:
        found: dict[str, list[Pool]] = {}
        for pool in self.pools.values():
            found.setdefault(pool.metric, []).append(pool)
        return found

    def fresh(self, now: float) -> bool:
        """Whether any source of the metric still reports."""
        return any(pool.fresh(now) for pool in self.pools.values())

    def forget(self, now: float) -> None:
        """Drops series that were silent for ten windows, because engines come and go and memory must stay bounded."""
        old = now - REMEMBERED_SECONDS
        self._last = {key: at for key, at in self._last.items() if at[0] >= old}
        self.pools = {key: pool for key, pool in self.pools.items() if pool.last_ts >= old}


def _grown(old: Histogram, new: Histogram) -> list[float] | None:
    """Increase since the previous reading; None without one. Other edges or a decrease mean a new process."""
    if old.edges != new.edges or any(map(lt, new.counts, old.counts)):
        return [*new.counts, new.total] if new.counts[-1] else None
    if old.counts[-1] == new.counts[-1]:
        return None
    return [*map(sub, new.counts, old.counts), new.total - old.total]


# ---- queries of signals


def observed(pools: Iterable[Pool], now: float) -> list[Bucket]:
    """Observations within five minutes, cumulative and ascending; empty when there are none.

    Sources with the same edges are summed. Different edges cannot be summed: the layout with most observations is used.
    """
    layouts: dict[Edges, list[float]] = {}
    for pool in pools:
        grown = pool.within(now)[:-1]
        layout = layouts.get(pool.edges)
        layouts[pool.edges] = grown if layout is None else [a + b for a, b in zip(layout, grown, strict=True)]
    edges, counts = max(layouts.items(), key=lambda item: item[1][-1], default=((), [0.0]))
    return list(zip((*edges, math.inf), counts, strict=True)) if counts[-1] > 0 else []


def totals(pools: Iterable[Pool], now: float) -> tuple[float, float]:
    """(observations, their sum) within five minutes, whatever the edges."""
    found = [pool.within(now)[-2:] for pool in pools]
    return sum(count for count, _ in found), sum(total for _, total in found)


def quantile(buckets: Sequence[Bucket], q: float) -> float:
    """Linear within its bucket from 0 on, like Prometheus; beyond the last edge the edge itself as a lower bound."""
    rank = q * buckets[-1][1]
    low = below = 0.0
    for edge, count in buckets:
        if count >= rank and count > below:
            return low if math.isinf(edge) else low + (edge - low) * (rank - below) / (count - below)
        low, below = edge, count
    return low


def quantiles(buckets: Sequence[Bucket], wanted: Iterable[tuple[str, float]]) -> Iterator[tuple[str, float]]:
    """(name, value) of quantiles beyond the first bucket: within it only "below the first edge" is known."""
    for name, q in wanted:
        value = quantile(buckets, q)
        if value > buckets[0][0]:
            yield name, value
