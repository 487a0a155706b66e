"""Shows the present of a run with a long log before its history is read.

The last part of each long log is read into a temporary SQLite store, by the same ingest, driver, signals and verdict as
the run's own. Its results are shown as the run's newest results until the history is derived. Charts and counters need
the history, so they are not shown early.
"""

import asyncio
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import collectors
from collectors.model import Collector, Cursor, Limits, Reading, ScrapeError, Target
from server import signals
from server.derive.driver import PipelineSettings, RunPipeline, Submit
from server.derive.results import NO_LONGER
from server.derive.source_priority import SourcePriority
from server.ingest.readings import Arrivals
from server.lib.file_thread import FileReadThread
from server.scrape.target_reader import HISTORY_SECONDS, TargetReader
from server.signals import Signal
from server.store import Store, migrate
from server.store.types import Batch, LatestRow, PointState, SeriesKey
from server.store.writer import words_of

log = logging.getLogger("rollscope.collect")

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

    def read(self, now: float) -> Reading:
        """Returns what was appended since the last call.

        Raises:
            ScrapeError: the log cannot be read now.
        """
        assert self.collector.tail is not None
        reading = self.collector.tail(Path(self.target.path), self.cursor, self.limits, now)
        self.cursor = reading.cursor or self.cursor
        return reading


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

    def __init__(self, logs: Sequence[RecentLog], own: RunPipeline) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="rollscope-recent-")
        url = f"sqlite:///{self._folder.name}/recent.db"
        migrate(url)
        self._store, self._logs = Store.open(url), logs
        trust = SourcePriority.of([log.target for log in logs], collectors.load())
        settings = PipelineSettings(own.settings.facts)
        self._pipeline = RunPipeline(self._store, own.run, replace(own.targets, trust=trust), settings)
        self._begun = False
        self._steps_only = {
            item.name for item in signals.load() if isinstance(item, Signal) and item.remember is not None
        }

    def feed(self, arrivals: Arrivals) -> None:
        """Adds a reading of another target of the run, which is in the run's own store already."""
        self._pipeline.driver.feed(arrivals)

    def advance(self, t: float) -> PresentAnswers:
        """Returns the results at `t`, with what was appended to the logs."""
        newest = [ts for log in self._logs if (ts := self._read(log, t)) is not None]
        if not self._begun:
            self._begun = True
            self._pipeline.driver.begin_at(min([t, *newest]) - JUDGED_SECONDS)
        self._pipeline.advance(t, live=True)
        rows, verdict = self._pipeline.newest()
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
                reading = log.read(t)
            except ScrapeError:
                break
            arrivals, more = self._pipeline.feed(log.target, reading, t), reading.more
            newest = max((step.ts for step in arrivals.steps), default=newest)
        return newest

    def _shown(self, name: str, row: LatestRow) -> LatestRow:
        """Marks a signal as unknown if it depends on the whole run, which the log's end does not contain."""
        return replace(row, value=None, state=PointState.UNKNOWN, why=UNREAD) if name in self._steps_only else row


class EarlyPresent:
    """Shows a run's present as its newest results while its history is read, on a thread of its own.

    The view is optional: after a hang or an error it is dropped, and history is read all the same.

    Args:
        pipeline: the run's own, which holds its newest results back meanwhile.
        commit: stores a batch; called on a thread.
    """

    def __init__(self, store: Store, pipeline: RunPipeline, commit: Submit) -> None:
        self._store, self._pipeline, self._commit = store, pipeline, commit
        self._view: PresentView | None = None
        self._thread: FileReadThread[PresentView | PresentAnswers | None] = FileReadThread(f"recent {pipeline.run}")
        self._rows = dict[int, LatestRow]()
        self.looked = False

    def __bool__(self) -> bool:
        """Is the present shown?"""
        return self._view is not None

    async def look(self, lagging: Sequence[TargetReader], limits: Limits, t: float) -> None:
        """Shows the present if a log is long. ``lagging``: readers of logs whose end was not reached."""
        self.looked = True
        view = await self._on_thread(partial(self._made, lagging, limits, t)) if lagging else None
        if isinstance(view, PresentView):
            self._view, self._pipeline.driver.holds_back = view, True
            await self.show(t)

    def _made(self, lagging: Sequence[TargetReader], limits: Limits, t: float) -> PresentView | None:
        found = [long_log(reader.target, reader.collector, reader.cursor, limits, t) for reader in lagging]
        logs = [log for log in found if log is not None]
        return PresentView(logs, self._pipeline) if logs else None

    def feed(self, arrivals: Arrivals) -> None:
        """Adds a committed reading of a target that is no log."""
        if self._view is not None:
            self._view.feed(arrivals)

    async def show(self, t: float) -> None:
        """Shows the results at `t`."""
        if self._view is None:
            return
        answers = await self._on_thread(partial(self._view.advance, t))
        if isinstance(answers, PresentAnswers):
            await asyncio.wrap_future(await asyncio.to_thread(self._commit, self._batch(answers)))

    def _batch(self, answers: PresentAnswers) -> Batch:
        ids = self._store.series.intern(self._pipeline.run, [key for key, _ in answers.rows])
        rows = [replace(row, series=number) for number, (_, row) in zip(ids, answers.rows, strict=True)]
        self._rows = {row.series: row for row in rows if row.state is PointState.VALUE}
        return Batch(self._pipeline.run, latest=rows, states=dict(answers.states))

    async def _on_thread(
        self, call: Callable[[], PresentView | PresentAnswers | None]
    ) -> PresentView | PresentAnswers | None:
        try:
            async with asyncio.timeout(HISTORY_SECONDS):
                return await self._thread.read(call)
        except Exception as error:  # noqa: BLE001 - the view is optional
            run = self._pipeline.run
            log.warning("run %s: its newest values are not shown before its history: %s", run, words_of(error))
            self._view = None
            return None

    async def close(self) -> None:
        """Ends the view, because the history is derived."""
        view, self._view = self._view, None
        if view is None:
            return
        await asyncio.to_thread(view.close)
        # Results that only the log's end had (labels of a mode corrected by the whole log) end with the view.
        derived = {row.series for _, row in self._pipeline.newest()[0]}
        left = [row for number, row in self._rows.items() if number not in derived]
        if left and not self._pipeline.driver.holds_back:
            rows = [replace(row, value=None, state=PointState.UNKNOWN, why=NO_LONGER) for row in left]
            await asyncio.to_thread(self._commit, Batch(self._pipeline.run, latest=rows))
