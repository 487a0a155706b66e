"""One target: its collector's verb, bounded in time, with back-off and a memory of whether it was up.

It knows nothing of runs or signals. A failure of any kind becomes a `ScrapeError` of this target alone;
the log gets one line when a target goes down and one when it comes back.
"""

import asyncio
import json
import logging
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx

import collectors
from collectors.model import Collector, Cursor, Limits, Position, Reading, ScrapeError, Target
from collectors.transport.http import PageClient
from server.push.readings import Outcome
from server.targets.file_thread import FileReadThread, StillReadingError

log = logging.getLogger("rollscope.scrape")

# A dead target is asked again after 5, 10, 20, 40, then every 60 s: soon enough to see it return within a
# minute, rare enough to be no load on a host that has other troubles.
BACKOFF_MAX_SECONDS = 60.0
# But within the first two minutes every 10 s: an engine that restarts in 40 s must not look dead for a minute.
EARLY_SECONDS, EARLY_BACKOFF_SECONDS = 120.0, 10.0
RETRY_AFTER_MAX_SECONDS = 600.0
# A listing of many pages goes on with the next tick, not at once: a provider is not to be hammered.
MORE_SECONDS = 5.0
# A target's first answer costs ten times the later ones (its series get their numbers): so many begin in one tick.
BEGUN_PER_TICK = 100
# The verb's own time limit comes first and gives the better message; this one catches a verb that forgot.
GUARD_SECONDS = 2.0
# Of a log that is still read back: soon enough derived and reported, and in memory at once.
HISTORY_BYTES = 4 << 20
# As long as a read may take at most: its own limit and the guard behind it.
HISTORY_SECONDS = Limits().timeout_seconds + GUARD_SECONDS


def collector_of(target: Target) -> Collector:
    """The collector of one target, as its options configure it."""
    known = collectors.load()[target.collector]
    return known.configured(dict(target.options)) if known.configured is not None else known


@dataclass(slots=True)
class TargetReader:
    """Reads one target again and again. `due` is event time; not thread-safe, one event loop."""

    target: Target
    collector: Collector
    cursor: Cursor = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    due: float = 0.0
    failures: int = 0
    # True until the end of a file was seen once: before that its history is incomplete.
    lagging: bool = False
    was_up: bool | None = None
    # How far the log is read, since its history was read back; None where that is not counted.
    position: Position | None = None
    _state: dict[str, Any] = field(default_factory=dict)
    _client: httpx.AsyncClient | None = None
    _aside: FileReadThread[Reading] | None = None
    _down_since: float = 0.0
    _random: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self.lagging = bool(self.target.path)
        self._state["options"] = dict(self.target.options)
        if self.collector.configured is not None:
            self.collector = self.collector.configured(self._state["options"])

    async def read(self, now: float) -> Outcome:
        """One bounded attempt. Never raises; `now` (event time) dates what has no time of its own."""
        begun = time.monotonic()
        try:
            # Not wait_for, which makes a task for each: a tenth of what fetching costs.
            async with asyncio.timeout(self.limits.timeout_seconds + GUARD_SECONDS):
                reading = await self._call(now)
        except ScrapeError as error:
            return Outcome(now, time.monotonic() - begun, error=error)
        except TimeoutError:
            late = ScrapeError("timeout", f"no answer within {self.limits.timeout_seconds:g} s")
            return Outcome(now, time.monotonic() - begun, error=late)
        except Exception as error:  # a collector's bug must not stop its neighbours
            log.exception("collector %s failed on target %s", self.collector.name, self.target.name)
            bug = ScrapeError("garbage", f"internal error in collector {self.collector.name}: {type(error).__name__}")
            return Outcome(now, time.monotonic() - begun, error=bug)
        return Outcome(now, time.monotonic() - begun, reading=reading)

    async def _call(self, now: float) -> Reading:
        if self.target.path:
            return await self._tail(now)
        assert self.collector.poll is not None
        self._state["now"] = now
        return await self.collector.poll(self._http(), self._state, self.limits)

    async def _tail(self, now: float) -> Reading:
        """A read that may hang, or be late: its rows are taken then, for the cursor has not moved."""
        assert self.collector.tail is not None
        if self._aside is None:
            self._aside = FileReadThread(f"tail {self.target.name}")
        try:
            return await self._aside.read(partial(self._read_log, self.cursor, now))
        except StillReadingError as error:
            raise ScrapeError("timeout", str(error)) from None

    def _read_log(self, cursor: Cursor, now: float) -> Reading:
        """On the thread of the read: what it asks of the file system may hang as well."""
        assert self.collector.tail is not None
        path, limits = Path(self.target.path), self.limits
        if not self.lagging:
            return self.collector.tail(path, cursor, limits, now)
        limits = replace(limits, tail_bytes=min(limits.tail_bytes, HISTORY_BYTES))
        reading = self.collector.tail(path, cursor, limits, now)
        if self.collector.position is not None and reading.cursor is not None:
            self.position = self.collector.position(path, reading.cursor)
        return reading

    def _http(self) -> httpx.AsyncClient:
        """One client per target: a shared pool costs 4 to 6 ms of bookkeeping a page (perf.md 2b)."""
        if self._client is None:
            self._client = PageClient(
                base_url=self.target.url,
                headers=dict(self.target.headers),
                timeout=self.limits.timeout_seconds,
                limits=httpx.Limits(max_connections=1, max_keepalive_connections=1),
            )
        return self._client

    def committed(self, outcome: Outcome) -> None:
        """The outcome is in the store: move the cursor, plan the next attempt, say what changed."""
        if outcome.error is not None:
            self._failed(outcome)
            return
        assert outcome.reading is not None
        if outcome.reading.cursor is not None:
            self.cursor = outcome.reading.cursor
        self.failures = 0
        more, interval = outcome.reading.more, self.target.interval_seconds
        # Only files hold history back; what is polled tells of now, and the rest of it comes with the next polls.
        self.lagging = more and bool(self.target.path)
        wait = min(MORE_SECONDS, interval) if more else interval
        self.due = outcome.started + (0.0 if self.lagging else wait)
        if self.was_up is False:
            log.info("target %s is back", self.target.name)
        self.was_up = True

    def _failed(self, outcome: Outcome) -> None:
        self.failures += 1
        if self.failures == 1:
            self._down_since = outcome.started
        self.lagging = False
        wait = min(BACKOFF_MAX_SECONDS, self.target.interval_seconds * 2.0 ** min(self.failures - 1, 8))
        if outcome.started - self._down_since < EARLY_SECONDS:
            wait = min(wait, max(EARLY_BACKOFF_SECONDS, self.target.interval_seconds))
        asked = outcome.error.retry_after if outcome.error is not None else None
        # Who asks for patience gets it, within reason: an hour's silence would look like an hour's outage.
        wait = max(wait, min(asked, RETRY_AFTER_MAX_SECONDS)) if asked is not None else wait
        # Jitter, so that a fleet that died together is not asked together.
        self.due = outcome.started + (wait if self.failures == 1 else wait * self._random.uniform(0.8, 1.2))
        if self.was_up is not False:
            log.warning("target %s is down: %s", self.target.name, outcome.error)
        self.was_up = False

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


def readers_of(
    targets: Sequence[Target], cursors: Mapping[str, str], limits: Limits, begun: float, tick: float
) -> list[TargetReader]:  # fmt: skip
    """One for each, where it stopped; of a thousand a tenth begins at once, the others tick by tick."""
    known = collectors.load()
    readers = [
        TargetReader(target, known[target.collector], json.loads(cursors.get(target.name, "{}")), limits)
        for target in targets
    ]
    begin = max(BEGUN_PER_TICK, len(readers) // 10)
    for number, reader in enumerate(readers[begin:], begin):
        reader.due = begun + number // begin * tick
    return readers
