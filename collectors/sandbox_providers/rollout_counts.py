"""Counts saved rollouts in event time: ended, lost to their sandbox, errors by type.

The counts are stored in the cursor, so they survive restarts and count each episode once. A counter that has samples
only when it increases would be interpolated over the pause or, after a gap, not counted. So a sample with the old value
precedes each increase after a pause.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from collectors.model import Labels, Sample
from collectors.sandbox_providers.trace_rows import TracedRollout

# Seconds between two samples of a series: the store's resolution.
TICK = 0.001
# Pause after which the old value is repeated; shorter than the 15 s for which a sample holds.
PAUSE_SECONDS = 5.0
# Most different names of one kind, because names come from files and each makes a series.
MAX_NAMES = 50
# Stands for further names.
OTHER = "other"
# Accepted clock difference within a cluster; a time further in the future is invalid.
AHEAD_SECONDS = 30.0

Counts = dict[str, dict[str, Any]]
"""environment -> {seen, lost, errors: {type: n}, ts: time of the last sample}; JSON-able."""


def count(counts: Counts, rollouts: Iterable[TracedRollout], now: float) -> Iterator[Sample]:
    """Adds rollouts to `counts` (changed in place) in the order of their ends. Returns samples of the counters."""
    for rollout in sorted(rollouts, key=lambda rollout: _time(rollout, now)):
        environment = _bounded(counts, rollout.environment)
        before = counts.setdefault(environment, {"seen": 0, "lost": 0, "errors": {}, "ts": None})
        yield from _add(before, environment, rollout, _time(rollout, now))


def _add(totals: dict[str, Any], environment: str, rollout: TracedRollout, ended: float) -> Iterator[Sample]:
    last = totals["ts"]
    types = [_bounded(totals["errors"], kind) for kind in rollout.errors]
    fresh = [kind for kind in types if kind not in totals["errors"]]
    totals["errors"] |= dict.fromkeys(fresh, 0)
    # A rollout that is read late is counted at the last sample's time, because a counter cannot grow in the past.
    ts = round(max(ended, last + 2 * TICK if last is not None else ended), 3)
    if last is None or ts - last > PAUSE_SECONDS or fresh:
        yield from _samples(totals, environment, types, round(ts - TICK, 3))
    totals["seen"] += 1
    totals["lost"] += rollout.lost
    for kind in types:
        totals["errors"][kind] += 1
    totals["ts"] = ts
    yield from _samples(totals, environment, types, ts)


def _samples(totals: dict[str, Any], environment: str, types: Iterable[str], ts: float) -> Iterator[Sample]:
    named: Labels = (("environment", environment),)
    yield Sample("rollouts_seen_total", float(totals["seen"]), named, ts)
    yield Sample("rollouts_infra_failed_total", float(totals["lost"]), named, ts)
    for kind in dict.fromkeys(types):
        yield Sample("rollout_attempt_errors_total", float(totals["errors"][kind]), (*named, ("type", kind)), ts)


def _time(rollout: TracedRollout, now: float) -> float:
    ended = rollout.ended_at
    return ended if ended is not None and ended <= now + AHEAD_SECONDS else now


def _bounded(names: Iterable[str], name: str) -> str:
    names = list(names)
    return name if name in names or len(names) < MAX_NAMES else OTHER
