"""Role `collect`: one loop per run that scrapes due targets, commits the readings, and advances the signals.

All work is in `step(t)`. Live operation calls it on the clock's 5 s grid, the demo's first hour as fast as it returns.
"""

import asyncio
import logging
import math
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from msgspec import structs

import collectors
from collectors.model import Limits, Position, Reading, ScrapeError, Target
from server.alerts.settings import AlertSettings
from server.derive.driver import PipelineSettings, RunPipeline, RunTargets
from server.ingest.readings import Arrivals, Ingest
from server.lib.clock import CatchUp, CatchUpClock, Clock, dumps, stopped_within
from server.push.heartbeats import HeartbeatSettings, HeartbeatWatch
from server.push.inbox import Outcome
from server.push.targets import Pushes
from server.scrape.recent_first import EarlyPresent
from server.scrape.target_reader import (
    BACKOFF_MAX_SECONDS,
    BEGUN_PER_TICK,
    HISTORY_SECONDS,
    DuplicateEngineFilter,
    TargetReader,
    readers_of,
)
from server.signals.model import TICK_SECONDS, UNKNOWN, TargetState
from server.signals.window import TRAINER
from server.store import Store, StoreError, Writer
from server.store.types import Batch
from server.store.writer import WriterClosed, is_transient, words_of
from server.targets.discovery import TargetDiscovery, TargetList
from server.targets.model import Attached
from server.targets.naming import shown_url
from server.targets.pending import PendingSources
from server.targets.resolve import attach, detect_listed

# ---- history progress
# Progress of reading a run's logs during a back-fill, for the stored record and the terminal.

log = logging.getLogger("rollscope.collect")

# Shortest interval of log lines, s; a shorter back-fill logs nothing.
LINE_SECONDS = 3.0


@dataclass(slots=True)
class HistoryProgress:
    """Progress of one run's back-fill. ``monotonic``: wall seconds from any origin."""

    run: str
    monotonic: Callable[[], float] = time.monotonic
    steps: int | None = None
    _positions: Sequence[Position] = ()
    _began: float | None = None
    _begin_bytes: int = 0
    _line: float = 0.0
    _logged: bool = False

    def update(self, positions: Sequence[Position], reading: bool) -> None:
        """Updates the positions of the logs. ``reading``: the end of at least one log was not reached yet."""
        if reading and positions and self._began is None:
            self._began = self._line = self.monotonic()
            self._begin_bytes = sum(position.read for position in positions)
        if self._began is not None:
            self._positions = positions

    def record(self, catch_up: CatchUp) -> CatchUp:
        """The stored record with bytes, steps and an estimate."""
        if self._began is None:
            return catch_up
        read, total = self._bytes()
        return replace(
            catch_up, bytes_read=read, bytes_total=total, steps_read=self.steps, seconds_left=self.seconds_left()
        )

    def seconds_left(self) -> float | None:
        """Returns the estimated remaining time, by the bytes read since the start; None before the first byte."""
        if self._began is None:
            return None
        read, total = self._bytes()
        passed, done = self.monotonic() - self._began, read - self._begin_bytes
        return (total - read) * passed / done if done > 0 else None

    def log_line(self, present: bool) -> None:
        """Logs a line every few seconds, and one when the driver has reached the present."""
        if self._began is None:
            return
        now = self.monotonic()
        if present:
            if self._logged:
                log.info("run %s: %s is read%s in %.0f s", self.run, self._names(), self._steps(), now - self._began)
            self._began, self._logged, self._positions = None, False, ()
        elif now - self._line >= LINE_SECONDS:
            self._line, self._logged = now, True
            read, total = self._bytes()
            left = self.seconds_left()
            about = f", about {left:.0f} s left" if left is not None else ""
            share = read / max(total, 1)
            log.info("run %s: reading %s: %.0f%%%s%s", self.run, self._names(), 100 * share, self._steps(), about)

    def _bytes(self) -> tuple[int, int]:
        return sum(position.read for position in self._positions), sum(position.total for position in self._positions)

    def _names(self) -> str:
        names = [position.log for position in self._positions]
        return names[0] if len(names) == 1 else f"{len(names)} logs"

    def _steps(self) -> str:
        return f", {self.steps:,} steps" if self.steps is not None else ""


# ---- status rows
# Health rows of target lists and pending sources.

# Rows are repeated at this interval (s), so that they do not look stale (`server.query.reader`: a minute).
REPEATED_SECONDS = 30.0
DISCOVERY = "discovery"
"""Actor of a list's row."""


def name_of(source: TargetList) -> str:
    """Returns the name of a list's row."""
    return f"discovery {source.name}"


@dataclass(slots=True)
class StatusRows:
    """Rows of a run's lists and pending sources, written when they change and at an interval."""

    roster: TargetDiscovery
    waiting: PendingSources
    _last_rows: dict[str, TargetState] = field(default_factory=dict)
    _at: float = float("-inf")

    def batch(self, ingest: Ingest, removed: list[str], now: float) -> tuple[Batch, Arrivals]:
        """Returns changed rows (all of them at intervals), and rows of targets that are ``gone``."""
        ingest.origins = self.roster.origins
        batch, arrivals = ingest.gone(removed, now)
        awaited = self.waiting.rows(now)
        rows = {row.name: row for row in (*self._lists(now), *self._unknown(now), *awaited)}
        is_due = not self._at <= now < self._at + REPEATED_SECONDS
        for name, row in rows.items():
            before = self._last_rows.get(name)
            times = {} if before is None else {"last_ts": before.last_ts, "last_ok_ts": before.last_ok_ts}
            if is_due or structs.replace(row, **times) != before:
                batch.targets.append(ingest.remember(row))
                # Configured sources and lists count for alerts; discovered targets of unknown kind do not.
                if row.actor == DISCOVERY or row in awaited:
                    arrivals.health.append(row)
        self._last_rows, self._at = rows, now if is_due else self._at
        return batch, arrivals

    def _lists(self, now: float) -> list[TargetState]:
        return [self._list(source, round(now, 3)) for source in self.roster.sources]

    def _list(self, source: TargetList, now: float) -> TargetState:
        name, error = name_of(source), self.roster.error(source)
        before = self._last_rows.get(name)
        read = source.answered and not source.listing.error
        return TargetState(
            name, source.settings.kind, DISCOVERY, not error, now,
            now if read else before.last_ok_ts if before else None, error or self.roster.note(source),
            "garbage" if error else "", samples=self.roster.count(source),
            interval_seconds=source.settings.refresh_seconds,
        )  # fmt: skip

    def _unknown(self, now: float) -> list[TargetState]:
        return [
            TargetState(
                target.name, UNKNOWN, UNKNOWN, False, round(now, 3), None,
                f"{error}; its kind is not known yet", kind or "unreachable",
                interval_seconds=target.source.settings.interval_seconds, origin=target.origin,
            )
            for target, kind, error in self.roster.unknown()
        ]  # fmt: skip


class NotLeader(Exception):
    """This process has lost the lease for writing; it waits until it holds the lease again."""


# Time that a tick waits for targets, s. Later answers are used in the next tick.
PATIENCE_SECONDS = 1.0
# Scrapes started per second: half of what a core reads, so that no page waits and the tick ends in time.
TARGETS_PER_SECOND = 500.0
# Longest spread of the scrapes' starts, s.
SPREAD_SECONDS = 2.0
# Interval of rollups, s.
ROLLUP_SECONDS = 60.0
# Share of a live tick for reading history; with all of it, every second grid instant would be missed.
SHARE = 0.8
# Share of a tick for ingesting pushes before deriving.
PUSHES_FIRST = 0.5


@dataclass(frozen=True, slots=True)
class LoopServices:
    """What the loops of one process share.

    Attributes:
        heartbeats: run -> its heartbeats.
        on_outbox: called when a notification waits to be sent.
        on_step: called with the loop after each of its steps.
        leading: whether this process may write; called on a thread.
    """

    store: Store
    writer: Writer
    clock: Clock
    alerts: AlertSettings | None = None
    limits: Limits = field(default_factory=Limits)
    heartbeats: Mapping[str, Sequence[HeartbeatSettings]] = field(default_factory=dict)
    on_outbox: Callable[[], None] = lambda: None
    on_step: Callable[["RunLoop"], None] = lambda _: None
    leading: Callable[[], bool] = lambda: True


class RunLoop:
    """Collects one run. All methods on one event loop; database work on threads."""

    def __init__(self, run: Attached, services: LoopServices, *, adopted: bool = False) -> None:
        """``adopted``: the run has no configuration; it is known by its pushes alone."""
        self.run, self._services, self._store = run.name, services, services.store
        begun = services.clock.now()
        rows = [row for _, row in self._store.runs.targets(self.run)] if run.discover or run.awaited else []
        self._waiting = PendingSources(
            run.awaited, partial(attach, limits=services.limits, hint=""), rows, [target.name for target in run.targets]
        )
        targets = [*run.targets, *self._waiting.assumed]
        self._targets, self._duplicates = RunTargets.of(targets), DuplicateEngineFilter()
        self._lists = TargetDiscovery(
            self.run, run.discover, detect_listed, by_hand=targets, rows=rows, taken=self._is_another,
            limits=services.limits,
        )  # fmt: skip
        self._lists.keep_off(self._waiting.urls)
        self._status_rows, self._removed = StatusRows(self._lists, self._waiting), set[str]()
        self._beats = HeartbeatWatch(self._store, self.run, services.heartbeats.get(self.run, ()), begun)
        self.pushes = Pushes(self._store, self.run, self._targets.known, adopted, begun, self._targets.rank_forwarded)
        pending = {row.name for row in self._waiting.rows(begun)}
        self._targets.others |= {*self._beats.names, *pending, *map(name_of, self._lists.sources)}
        self.readers = readers_of(targets, self._store.runs.cursors(self.run), services.limits, begun, TICK_SECONDS)
        self._pending, self._rolled = dict[str, asyncio.Task[Outcome]](), -math.inf
        self._present, self._catch_up, self._progress = -math.inf, CatchUpClock(), HistoryProgress(self.run)
        # The collector's stamp in the store: (time, text about the back-fill).
        self._stamped: tuple[float, str] = (-math.inf, "")
        settings = PipelineSettings(run.facts, services.alerts, begun, self._address_of, services.on_outbox)
        self.pipeline = RunPipeline(self._store, self.run, self._targets, settings, self._commit)
        self.pipeline.driver.feed(self.pushes.last_received())
        self._early = EarlyPresent(self._store, self.pipeline, self._commit)
        self._broken = self._stopping = self._failing = self._behind = False
        # Start of the newest step, on the monotonic clock.
        self.began = 0.0

    def _address_of(self, name: str) -> str:
        """Returns where a target or a target list is, without credentials, path and query of a URL; "" if pushed."""
        target, _ = self._targets.known.get(name, (None, 0.0))
        if target is not None:
            return shown_url(target.url) if target.url else target.path
        lists = (one.settings.sources for one in self._lists.sources if name_of(one) == name)
        return ", ".join(shown_url(one) if "://" in one else one for one in next(lists, ()))

    def _stamp(self, batch: Batch) -> Batch:
        """Adds to the batch that this run is collected now, and how far it is behind the present."""
        # The demo's clock is in the past during its first hour; other processes compare with the wall clock.
        now = max(self._services.clock.now(), self._present)
        reading = any(reader.lagging for reader in self.readers)
        found = self._catch_up.at(self.pipeline.driver.watermark, self._present, reading=reading)
        text = dumps(found and self._progress.record(found))
        batch.run_fields["collected_at"], batch.run_fields["catch_up"] = round(now * 1000), text
        self._stamped = now, text
        return batch

    async def _stamp_idle(self, t: float) -> None:
        """Records a step without writes as well; otherwise the run would look abandoned.

        Not for a run that is over: its state is final, and it should cost no write.
        """
        over = self.pipeline.driver.deriver.lifecycle in ("finished", "crashed")
        at, text = self._stamped
        if (at < t and not over) or (text and self._catch_up.at(self.pipeline.driver.watermark, self._present) is None):
            await asyncio.wrap_future(await asyncio.to_thread(self._commit, Batch(self.run)))

    def _commit(self, batch: Batch) -> "Future[int]":
        future = self._services.writer.submit(self._stamp(batch), block=True)
        self._services.writer.flush()
        return future

    async def look_ahead(self, t: float) -> None:
        """Shows the present of a run with long logs before their history is read. Once."""
        if not self._early.looked:
            self._present = max(t, self._present)
            await self._early.look([reader for reader in self.readers if reader.lagging], self._services.limits, t)

    def stop(self) -> None:
        """Ends long work soon; callable from any thread. Committed data stays, the rest is left to the next start."""
        self._stopping = self.pipeline.driver.stopped = True

    def discard(self) -> None:
        """Ends the loop without writing what it holds, because its run was deleted."""
        self.fail()
        self.stop()

    def fail(self) -> None:
        """Records that a step failed: the next one recovers from the store."""
        self._broken = True

    # ---- discovered targets

    def _is_another(self, name: str) -> bool:
        """Does a target that discovery did not list have this name?"""
        return name in self._targets and name not in self._lists.origins

    async def _follow(self, t: float, patient: bool) -> None:
        """Applies discovery: starts new targets, stops removed ones (no alert for those)."""
        await self._await(t, patient)
        if not (self._lists.sources or self._waiting or self._removed):
            return
        change = await self._lists.look(t, patient=patient)
        self._removed |= set(change.gone)
        await self._end({*change.gone, *change.started})
        for number, target_ in enumerate(change.started.values()):
            if number % BEGUN_PER_TICK == 0:
                await asyncio.sleep(0)
            self._begin(target_)
        batch, arrivals = self._status_rows.batch(self.pipeline.ingest, sorted(self._removed), t)
        if batch.targets:
            await asyncio.wrap_future(await asyncio.to_thread(self._commit, batch))
            self.pipeline.driver.feed(arrivals)
        self._removed.clear()

    async def _await(self, t: float, patient: bool) -> None:
        """Starts pending sources that answer now."""
        if not self._waiting:
            return
        identified = await self._waiting.look(t, self._targets.names(), patient=patient)
        self._removed |= set(identified.gone)
        await self._end({*identified.gone, *(target_.name for target_ in identified.targets)})
        for target_ in identified.targets:
            self._begin(target_)
        self._lists.follow(identified.lists)
        self._targets.others |= set(map(name_of, self._lists.sources))

    def _begin(self, target: Target) -> None:
        self._targets.add(target)
        self._removed.discard(target.name)
        self.readers.append(TargetReader(target, collectors.load()[target.collector], limits=self._services.limits))

    async def _end(self, names: set[str]) -> None:
        """Stops targets and cancels their requests in flight."""
        ended = [reader for reader in self.readers if reader.target.name in names] if names else []
        self.readers = [reader for reader in self.readers if reader.target.name not in names]
        for name in names:
            self._targets.remove(name)
            if (task := self._pending.pop(name, None)) is not None:
                task.cancel()
        for reader in ended:
            await reader.close()

    # ---- one step of event time

    async def step(self, t: float, *, patient: bool = False, present: float = -math.inf) -> None:
        """Scrapes due targets at `t`, commits, advances to `t`. ``patient``: wait for every target (replay).

        ``present``: the event time that a replay leads to, epoch seconds.
        """
        await self.derive(t, await self.read(t, patient=patient, present=present), patient=patient)

    async def read(self, t: float, *, patient: bool = False, present: float = -math.inf) -> float:
        """The first half of a step: scrapes due targets at `t` and takes pushes; returns up to when all is read."""
        self.began = time.monotonic()
        if self._broken:
            await asyncio.to_thread(self.pipeline.recover)
            self.pipeline.driver.feed(self.pushes.last_received())
            self._broken = False
        self._present = max(t, present)
        await self._follow(t, patient)
        if not patient:
            await (self._early.show(t) if self._early.looked else self.look_ahead(t))
        lagging: list[float] = []
        while not self._stopping:
            lagging = await self._round(t, patient)
            self._note_progress()
            if not lagging or (not patient and self._services.clock.now() >= t + SHARE * TICK_SECONDS):
                break  # live scrapes must not wait: the rest of the history is read in the next step
            # History remains: derive in order, only up to the time at which every stream is complete.
            await self._advance(min([t, *lagging, self.pushes.horizon(t)]), t)
        await asyncio.to_thread(self._listen, t, math.inf if patient else t + PUSHES_FIRST * TICK_SECONDS)
        return min([t, *lagging, self.pushes.horizon(t)])

    async def derive(self, t: float, horizon: float, *, patient: bool = False) -> None:
        """The second half of a step: derives up to ``horizon``, which `read` returned."""
        # Without a horizon, because a read takes long, the present is not derived before the history.
        if not self._early or horizon < t or not any(reader.lagging for reader in self.readers):
            live = not patient and horizon == t
            await self._advance(horizon, t, live=live)
            self._progress.log_line(present=live)
            if live:
                await self._early.close()
        await self._stamp_idle(t)
        self._services.on_step(self)
        if t - self._rolled >= ROLLUP_SECONDS:
            self._rolled = t
            # Buckets that history still adds to stay open; otherwise each would be closed again after every step.
            upto = min(t, horizon) if any(reader.lagging for reader in self.readers) else t
            if upto > -math.inf:
                await asyncio.to_thread(self._store.rollup, self.run, round(upto * 1000))
        if self._behind and not self._stopping:
            # Use the time before the next tick for pushes that this tick had no time for.
            await asyncio.to_thread(self._take_all, t, t + TICK_SECONDS)

    def _note_progress(self) -> None:
        positions = [reader.position for reader in self.readers if reader.position is not None]
        self._progress.update(positions, any(reader.lagging for reader in self.readers))
        self._progress.log_line(present=False)

    async def _advance(self, t: float, present: float, *, live: bool = False) -> None:
        if t > -math.inf:
            await asyncio.to_thread(partial(self.pipeline.advance, t, live=live, present=present))

    def _listen(self, t: float, until: float) -> None:
        """Commits heartbeats like scrapes, then pushes."""
        for batch, arrivals in (beats := self._beats.look(self.pipeline.ingest, t)):
            self._services.writer.submit(batch, block=True)
            self.pipeline.driver.feed(arrivals)
        if beats:
            self._services.writer.flush()
        self._collect_pushes(t, until)
        self.pipeline.driver.feed(self.pipeline.ingest.pushed(t))

    def _collect_pushes(self, t: float, until: float = math.inf) -> None:
        self._take_all(t, until)
        for batch, arrivals in self.pushes.look(self.pipeline.ingest, t):
            self._commit(batch)
            self.pipeline.driver.feed(arrivals)

    def _take_all(self, t: float, until: float) -> None:
        """Ingests pushes from the inbox until ``until``; ``_behind`` shows that some are left.

        An inbox that fills faster than one a tick is read again: what waits is refused to its senders at some size.
        """
        while not self._take_pushes(t, until) or (self.pushes.flooded and not self._behind):
            pass  # after a refused body the following ones are ingested again

    def _take_pushes(self, t: float, until: float) -> bool:
        """Ingests bodies one by one: each leaves the inbox with its rows, and is fed to the driver after its commit.

        Returns False when the database refused one; the rest then needs a new `Ingest`, loaded from the store.
        """
        self._behind, in_flight, begun = False, None, self._services.clock.now()
        for result in self.pushes.take(self.pipeline.ingest):
            # While the database writes one body, the next one is ingested; the first is fed to the driver afterwards.
            if in_flight is not None and not self._stored(*in_flight, t):
                return False
            in_flight = None
            if result is None:
                continue
            in_flight = (self._services.writer.submit(result[0], block=True), *result)
            self._services.writer.hurry()
            last, begun = begun, self._services.clock.now()
            self._behind = 3 * begun - 2 * last >= until  # the next body and its commit may take as long as this one
            if self._behind:
                break
        return in_flight is None or self._stored(*in_flight, t)

    def _stored(self, done: "Future[int]", batch: Batch, arrivals: Arrivals, t: float) -> bool:
        """Feeds a committed batch to the driver; for a refused batch, stores what the database may still accept."""
        try:
            done.result()
        except Exception as error:  # any database error
            self.pipeline.reload()
            # The database's fault and not the body's: the body stays in the inbox.
            if is_transient(error) or isinstance(error, StoreError):
                raise
            log.warning("run %s: a push was not stored: %s", self.run, words_of(error))
            batch, arrivals = self.pushes.discard(self.pipeline.ingest, batch, error, t)
            self._commit(batch).result()
            self.pipeline.driver.feed(arrivals)
            return False
        self.pipeline.driver.feed(arrivals)
        return True

    async def _round(self, t: float, patient: bool) -> list[float]:
        """Scrapes every due target once. Returns the newest known times of those with more to read."""
        # Targets that answered after their tick are due again now.
        late = await self._commit_done()
        for reader in self.readers:
            if reader.due > t + BACKOFF_MAX_SECONDS + reader.target.interval_seconds:
                reader.due = t  # the clock went back, so the due time is void
            if reader.due <= t and reader.target.name not in self._pending:
                self._pending[reader.target.name] = asyncio.create_task(self._delayed(reader, t, patient))
        if not self._pending:
            return late
        # Readers of history are waited for, because a tick before them would be derived without their rows.
        history = any(reader.lagging for reader in self.readers if reader.target.name in self._pending)
        patience = None if patient else HISTORY_SECONDS if history else PATIENCE_SECONDS + self._spread()
        await asyncio.wait(self._pending.values(), timeout=patience)
        return sorted([*late, *await self._commit_done()])

    async def _commit_done(self) -> list[float]:
        done = [reader for reader in self.readers if self._finished(reader.target.name)]
        pairs = [(reader, self._pending.pop(reader.target.name).result()) for reader in done]
        return await self._commit_all(pairs) if pairs else []

    def _finished(self, name: str) -> bool:
        task = self._pending.get(name)
        return task is not None and task.done()

    async def _delayed(self, reader: TargetReader, t: float, patient: bool) -> Outcome:
        """Delays each target by a constant offset within the spread, so that scrapes are even and regular."""
        spread = self._spread()
        if not patient and spread > 0.05:
            await asyncio.sleep(spread * (zlib.crc32(reader.target.name.encode()) % 1000) / 1000)
        return await reader.read(t)

    def _spread(self) -> float:
        return min(SPREAD_SECONDS, len(self.readers) / TARGETS_PER_SECOND)

    async def _commit_all(self, done: list[tuple[TargetReader, Outcome]]) -> list[float]:
        """Commits readings in one transaction, then acknowledges them: cursor and rows are stored together."""
        results = await asyncio.to_thread(self._submit_all, [(reader.target, outcome) for reader, outcome in done])
        horizons = []
        for (reader, outcome), (future, arrivals) in zip(done, results, strict=True):
            try:
                # Flushed, so the future is done; awaiting it would cost two turns of the loop per target.
                future.result() if future.done() else await asyncio.wrap_future(future)
            except Exception as error:  # only this batch failed; the others are in the store
                log.debug("target %s: not stored", reader.target.name, exc_info=True)
                await asyncio.to_thread(self._refused, reader, _not_stored(outcome, error))
                continue
            reader.committed(outcome)
            self.pipeline.driver.feed(arrivals)
            if not reader.target.path:
                self._early.feed(arrivals)
            self._progress.steps = max(
                (step.number for step in arrivals.steps if step.axis == TRAINER), default=self._progress.steps
            )
            if reader.lagging:
                newest = arrivals.newest()
                horizons.append(newest if newest is not None else -math.inf)
        return sorted(horizons)

    def _refused(self, reader: TargetReader, outcome: Outcome) -> None:
        """Records the target as down, and reloads `Ingest` from the store, because its rows were not stored."""
        reader.committed(outcome)
        self.pipeline.reload()
        self._submit(reader.target, outcome)
        self._services.writer.flush()

    def _submit_all(self, done: list[tuple[Target, Outcome]]) -> list[tuple["Future[int]", Arrivals]]:
        results = [self._submit(target, outcome) for target, outcome in done]
        self._services.writer.flush()
        return results

    def _submit(self, target: Target, outcome: Outcome) -> tuple["Future[int]", Arrivals]:
        answer = outcome.reading if outcome.reading is not None else outcome.error
        assert answer is not None
        if isinstance(answer, Reading):
            answer = self._duplicates.without(target, answer, (reader.target for reader in self.readers))
        batch, arrivals = self.pipeline.rows(target, answer, outcome.started, outcome.seconds)
        return self._services.writer.submit(self._stamp(batch), block=True), arrivals

    # ---- live

    async def live(self, stop: asyncio.Event) -> None:
        """Calls `step` on the clock's 5 s grid until `stop`. A late step is not repeated; the next one catches up."""
        await self._look_ahead_at_once()
        filling = False
        while not stop.is_set():
            t = math.floor(self._services.clock.now() / TICK_SECONDS) * TICK_SECONDS
            # History is read without a pause; otherwise wait for the next instant of the grid.
            if not filling:
                t += TICK_SECONDS
                if await stopped_within(stop, self._services.clock.wall_until(t)):
                    break
            filling = False
            try:
                if not await asyncio.to_thread(self._services.leading):
                    raise NotLeader("another process collects into this store")
                await self.step(t)
                filling = any(reader.lagging for reader in self.readers)
                if self._failing:
                    log.info("run %s: continues", self.run)
                self._failing = False
            except Exception as error:  # a failed step (disk full, database unreachable) must not end the loop
                # Logged once when it begins, with the traceback, and once when it ends.
                if not self._failing:
                    # The message of a StoreError names cause and fix, so that the traceback adds nothing.
                    trace = None if isinstance(error, StoreError) else error
                    log.error(
                        "run %s: cannot continue: %s; trying every 5 s", self.run, words_of(error), exc_info=trace
                    )
                self._broken = self._failing = True
        await self.close()

    async def _look_ahead_at_once(self) -> None:
        """Shows the present before the first step, because the grid's next instant is up to 5 s away."""
        try:
            if await asyncio.to_thread(self._services.leading):
                await self.look_ahead(math.floor(self._services.clock.now() / TICK_SECONDS) * TICK_SECONDS)
        except Exception as error:  # noqa: BLE001 - the steps report an unreachable database
            log.debug("run %s: the newest values cannot be shown early: %s", self.run, words_of(error))

    async def close(self) -> None:
        await self._early.close()
        for task in self._pending.values():
            task.cancel()
        await asyncio.gather(*self._pending.values(), return_exceptions=True)
        for reader in self.readers:
            await reader.close()
        await self._lists.close()
        await self._waiting.close()
        rest = self.pipeline.ingest.rest()
        if rest.histograms and not self._broken:
            with suppress(WriterClosed):
                await asyncio.to_thread(self._commit, rest)


def _not_stored(outcome: Outcome, error: Exception) -> Outcome:
    """Returns a failed outcome. Its cursor is unchanged, so nothing is lost; the next read is after a back-off."""
    cause = type(getattr(error, "orig", None) or error).__name__
    return replace(
        outcome, reading=None, error=ScrapeError("refused", f"read, but the store did not accept it: {cause}")
    )
