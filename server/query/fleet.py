"""The list of all runs, with the verdict on each: a few reads for all of them, not a few for each."""

from collections.abc import Mapping

from collectors.model import Labels
from server.clock import Clock
from server.query.now import ITEMS, TICK_STALE_SECONDS, signal_now, step_stale_seconds
from server.query.types import RunInfo, RunNow, SignalNow
from server.query.verdicts import told
from server.signals._model import Signal
from server.signals._window import TRAINER
from server.store import Store
from server.store.fleet import Latest
from server.store.types import LatestRow, RunRow

MOST_RUNS = 500
"""More than anybody looks through; beyond it the ones that moved last."""

SHOWN = ("trainer_wait_ratio", "staleness_versions", "cost_usd_per_million_tokens", "trainer_step_seconds")
"""Signals that stand in the list."""

# What our own tick says whatever a run's sources do is no news of it; a synchronous run's staleness is always 0.
_ALWAYS = frozenset({"trusted_targets_ratio", "trainer_stall_ratio", "staleness_versions", "bottleneck"})


def run_info(row: RunRow) -> RunInfo:
    """A run as stored, for readers."""
    first = row.first_ts / 1000 if row.first_ts is not None else None
    last = row.last_ts / 1000 if row.last_ts is not None else None
    return RunInfo(row.name, row.framework, row.mode, row.lifecycle or "starting", first, last, row.facts)


class FleetReader:
    """Thread-safe; `server.query.reader.StoreReader` hands its questions on."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    def now(self) -> list[RunNow]:
        """See `Reader.fleet`."""
        rows = sorted(self._store.runs()[:MOST_RUNS], key=lambda row: row.name)
        if not rows:
            return []
        ids, now, fleet = [row.id for row in rows], self._clock.now(), self._store.fleet
        latest, verdicts, steps = fleet.latest(ids, SHOWN), fleet.verdicts(ids), fleet.steps(ids, TRAINER)
        newest = fleet.newest(ids, _ALWAYS)
        health = fleet.targets(ids, round(now * 1000), round(TICK_STALE_SECONDS * 1000))
        return [
            RunNow(
                info=run_info(row),
                verdict=told(verdicts.get(row.id), row.lifecycle, now),
                signals=_signals(row, latest.get(row.id, []), now),
                step=steps.get(row.id),
                newest=newest[row.id] / 1000 if row.id in newest else None,
                up=health.get(row.id, (0, 0))[0],
                targets=health.get(row.id, (0, 0))[1],
            )
            for row in rows
        ]


def _signals(row: RunRow, latest: Latest, now: float) -> tuple[SignalNow, ...]:
    by_signal: dict[str, list[tuple[Labels, LatestRow]]] = {}
    for key, point in latest:
        by_signal.setdefault(key.metric, []).append((key.labels, point))
    stale = step_stale_seconds(by_signal)
    return tuple(one for name in SHOWN for one in _of(name, by_signal, row, now, stale))


def _of(
    name: str, by_signal: Mapping[str, list[tuple[Labels, LatestRow]]], row: RunRow, now: float, stale: float
) -> list[SignalNow]:
    item, found = ITEMS[name], by_signal.get(name, [])
    assert isinstance(item, Signal)
    # The label-less row said "unknown" until the first value came with labels.
    labelled = [pair for pair in found if pair[0]] or found
    return [signal_now(item, labels, point, row, now, stale) for labels, point in labelled]
