"""Reads runs: the list of all runs with their verdicts, in a few queries for all of them, and events of a run."""

from collections.abc import Mapping, Sequence

from server.lib.clock import Clock
from server.query.run_state import RunState, state_of, stored_run
from server.query.signals import COMPUTED, ITEMS, TICK_STALE_SECONDS, Rows, newest_step, signal_now, step_stale_seconds
from server.query.types import EventInfo, RunInfo, RunNow, SignalNow
from server.query.verdicts import current_verdict
from server.signals.model import Signal
from server.signals.window import TRAINER
from server.store import Store
from server.store.generators import NO_TARGETS, Latest, TargetHealth
from server.store.types import RunRow

# Runs in the list; beyond it only those that were active last.
MOST_RUNS = 500
# Signals in the list.
SHOWN = ("trainer_wait_ratio", "staleness_versions", "cost_usd_per_million_tokens", "trainer_step_seconds")


def run_info(row: RunRow) -> RunInfo:
    """A run as stored, for readers."""
    first = row.first_ts / 1000 if row.first_ts is not None else None
    last = row.last_ts / 1000 if row.last_ts is not None else None
    return RunInfo(row.name, row.framework, row.mode, row.lifecycle or "starting", first, last, row.facts)


class RunReader:
    """Reads runs. Thread-safe."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    def all(self) -> list[RunInfo]:
        """All runs, the one with the newest measured value first: the derived ones of a silent run are new, too."""
        rows = self._store.runs.all()
        newest = self._store.fleet.newest([row.id for row in rows[:MOST_RUNS]], COMPUTED) if rows else {}
        rows = sorted(rows, key=lambda row: (newest.get(row.id) or row.last_ts or 0, row.name), reverse=True)
        return [run_info(row) for row in rows]

    def events(
        self, run: str, start: float, end: float, kinds: Sequence[str] = (), limit: int = 1000
    ) -> list[EventInfo]:
        """Events within [start, end), oldest first; of more than ``limit`` the newest."""
        name = stored_run(self._store, run).name
        rows = self._store.runs.events(name, round(start * 1000), round(end * 1000), kinds, limit)
        return [EventInfo(ts / 1000, event.kind, event.key, event.detail, event.version) for ts, event in rows]

    def now(self) -> list[RunNow]:
        """All runs with their verdicts, by name, in a few queries; of more than 500 those that were active last."""
        rows = self._rows()
        if not rows:
            return []
        ids, now, fleet = [row.id for row in rows], self._clock.now(), self._store.fleet
        latest, verdicts, steps = fleet.latest(ids, SHOWN), fleet.verdicts(ids), fleet.steps(ids, TRAINER)
        newest, health = fleet.newest(ids, COMPUTED), self._health(ids, now)
        runs = []
        for row in rows:
            signals, targets = _by_signal(latest.get(row.id, [])), health.get(row.id, NO_TARGETS)
            state = _state(row, now, newest.get(row.id), targets, signals)
            runs.append(
                RunNow(
                    info=run_info(row),
                    verdict=current_verdict(verdicts.get(row.id), state, now),
                    signals=_signals(row, signals, now, state),
                    step=steps.get(row.id),
                    newest=newest[row.id] / 1000 if row.id in newest else None,
                    up=0 if state.name == "not_collected" else targets.up,
                    targets=targets.targets,
                    state=state,
                )
            )
        return runs

    def states(self) -> dict[str, RunState]:
        """The state of each run, by name; of more than 500 those that were active last."""
        rows = self._rows()
        if not rows:
            return {}
        ids, now, fleet = [row.id for row in rows], self._clock.now(), self._store.fleet
        latest, newest = fleet.latest(ids, ("trainer_step_seconds",)), fleet.newest(ids, COMPUTED)
        health = self._health(ids, now)
        return {
            row.name: _state(
                row, now, newest.get(row.id), health.get(row.id, NO_TARGETS), _by_signal(latest.get(row.id, []))
            )
            for row in rows
        }

    def _rows(self) -> list[RunRow]:
        return sorted(self._store.runs.all()[:MOST_RUNS], key=lambda row: row.name)

    def _health(self, ids: list[int], now: float) -> Mapping[int, TargetHealth]:
        return self._store.fleet.targets(ids, round(now * 1000), round(TICK_STALE_SECONDS * 1000))


def _state(
    row: RunRow, now: float, newest: int | None, targets: TargetHealth, by_signal: Mapping[str, Rows]
) -> RunState:
    at = None if newest is None else newest / 1000
    return state_of(row, now, at, newest_step(by_signal), step_stale_seconds(by_signal), targets)


def _by_signal(latest: Latest) -> dict[str, Rows]:
    by_signal: dict[str, Rows] = {}
    for key, point in latest:
        by_signal.setdefault(key.metric, []).append((key.labels, point))
    return by_signal


def _signals(row: RunRow, by_signal: Mapping[str, Rows], now: float, state: RunState) -> tuple[SignalNow, ...]:
    stale = step_stale_seconds(by_signal)
    return tuple(signal for name in SHOWN for signal in _of(name, by_signal, row, now, stale, state))


def _of(
    name: str, by_signal: Mapping[str, Rows], row: RunRow, now: float, stale: float, state: RunState
) -> list[SignalNow]:
    item, points = ITEMS[name], by_signal.get(name, [])
    assert isinstance(item, Signal)
    # The row without labels was "unknown" until the first value with labels arrived.
    labelled = [pair for pair in points if pair[0]] or points
    return [signal_now(item, labels, point, row, now, stale, state) for labels, point in labelled]
