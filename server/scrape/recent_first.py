"""Shows the present of a run with a long log before its history is read.

The last part of each long log is read into a temporary SQLite store, by the same ingest, driver, signals and verdict as
the run's own. Its results are shown as the run's newest results until the history is derived. Charts and counters need
the history, so they are not shown early.
"""

import tempfile
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

import collectors
from collectors.model import Collector, Cursor, Limits, ScrapeError, Target
from server import signals
from server.derive.driver import RunDriver
from server.derive.source_priority import SourcePriority
from server.ingest.readings import Arrivals, Ingest
from server.signals import Signal
from server.store import Store, migrate
from server.store.types import Batch, LatestRow, PointState, SeriesKey

# Logs with less unread text than this (bytes) are read in less than three seconds.
LONG_BYTES = 6 << 20
# Size of the newest part, bytes: 140 steps of 90 values; windows cover the last 10 to 64 steps.
RECENT_BYTES = 512 << 10
# The part is doubled until it contains this many steps, for logs with many rows or long texts per step.
LEAST_STEPS = 20
# Most doublings of the part.
DOUBLINGS = 4
# Event time derived before the newest row, s: the verdict delays a change by a minute, tick signals look back five.
JUDGED_SECONDS = 600.0
UNREAD = "history is being read: this needs the run's first steps"


@dataclass(slots=True)
class RecentLog:
    """A long log, read from a position near its end."""

    target: Target
    collector: Collector
    cursor: Cursor
    limits: Limits

    def read(self, ingest: Ingest, now: float) -> tuple[Batch, Arrivals, bool]:
        """Returns what was appended since the last call, and whether there is more.

        Raises:
            ScrapeError: the log cannot be read now.
        """
        assert self.collector.tail is not None
        reading = self.collector.tail(Path(self.target.path), self.cursor, self.limits, now)
        self.cursor = reading.cursor or self.cursor
        return *ingest.reading(self.target, reading, now, 0.0), reading.more


def long_log(target: Target, collector: Collector, cursor: Cursor, limits: Limits, now: float) -> RecentLog | None:
    """Returns the log at a position near its end, if much of it is unread and its collector supports that."""
    if collector.recent is None or collector.position is None or not target.path:
        return None
    path, size, position = Path(target.path), RECENT_BYTES, None
    assert collector.tail is not None
    try:
        for _ in range(DOUBLINGS + 1):
            near_end = collector.recent(path, limits, now, size)
            if near_end is None or not _is_long(collector, path, cursor, near_end):
                return None
            position = RecentLog(target, collector, near_end, limits)
            reading = collector.tail(path, near_end, limits, now)
            if reading.more or len({sample.step for sample in reading.samples}) > LEAST_STEPS:
                break
            size *= 2
    except ScrapeError:
        return None
    return position


def _is_long(collector: Collector, path: Path, cursor: Cursor, near_end: Cursor) -> bool:
    assert collector.position is not None
    begin, position = collector.position(path, near_end), collector.position(path, cursor)
    read = position.read if position is not None else 0
    return begin is not None and begin.total - read >= LONG_BYTES


@dataclass(frozen=True, slots=True)
class PresentAnswers:
    """The newest result of every series (with ids of the temporary store), and the verdict as a state of the run."""

    rows: list[tuple[SeriesKey, LatestRow]]
    states: Mapping[str, tuple[int, str]]


class PresentView:
    """The newest results of one run, from the last part of its logs and the current readings of its other targets.

    Not thread-safe. All methods query a database, so they are called on a thread.
    """

    def __init__(
        self, run: str, logs: Collection[RecentLog], carry: Callable[[str], float],
        facts: Mapping[str, str | float], names: Collection[str],
    ) -> None:  # fmt: skip
        self._folder = tempfile.TemporaryDirectory(prefix="rollscope-recent-")
        url = f"sqlite:///{self._folder.name}/recent.db"
        migrate(url)
        self._store, self._run, self._logs, self._targets = Store.open(url), run, list(logs), names
        self._ingest = Ingest(self._store, run)
        self._ingest.facts.update(facts)
        trust = SourcePriority.of([log.target for log in logs], collectors.load())
        self._driver = RunDriver(self._store, self._commit, run, carry, facts, targets=names, trust=trust)
        self._begun = False
        self._steps_only = {
            item.name for item in signals.load() if isinstance(item, Signal) and item.remember is not None
        }

    def feed(self, arrivals: Arrivals) -> None:
        """Adds a reading of another target of the run, which is in the run's own store already."""
        self._driver.feed(arrivals)

    def advance(self, t: float) -> PresentAnswers:
        """Returns the results at `t`, with what was appended to the logs."""
        newest = [ts for log in self._logs if (ts := self._read(log, t)) is not None]
        if not self._begun:
            self._begun = True
            self._driver.begin_at(min([t, *newest]) - JUDGED_SECONDS)
        self._driver.advance(t, live=True)
        rows, verdict = self._driver.newest()
        return PresentAnswers([(key, self._shown(key.metric, row)) for key, row in rows], verdict)

    def close(self) -> None:
        """Deletes the temporary store."""
        self._store.close()
        self._folder.cleanup()

    def _read(self, log: RecentLog, t: float) -> float | None:
        """Returns the event time of the newest row, among the new rows."""
        newest, more = None, True
        while more:
            try:
                batch, arrivals, more = log.read(self._ingest, t)
            except ScrapeError:
                break
            self._commit(batch)
            self._driver.feed(arrivals)
            newest = max((step.ts for step in arrivals.steps), default=newest)
        return newest

    def _shown(self, name: str, row: LatestRow) -> LatestRow:
        """Marks a signal as unknown if it depends on the whole run, which the log's end does not contain."""
        return replace(row, value=None, state=PointState.UNKNOWN, why=UNREAD) if name in self._steps_only else row

    def _commit(self, batch: Batch) -> "Future[int]":
        done: Future[int] = Future()
        done.set_result(self._store.write_many([batch])[0])
        return done
