"""Discovery of a run's targets from its lists: which targets are new, changed or removed.

Each list is queried separately, and a list that cannot be read keeps its targets. This module reads no metrics.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import collectors
from collectors.model import Limits, ScrapeError, Target
from collectors.transport import http as failures
from server.signals.model import Origin, TargetState
from server.targets import naming
from server.targets.lists import close, provider, renamed
from server.targets.model import BY_URL, REFRESH_MOST, TARGETS, DiscoverSettings, Found, Listing, Provider

# ---- page detection
# Detects the collectors of listed pages: a few requests at a time, with back-off for pages that do not answer.

# Requests at once. Each holds a page of up to megabytes for a moment, and its connection costs 1 ms.
DETECTIONS_AT_ONCE = 64
# Interval at which a page of an unknown system is requested again, s.
STRANGER_SECONDS = 600.0
# First retry interval, s; it doubles with each failure.
BACKOFF_SECONDS = 5.0
# Longest retry interval, s.
DETECTION_BACKOFF_MOST_SECONDS = 60.0

Headers = Sequence[tuple[str, str]]
Ask = Callable[[str, Headers, Limits], Awaitable[str]]


@dataclass(slots=True)
class UndetectedPage:
    """A page whose collector is unknown.

    Attributes:
        stranger: it answers, but no collector reads it.
        error: why its collector is unknown; "" before the first request.
    """

    url: str
    headers: Headers
    due: float
    failures: int = 0
    is_unknown_system: bool = False
    error: str = ""
    kind: str = ""


@dataclass(slots=True)
class Detector:
    """Detects the collectors of pages. One event loop. ``ask``: (URL, headers, limits) -> a collector's name."""

    ask: Ask
    limits: Limits = field(default_factory=Limits)
    unknown: dict[str, UndetectedPage] = field(default_factory=dict)
    _tasks: dict[str, asyncio.Task[str]] = field(default_factory=dict)

    def want(self, key: str, url: str, headers: Headers, now: float) -> None:
        """Schedules detection of a page, unless it is scheduled already."""
        self.unknown.setdefault(key, UndetectedPage(url, headers, now))

    def forget(self, key: str) -> None:
        """Drops a page that is no longer listed."""
        self.unknown.pop(key, None)
        if (task := self._tasks.pop(key, None)) is not None:
            task.cancel()

    async def look(self, now: float, patience: float | None) -> dict[str, str]:
        """Requests due pages; returns key -> collector of detected ones. Waits ``patience`` seconds for answers."""
        identified: dict[str, str] = {}
        loop = asyncio.get_running_loop()
        end = None if patience is None else loop.time() + patience
        due = deque(key for key, page in self.unknown.items() if page.due <= now and key not in self._tasks)
        while due or self._tasks:
            self._begin(due)
            left = None if end is None else end - loop.time()
            if left is not None and left <= 0:
                break
            await asyncio.wait(self._tasks.values(), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            identified |= self._ended(now)
        return identified

    def _begin(self, due: deque[str]) -> None:
        while due and len(self._tasks) < DETECTIONS_AT_ONCE:
            key = due.popleft()
            self._tasks[key] = asyncio.create_task(_request(self.ask, self.unknown[key], self.limits))

    def _ended(self, now: float) -> dict[str, str]:
        identified: dict[str, str] = {}
        for key in [key for key, task in self._tasks.items() if task.done()]:
            task, page = self._tasks.pop(key), self.unknown[key]
            error = task.exception()
            if error is None:
                identified[key] = task.result()
                del self.unknown[key]
            else:
                _failed(page, error, now)
        return identified

    async def close(self) -> None:
        """Cancels requests in flight."""
        for key in list(self._tasks):
            self.forget(key)


async def _request(request: Ask, page: UndetectedPage, limits: Limits) -> str:
    async with asyncio.timeout(limits.timeout_seconds + 1.0):
        return await request(page.url, page.headers, limits)


def _failed(page: UndetectedPage, error: BaseException, now: float) -> None:
    page.kind = error.kind if isinstance(error, ScrapeError) else "timeout"
    page.error = str(error) if isinstance(error, ScrapeError) else failures.sentence(error)
    page.is_unknown_system = page.kind == "garbage"
    page.failures += 1
    wait = min(DETECTION_BACKOFF_MOST_SECONDS, BACKOFF_SECONDS * 2.0 ** min(page.failures - 1, 8))
    page.due = now + (STRANGER_SECONDS if page.is_unknown_system else wait)


log = logging.getLogger("rollscope.discovery")

# Time per step to wait for lists, s. A later answer is used in the next step.
PATIENCE_SECONDS = 1.0
# Longest retry interval of a failing list, s.
BACKOFF_MOST_SECONDS = 300.0
# Targets processed between two turns of the event loop: some milliseconds.
AT_ONCE = 100
# Names shown in one line.
SHOWN = 3


@dataclass(slots=True)
class TargetList:
    """One list and its last content."""

    settings: DiscoverSettings
    reader: Provider
    listing: Listing = field(default_factory=Listing)
    # Its targets by digest, filtered, with their default names; the first target of an address counts.
    found: dict[str, tuple[Found, str]] = field(default_factory=dict)
    answered: bool = False
    failures: int = 0
    due: float = float("-inf")
    task: asyncio.Task[Listing] | None = None
    beyond: int = 0

    @property
    def name(self) -> str:
        return self.settings.name


@dataclass(slots=True)
class ListedTarget:
    """A listed target. ``target``: None while its collector is unknown."""

    source: TargetList
    found: Found
    name: str
    target: Target | None = None
    # Its collector is taken from the store or from its peers; detection is pending.
    assumed: bool = False

    @property
    def origin(self) -> Origin:
        page = self.found
        return Origin(self.source.name, page.job, page.labels, naming.digest(page.url))


@dataclass(slots=True)
class TargetChanges:
    """Targets to read (new, or with a changed address or kind), and removed names."""

    started: dict[str, Target] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)


class TargetDiscovery:
    """Target lists of one run, on one event loop.

    Args:
        by_hand: configured targets; a listed target with the same address is not read twice.
        rows: the run's targets in the store, with names and collectors.
        taken: is the name used by something else?
        ask: detects the collector of a page (`server.targets.resolve.detect_url`).
    """

    def __init__(
        self, run: str, settings: Sequence[DiscoverSettings], ask: Ask, *, by_hand: Iterable[Target] = (),
        rows: Iterable[TargetState] = (), taken: Callable[[str], bool] = lambda name: False,
        limits: Limits | None = None,
    ) -> None:  # fmt: skip
        self._run, self.sources = run, [TargetList(entry, provider(entry)) for entry in settings]
        self._by_hand = {naming.digest(entry.url) for entry in by_hand if entry.url}
        listed_rows = [row for row in rows if row.origin is not None]
        self._names = naming.TargetNames(
            {row.origin.key: row.name for row in listed_rows if row.origin is not None}, taken
        )
        self._kinds = {row.name: row.collector for row in listed_rows if row.collector in collectors.load()}
        # Targets listed before our last end; one that its list does not contain any more has gone.
        self._before = {row.name: row.origin.source for row in listed_rows if row.origin is not None and not row.gone}
        self._detector = Detector(ask, limits or Limits())
        self.held: dict[str, ListedTarget] = {}
        # Name -> origin of each target that is listed now.
        self.origins: dict[str, Origin] = {}

    def keep_off(self, urls: Iterable[str]) -> None:
        """Excludes further configured targets."""
        self._by_hand |= {naming.digest(url) for url in urls}

    def follow(self, settings: Sequence[DiscoverSettings]) -> None:
        """Adds lists that were found during the run."""
        named = renamed([*(source.settings for source in self.sources), *settings])
        self.sources += [TargetList(entry, provider(entry)) for entry in named[len(self.sources) :]]

    # ---- one step

    async def look(self, now: float, *, patient: bool = False) -> TargetChanges:
        """Queries due lists; returns changes. ``patient``: wait for every answer."""
        patience = None if patient else PATIENCE_SECONDS
        changed = await self._query(now, patience)
        change = await self._reconciled(now) if changed else TargetChanges()
        if self._detector.unknown:
            identified = await self._detector.look(now, patience)
            for key, collector in identified.items():
                self._detected(key, collector, change)
            self._assume(change)
        return change

    async def _query(self, now: float, patience: float | None) -> bool:
        # A due time too far ahead means that the clock went back, so it is ignored.
        waits = [now < source.due <= now + REFRESH_MOST for source in self.sources]
        begun = [one for one, wait in zip(self.sources, waits, strict=True) if one.task is None and not wait]
        for source in begun:
            source.task = asyncio.create_task(source.reader.targets(now))
        if begun:
            tasks = [source.task for source in begun if source.task is not None]
            await asyncio.wait(tasks, timeout=patience)
        return any([await self._answered(source, now) for source in self.sources if source.task and source.task.done()])

    async def _answered(self, source: TargetList, now: float) -> bool:
        """Processes a list's answer; did the list change?"""
        assert source.task is not None
        task, before, source.task = source.task, source.listing, None
        try:
            source.listing = task.result()
        except Exception as bug:  # a bug in one reader must not stop the others
            log.exception("discovery %s: its reader failed", source.name)
            source.listing = Listing(before.found, error=f"internal error: {type(bug).__name__}")
        error = source.listing.error
        source.failures = source.failures + 1 if error else 0
        # A file costs only a stat and is retried at once; a server is retried with back-off.
        wait = source.settings.refresh_seconds
        if error and source.settings.kind in BY_URL:
            wait = max(wait, min(BACKOFF_MOST_SECONDS, wait * 2.0 ** min(source.failures - 1, 8)))
        source.due = now + wait
        if error != before.error:
            log.warning("discovery %s: %s", source.name, error or "can be read again")
        if (left_out := source.listing.left_out) and left_out != before.left_out:
            log.warning("discovery %s: left out: %s", source.name, left_out)
        return await self._filtered(source)

    async def _filtered(self, source: TargetList) -> bool:
        first = not source.answered and not (source.listing.error and not source.listing.found)
        source.answered = source.answered or first
        if not source.listing.changed and not first:
            return False
        source.found = await asyncio.to_thread(_filter_list, source.listing.found, source.settings)
        return True

    # ---- what changed

    async def _reconciled(self, now: float) -> TargetChanges:
        change, wanted, moved = TargetChanges(), self._wanted(), dict[str, ListedTarget]()
        for key in [key for key in self.held if key not in wanted]:
            left = self.held.pop(key)
            moved[left.name] = left
            self._detector.forget(key)
        used = {target.name: key for key, target in self.held.items()}
        for number, (key, (source, found, usual)) in enumerate(wanted.items()):
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)  # ten thousand targets take a second, in which pages must be read too
            target = self.held.get(key)
            if target is None:
                name = self._names.name(key, usual, used)
                target, used[name] = ListedTarget(source, found, name), key
                self.held[key] = target
                self._begin(key, target, now, change)
                self._follow(target, moved.get(name), change)
            elif target.found != found or target.source is not source:
                target.source, target.found = source, found
                self._settle(target, target.target.collector if target.target else "", change)
        self.origins = {target.name: target.origin for target in self.held.values()}
        change.gone = [name for name in (*moved, *self._left()) if name not in self.origins]
        return change

    def _wanted(self) -> dict[str, tuple[TargetList, Found, str]]:
        wanted: dict[str, tuple[TargetList, Found, str]] = {}
        for source in self.sources:
            source.beyond = 0
            for key, (found, usual) in source.found.items():
                if key in wanted or key in self._by_hand:
                    continue
                if len(wanted) >= TARGETS:
                    source.beyond += 1
                else:
                    wanted[key] = (source, found, usual)
        return wanted

    def _left(self) -> list[str]:
        """Returns targets of before our last end that their list, read since, does not contain."""
        answered = {source.name for source in self.sources if source.answered}
        left = [name for name, source in self._before.items() if source in answered]
        for name in left:
            del self._before[name]
        return left

    def _begin(self, key: str, held: ListedTarget, now: float, change: TargetChanges) -> None:
        if held.source.settings.collector:
            self._settle(held, held.source.settings.collector, change)
        else:
            self._detector.want(key, held.found.url, self._headers(held.source), now)

    def _follow(self, held: ListedTarget, before: ListedTarget | None, change: TargetChanges) -> None:
        """Reads an instance that moved to another address at once, with its previous collector."""
        if held.target is None and before is not None and before.target is not None:
            held.assumed = True
            self._settle(held, before.target.collector, change)

    # ---- detection

    def _detected(self, key: str, collector: str, change: TargetChanges) -> None:
        held = self.held[key]
        held.assumed = False
        if held.target is None or held.target.collector != collector:
            self._settle(held, collector, change)

    def _settle(self, held: ListedTarget, collector: str, change: TargetChanges) -> None:
        if not collector:
            return
        target = _target(self._run, held, collector, self._headers(held.source))
        if target != held.target:
            held.target = target
            self._kinds[held.name] = collector
            change.started[target.name] = target

    def _assume(self, change: TargetChanges) -> None:
        """Assumes the collector of a target that does not answer, from the store or its peers, so it counts as down."""
        kinds: dict[tuple[str, str], set[str]] = {}
        for held in self.held.values():
            if held.target is not None and not held.assumed:
                kinds.setdefault((held.source.name, held.found.job), set()).add(held.target.collector)
        for key, one in self._detector.unknown.items():
            held = self.held[key]
            if held.target is not None or one.is_unknown_system or not one.error:
                continue
            peers = kinds.get((held.source.name, held.found.job), set())
            kind = self._kinds.get(held.name) or (next(iter(peers)) if len(peers) == 1 else "")
            held.assumed = bool(kind)
            self._settle(held, kind, change)

    def _headers(self, source: TargetList) -> tuple[tuple[str, str], ...]:
        bearer = (("authorization", f"Bearer {source.settings.bearer}"),) if source.settings.bearer else ()
        return (*bearer, *source.settings.headers)

    # ---- status

    def unknown(self) -> list[tuple[ListedTarget, str, str]]:
        """Returns (target, kind of error, error) of listed targets that do not answer and have no known collector."""
        return [
            (self.held[key], page.kind, page.error)
            for key, page in self._detector.unknown.items()
            if page.error and not page.is_unknown_system and self.held[key].target is None
        ]

    def strangers(self, source: TargetList) -> list[str]:
        """Returns names of a list's pages that no collector reads."""
        return [
            self.held[key].name
            for key, page in self._detector.unknown.items()
            if page.is_unknown_system and self.held[key].source is source and self.held[key].target is None
        ]

    def error(self, source: TargetList) -> str:
        """Returns the list's errors in one line."""
        beyond = f"{source.beyond} targets beyond the {TARGETS} of a run are not read" if source.beyond else ""
        return "; ".join(filter(None, (source.listing.error, beyond)))

    def note(self, source: TargetList) -> str:
        """Returns further remarks about the list in one line."""
        names = self.strangers(source)
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        left_out = f"left out: {source.listing.left_out}" if source.listing.left_out else ""
        unknown_pages = f"of no known system, not read: {', '.join(names[:SHOWN])}{more}" if names else ""
        return "; ".join(filter(None, (left_out, unknown_pages)))

    def count(self, source: TargetList) -> int:
        """Returns the number of the run's targets from this list."""
        return sum(target.source is source for target in self.held.values())

    async def close(self) -> None:
        """Cancels queries in flight."""
        await self._detector.close()
        for source in self.sources:
            if source.task is not None:
                source.task.cancel()
            await close(source.reader)


def _filter_list(listed: Iterable[Found], settings: DiscoverSettings) -> dict[str, tuple[Found, str]]:
    pages: dict[str, tuple[Found, str]] = {}
    for page in listed:
        if naming.is_wanted(page, settings) and (key := naming.digest(page.url)) not in pages:
            pages[key] = (page, naming.usual_name(page, settings))
    return pages


def _target(run: str, held: ListedTarget, collector: str, headers: tuple[tuple[str, str], ...]) -> Target:
    found, settings = held.found, held.source.settings
    parts = urlsplit(found.url)
    # Further endpoints of an engine are requested at its root.
    url = found.url.removesuffix("/metrics") if parts.path == "/metrics" and not parts.query else found.url
    interval = max(5.0, found.interval_seconds) if found.interval_seconds else settings.interval_seconds
    actor = collectors.load()[collector].actor
    return Target(held.name, run, collector, actor, url=url, interval_seconds=interval, headers=headers)
