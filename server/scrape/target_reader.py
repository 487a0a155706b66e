"""Reads one target with its collector, bounded in time, with back-off.

A failure of any kind becomes a `ScrapeError` of this target only. The log gets one line when a target goes down and one
when it returns.
"""

import asyncio
import json
import logging
import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from msgspec import structs

import collectors
from collectors.model import Collector, Cursor, Labels, Limits, Position, Reading, ScrapeError, Target
from collectors.transport.http import PageClient
from server.lib.file_thread import FileReadThread, StillReadingError
from server.push.inbox import Outcome

log = logging.getLogger("rollscope.collect")

# Longest retry interval of a target that is down, s (after 5, 10, 20 and 40): its return shows within a minute, and its
# host has no load from retries.
BACKOFF_MAX_SECONDS = 60.0
# Within this time after a target went down (s), retries are more frequent, because an engine may restart in 40 s.
EARLY_SECONDS = 120.0
# Longest retry interval within that time, s.
EARLY_BACKOFF_SECONDS = 10.0
# Longest Retry-After that is respected, s.
RETRY_AFTER_MAX_SECONDS = 600.0
# A listing of many pages continues after this long (s), to limit the load on a provider.
MORE_SECONDS = 5.0
# Targets started in one tick. A first answer costs ten times the later ones, because its series get their ids.
BEGUN_PER_TICK = 100
# Added to a collector's own time limit (s), which gives the better message; catches a collector without a limit.
GUARD_SECONDS = 2.0
# Bytes of one read of a log's history, which limits memory and the time until they are derived.
HISTORY_BYTES = 4 << 20
# Longest duration of a read, s.
HISTORY_SECONDS = Limits().timeout_seconds + GUARD_SECONDS


@dataclass(slots=True)
class TargetReader:
    """Reads one target repeatedly. `due` is event time. Not thread-safe: one event loop."""

    target: Target
    collector: Collector
    cursor: Cursor = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    due: float = 0.0
    failures: int = 0
    # True until the end of the file was reached once; its history is incomplete until then.
    lagging: bool = False
    was_up: bool | None = None
    # Position in the log while its history is read; None if the collector does not report it.
    position: Position | None = None
    _state: dict[str, Any] = field(default_factory=dict)
    _client: httpx.AsyncClient | None = None
    _thread: FileReadThread[Reading] | None = None
    _down_since: float = 0.0
    _random: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self.lagging = bool(self.target.path)
        self._state["options"] = dict(self.target.options)
        if self.collector.configured is not None:
            self.collector = self.collector.configured(self._state["options"])

    async def read(self, now: float) -> Outcome:
        """Makes one bounded attempt. Never raises. `now` (event time) dates values without a time."""
        begun = time.monotonic()
        try:
            # `asyncio.wait_for` would create a task per call, a tenth of the cost of a fetch.
            async with asyncio.timeout(self.limits.timeout_seconds + GUARD_SECONDS):
                reading = await self._call(now)
        except ScrapeError as error:
            return Outcome(now, time.monotonic() - begun, error=error)
        except TimeoutError:
            late = ScrapeError("timeout", f"no answer within {self.limits.timeout_seconds:g} s")
            return Outcome(now, time.monotonic() - begun, error=late)
        except Exception as error:  # a collector's bug must not stop other targets
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
        """Reads a file on its thread. A late result is used later, because the cursor has not moved."""
        assert self.collector.tail is not None
        if self._thread is None:
            self._thread = FileReadThread(f"tail {self.target.name}")
        try:
            return await self._thread.read(partial(self._read_log, self.cursor, now))
        except StillReadingError as error:
            raise ScrapeError("timeout", str(error)) from None

    def _read_log(self, cursor: Cursor, now: float) -> Reading:
        """Reads the log; called on the reader's thread, because file access may hang."""
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
        """Returns the target's own HTTP client: a shared pool costs 4 to 6 ms per page (perf.md 2b)."""
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
        # Only files have history; a polled page shows the present, and the rest of a listing comes with later polls.
        self.lagging = more and bool(self.target.path)
        wait = min(MORE_SECONDS, interval) if more else interval
        self.due = outcome.started + (0.0 if self.lagging else wait)
        if self.was_up is False:
            log.info("target %s is up again", self.target.name)
        self.was_up = True

    def _failed(self, outcome: Outcome) -> None:
        self.failures += 1
        if self.failures == 1:
            self._down_since = outcome.started
        self.lagging = False
        wait = min(BACKOFF_MAX_SECONDS, self.target.interval_seconds * 2.0 ** min(self.failures - 1, 8))
        if outcome.started - self._down_since < EARLY_SECONDS:
            wait = min(wait, max(EARLY_BACKOFF_SECONDS, self.target.interval_seconds))
        retry_after = outcome.error.retry_after if outcome.error is not None else None
        # Retry-After is respected up to a limit, because an hour's pause would look like an hour's outage.
        wait = max(wait, min(retry_after, RETRY_AFTER_MAX_SECONDS)) if retry_after is not None else wait
        # Jitter, so that targets that failed together are not requested together.
        self.due = outcome.started + (wait if self.failures == 1 else wait * self._random.uniform(0.8, 1.2))
        if self.was_up is not False:
            log.warning("target %s cannot be read: %s", self.target.name, outcome.error)
        self.was_up = False

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


def readers_of(
    targets: Sequence[Target], cursors: Mapping[str, str], limits: Limits, begun: float, tick: float
) -> list[TargetReader]:  # fmt: skip
    """One for each, where it stopped; of a thousand a tenth begins at once, the others tick by tick."""
    all_collectors = collectors.load()
    readers = [
        TargetReader(target, all_collectors[target.collector], json.loads(cursors.get(target.name, "{}")), limits)
        for target in targets
    ]
    begin = max(BEGUN_PER_TICK, len(readers) // 10)
    for number, reader in enumerate(readers[begin:], begin):
        reader.due = begun + number // begin * tick
    return readers


# ---- duplicate engines
# Drops samples of an engine read through a router or Prometheus if the engine is also scraped directly.


_LOOPBACK = frozenset({"127.0.0.1", "::1", "0.0.0.0", "localhost"})


@dataclass(slots=True)
class DuplicateEngineFilter:
    """Filter for the targets of one run. ``_logged``: (target, engine) pairs that were logged, once each."""

    _logged: set[tuple[str, str]] = field(default_factory=set)

    def without(self, target: Target, reading: Reading, others: Iterable[Target]) -> Reading:
        """Returns the reading without engines that are targets of their own."""
        if not _is_merged(target):
            return reading
        direct_names = {_address(one.url): one.name for one in others if one.url and not _is_merged(one)}
        seen = {one.labels for one in reading.samples} | {one.labels for one in reading.histograms}
        doubled = {labels: direct_names[key] for labels in seen if (key := _address(_replica(labels))) in direct_names}
        if not doubled:
            return reading
        self._log(target.name, set(doubled.values()))
        return structs.replace(
            reading,
            samples=tuple(one for one in reading.samples if one.labels not in doubled),
            histograms=tuple(one for one in reading.histograms if one.labels not in doubled),
        )

    def _log(self, through: str, names: set[str]) -> None:
        for name in sorted(names - {name for target, name in self._logged if target == through}):
            self._logged.add((through, name))
            log.info("target %s is also read through %s: its own page counts", name, through)


def _is_merged(target: Target) -> bool:
    """Does the page contain several servers, each labelled with its address?"""
    path = urlsplit(target.url).path.rstrip("/")
    collector = collectors.load().get(target.collector)
    merged = collector is not None and collector.merges_servers
    return merged or (path.endswith("metrics") and not path.endswith("/metrics"))


def _replica(labels: Labels) -> str:
    # Behind Ray and in a Prometheus the label contains more than the address; the address comes first.
    return next((value.partition("/")[0] for name, value in labels if name == "replica"), "")


def _address(text: str) -> str:
    """Returns host:port of a URL or an address; "" without a port, because that is another kind of name."""
    parts = urlsplit(text if "//" in text else f"//{text}")
    try:
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return ""
    host = (parts.hostname or "").lower()
    return f"{'localhost' if host in _LOOPBACK else host}:{port}" if host and port else ""
