"""Counters over saved rollouts, in event time: how many ended, how many their sandbox lost, errors by type.

Kept in the cursor, so they go on over restarts and count each episode once. A counter that only speaks when something
ends would be interpolated over its silence, or (after a gap) not counted at all; so a sample with the old value
precedes each increase that comes after a pause.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from collectors.model import Labels, Sample
from collectors.sandbox_providers.trace_rows import TracedRollout

# Two samples of a series need different times, and the store keeps milliseconds.
TICK = 0.001
# Shorter than the 15 s that any series is carried: a pause beyond it gets its sample.
PAUSE_SECONDS = 5.0
# Names come from files: a bound on how many series they make.
NAMES_MAX = 50
OTHER = "other"
# Clocks of one cluster differ a little; a time further ahead is no time.
AHEAD_SECONDS = 30.0

Counts = dict[str, dict[str, Any]]
"""environment -> {seen, lost, errors: {type: n}, ts: time of the last sample}; JSON-able."""


def count(counts: Counts, rollouts: Iterable[TracedRollout], now: float) -> Iterator[Sample]:
    """Add rollouts to `counts` (changed in place) in the order they ended; the samples that say so."""
    for one in sorted(rollouts, key=lambda one: _time(one, now)):
        environment = _known(counts, one.environment)
        before = counts.setdefault(environment, {"seen": 0, "lost": 0, "errors": {}, "ts": None})
        yield from _add(before, environment, one, _time(one, now))


def _add(kept: dict[str, Any], environment: str, one: TracedRollout, ended: float) -> Iterator[Sample]:
    last = kept["ts"]
    types = [_known(kept["errors"], kind) for kind in one.errors]
    fresh = [kind for kind in types if kind not in kept["errors"]]
    kept["errors"] |= dict.fromkeys(fresh, 0)
    # What is read late counts when it is read: a counter cannot grow in the past.
    ts = round(max(ended, last + 2 * TICK if last is not None else ended), 3)
    if last is None or ts - last > PAUSE_SECONDS or fresh:
        yield from _samples(kept, environment, types, round(ts - TICK, 3))
    kept["seen"] += 1
    kept["lost"] += one.lost
    for kind in types:
        kept["errors"][kind] += 1
    kept["ts"] = ts
    yield from _samples(kept, environment, types, ts)


def _samples(kept: dict[str, Any], environment: str, types: Iterable[str], ts: float) -> Iterator[Sample]:
    named: Labels = (("environment", environment),)
    yield Sample("rollouts_seen_total", float(kept["seen"]), named, ts)
    yield Sample("rollouts_infra_failed_total", float(kept["lost"]), named, ts)
    for kind in dict.fromkeys(types):
        yield Sample("rollout_attempt_errors_total", float(kept["errors"][kind]), (*named, ("type", kind)), ts)


def _time(one: TracedRollout, now: float) -> float:
    ended = one.ended_at
    return ended if ended is not None and ended <= now + AHEAD_SECONDS else now


def _known(names: Iterable[str], name: str) -> str:
    names = list(names)
    return name if name in names or len(names) < NAMES_MAX else OTHER
