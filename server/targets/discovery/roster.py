"""The targets that a run's lists name, as they come and go: which are to be read from now on, which are no more.

Every list is asked by itself, and a list that cannot be read keeps the targets it named. Nothing here reads numbers.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import collectors
from collectors.model import Limits, Target
from server.config.discovery import BY_URL, REFRESH_MOST, DiscoverSettings
from server.store.types import Origin, TargetRow
from server.targets.discovery import naming
from server.targets.discovery.build import close, provider, renamed
from server.targets.discovery.model import TARGETS, Found, Listing, Provider
from server.targets.discovery.page_detection import Ask, Detector

log = logging.getLogger("rollscope.discovery")

# A list that does not answer is waited for no longer: what it says is in the next step.
PATIENCE_SECONDS = 1.0
BACKOFF_MOST_SECONDS = 300.0
# So many targets are begun between two turns of the loop: some milliseconds.
AT_ONCE = 100
# Nobody reads more names in a line.
SHOWN = 3


@dataclass(slots=True)
class TargetList:
    """One list, and what it said last."""

    settings: DiscoverSettings
    reader: Provider
    listing: Listing = field(default_factory=Listing)
    # Its targets by digest, filtered, with their usual names; of one address the first counts.
    found: dict[str, tuple[Found, str]] = field(default_factory=dict)
    heard: bool = False
    failures: int = 0
    due: float = float("-inf")
    task: asyncio.Task[Listing] | None = None
    beyond: int = 0

    @property
    def name(self) -> str:
        return self.settings.name


@dataclass(slots=True)
class ListedTarget:
    """A target that is listed. ``target``: None while nobody knows what its page is."""

    source: TargetList
    found: Found
    name: str
    target: Target | None = None
    # Taken for what it was, or for what its neighbours are: still to be asked.
    assumed: bool = False

    @property
    def origin(self) -> Origin:
        found = self.found
        return Origin(self.source.name, found.job, found.labels, naming.digest(found.url))


@dataclass(slots=True)
class TargetChanges:
    """What is to be read from now on (also anew, where its address or kind is another), and what is gone, by name."""

    come: dict[str, Target] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)


class TargetDiscovery:
    """Lists of one run, on one event loop.

    Args:
        by_hand: targets that are configured: who is named there too is read once, as configured.
        rows: what the store knows of the run's targets: names, and what each page was.
        taken: is it the name of something else?
        ask: what a page is (`server.targets.resolve.detect_url`).
    """

    def __init__(
        self, run: str, settings: Sequence[DiscoverSettings], ask: Ask, *, by_hand: Iterable[Target] = (),
        rows: Iterable[TargetRow] = (), taken: Callable[[str], bool] = lambda name: False, limits: Limits | None = None,
    ) -> None:  # fmt: skip
        self._run, self.sources = run, [TargetList(one, provider(one)) for one in settings]
        self._by_hand = {naming.digest(one.url) for one in by_hand if one.url}
        found = [row for row in rows if row.origin is not None]
        self._names = naming.TargetNames({row.origin.key: row.name for row in found if row.origin is not None}, taken)
        self._kinds = {row.name: row.collector for row in found if row.collector in collectors.load()}
        # Named before our last end, by a list that is to be heard first: who is not in it then is gone.
        self._before = {row.name: row.origin.source for row in found if row.origin is not None and not row.gone}
        self._detector = Detector(ask, limits or Limits())
        self.held: dict[str, ListedTarget] = {}
        # Name -> where each was found, of those that are listed now.
        self.origins: dict[str, Origin] = {}

    def keep_off(self, urls: Iterable[str]) -> None:
        """Further targets that are configured by hand."""
        self._by_hand |= {naming.digest(url) for url in urls}

    def follow(self, settings: Sequence[DiscoverSettings]) -> None:
        """Further lists, found while the run goes on."""
        named = renamed([*(source.settings for source in self.sources), *settings])
        self.sources += [TargetList(one, provider(one)) for one in named[len(self.sources) :]]

    # ---- one look

    async def look(self, now: float, *, patient: bool = False) -> TargetChanges:
        """Ask what is due, and say what changed. ``patient``: wait for every answer."""
        patience = None if patient else PATIENCE_SECONDS
        changed = await self._ask(now, patience)
        change = await self._reconciled(now) if changed else TargetChanges()
        if self._detector.unknown:
            found = await self._detector.look(now, patience)
            for key, collector in found.items():
                self._known(key, collector, change)
            self._assume(change)
        return change

    async def _ask(self, now: float, patience: float | None) -> bool:
        # Planned far ahead: the clock went back, and what was planned on it is void.
        waits = [now < source.due <= now + REFRESH_MOST for source in self.sources]
        begun = [one for one, wait in zip(self.sources, waits, strict=True) if one.task is None and not wait]
        for source in begun:
            source.task = asyncio.create_task(source.reader.targets(now))
        if begun:
            tasks = [source.task for source in begun if source.task is not None]
            await asyncio.wait(tasks, timeout=patience)
        return any([await self._heard(source, now) for source in self.sources if source.task and source.task.done()])

    async def _heard(self, source: TargetList, now: float) -> bool:
        """Take a list's answer; is it another than before?"""
        assert source.task is not None
        task, before, source.task = source.task, source.listing, None
        try:
            source.listing = task.result()
        except Exception as bug:  # a reader's must not stop its neighbours
            log.exception("discovery %s: its reader failed", source.name)
            source.listing = Listing(before.found, error=f"internal error: {type(bug).__name__}")
        error = source.listing.error
        source.failures = source.failures + 1 if error else 0
        # A file costs a stat, and may be whole again in a moment; who is asked is not to be hammered.
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
        first = not source.heard and not (source.listing.error and not source.listing.found)
        source.heard = source.heard or first
        if not source.listing.changed and not first:
            return False
        source.found = await asyncio.to_thread(_sifted, source.listing.found, source.settings)
        return True

    # ---- what changed

    async def _reconciled(self, now: float) -> TargetChanges:
        change, wanted, moved = TargetChanges(), self._wanted(), dict[str, ListedTarget]()
        for key in [key for key in self.held if key not in wanted]:
            left = self.held.pop(key)
            moved[left.name] = left
            self._detector.forget(key)
        used = {held.name: key for key, held in self.held.items()}
        for number, (key, (source, found, usual)) in enumerate(wanted.items()):
            if number % AT_ONCE == 0:
                await asyncio.sleep(0)  # ten thousand take a second, in which pages are read as well
            held = self.held.get(key)
            if held is None:
                name = self._names.name(key, usual, used)
                held, used[name] = ListedTarget(source, found, name), key
                self.held[key] = held
                self._begin(key, held, now, change)
                self._follow(held, moved.get(name), change)
            elif held.found != found or held.source is not source:
                held.source, held.found = source, found
                self._settle(held, held.target.collector if held.target else "", change)
        self.origins = {held.name: held.origin for held in self.held.values()}
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
        """Targets of before our last end whose list was heard since."""
        heard = {source.name for source in self.sources if source.heard}
        left = [name for name, source in self._before.items() if source in heard]
        for name in left:
            del self._before[name]
        return left

    def _begin(self, key: str, held: ListedTarget, now: float, change: TargetChanges) -> None:
        if held.source.settings.collector:
            self._settle(held, held.source.settings.collector, change)
        else:
            self._detector.want(key, held.found.url, self._headers(held.source), now)

    def _follow(self, held: ListedTarget, before: ListedTarget | None, change: TargetChanges) -> None:
        """The same instance at another address: it is read there at once, as what it was."""
        if held.target is None and before is not None and before.target is not None:
            held.assumed = True
            self._settle(held, before.target.collector, change)

    # ---- what it is

    def _known(self, key: str, collector: str, change: TargetChanges) -> None:
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
            change.come[target.name] = target

    def _assume(self, change: TargetChanges) -> None:
        """Who does not answer is what it was, or what all others of its list and job are: it is missed, not unknown."""
        kinds: dict[tuple[str, str], set[str]] = {}
        for held in self.held.values():
            if held.target is not None and not held.assumed:
                kinds.setdefault((held.source.name, held.found.job), set()).add(held.target.collector)
        for key, one in self._detector.unknown.items():
            held = self.held[key]
            if held.target is not None or one.stranger or not one.error:
                continue
            peers = kinds.get((held.source.name, held.found.job), set())
            kind = self._kinds.get(held.name) or (next(iter(peers)) if len(peers) == 1 else "")
            held.assumed = bool(kind)
            self._settle(held, kind, change)

    def _headers(self, source: TargetList) -> tuple[tuple[str, str], ...]:
        bearer = (("authorization", f"Bearer {source.settings.bearer}"),) if source.settings.bearer else ()
        return (*bearer, *source.settings.headers)

    # ---- what to show

    def unknown(self) -> list[tuple[ListedTarget, str, str]]:
        """Listed, not answering, and nobody knows what: (it, kind of error, error)."""
        return [
            (self.held[key], one.kind, one.error)
            for key, one in self._detector.unknown.items()
            if one.error and not one.stranger and self.held[key].target is None
        ]

    def strangers(self, source: TargetList) -> list[str]:
        """Names of a list's pages that are of no known system."""
        return [
            self.held[key].name
            for key, one in self._detector.unknown.items()
            if one.stranger and self.held[key].source is source and self.held[key].target is None
        ]

    def error(self, source: TargetList) -> str:
        """What is wrong with a list, in a line."""
        beyond = f"{source.beyond} targets beyond the {TARGETS} of a run are not read" if source.beyond else ""
        return "; ".join(filter(None, (source.listing.error, beyond)))

    def note(self, source: TargetList) -> str:
        """What else is to be said of a list."""
        names = self.strangers(source)
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        left_out = f"left out: {source.listing.left_out}" if source.listing.left_out else ""
        strangers = f"of no known system, not read: {', '.join(names[:SHOWN])}{more}" if names else ""
        return "; ".join(filter(None, (left_out, strangers)))

    def count(self, source: TargetList) -> int:
        """How many of the run's targets are this list's."""
        return sum(held.source is source for held in self.held.values())

    async def close(self) -> None:
        """End what is under way."""
        await self._detector.close()
        for source in self.sources:
            if source.task is not None:
                source.task.cancel()
            await close(source.reader)


def _sifted(listed: Iterable[Found], settings: DiscoverSettings) -> dict[str, tuple[Found, str]]:
    found: dict[str, tuple[Found, str]] = {}
    for one in listed:
        if naming.wanted(one, settings) and (key := naming.digest(one.url)) not in found:
            found[key] = (one, naming.usual_name(one, settings))
    return found


def _target(run: str, held: ListedTarget, collector: str, headers: tuple[tuple[str, str], ...]) -> Target:
    found, settings = held.found, held.source.settings
    parts = urlsplit(found.url)
    # What an engine tells beside its page is asked at its root.
    url = found.url.removesuffix("/metrics") if parts.path == "/metrics" and not parts.query else found.url
    interval = max(5.0, found.interval_seconds) if found.interval_seconds else settings.interval_seconds
    actor = collectors.load()[collector].actor
    return Target(held.name, run, collector, actor, url=url, interval_seconds=interval, headers=headers)
