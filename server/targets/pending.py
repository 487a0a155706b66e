"""Configured sources that did not answer at start; retried until their collector is detected.

Other sources start meanwhile. If the store has recorded a source's kind, it is read as that kind at once and reported
as down like any target; its current kind is detected when it answers.

A recognised run directory is scanned again for a while, because a run creates its logs one after the other, and its
rollout records may belong to another collector than its metrics.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import collectors
from collectors.model import Target
from server.lib.errors import ConfigError
from server.lib.file_thread import FileReadThread, StillReadingError
from server.signals.model import UNKNOWN, TargetState
from server.targets import naming
from server.targets.model import Attached, DiscoverSettings, PendingSource, RunSettings
from server.targets.resolve import unique

# Requests at once. Each has a thread and a connection.
AT_ONCE = 16
# Time per step to wait for answers, s.
PATIENCE_SECONDS = 1.0
# First retry interval, s; it doubles with each failure.
BACKOFF_SECONDS = 5.0
# Longest retry interval of a URL, s.
BACKOFF_MOST_SECONDS = 60.0
# Longest retry interval of a path, s. A scan costs milliseconds, and a new run should be found quickly.
PATH_BACKOFF_MOST_SECONDS = 10.0
# Interval at which a recognised run directory is scanned for logs of further collectors, s.
FURTHER_SECONDS = 15.0
# Duration of these scans, s. A trainer may write its first rollout traces only after some twenty steps.
FURTHER_MOST_SECONDS = 1800.0
# Rows of two collectors of one page differ at most this much in time, s; a failing page is requested every minute.
TOGETHER_SECONDS = 120.0


@dataclass(slots=True)
class IdentifiedSource:
    """Newly identified targets and lists, and names that are no longer used."""

    targets: list[Target] = field(default_factory=list)
    lists: list[DiscoverSettings] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Source:
    awaited: PendingSource
    name: str
    error: str
    assumed: Sequence[Target]
    # Collectors that read the directory already; new ones are added while it is scanned.
    kinds: set[str] = field(default_factory=set)
    until: float = float("inf")
    due: float = float("-inf")
    failures: int = 0
    task: "asyncio.Task[Attached] | None" = None
    thread: "FileReadThread[Attached]" = field(default_factory=lambda: FileReadThread("awaited"))


class PendingSources:
    """Pending sources of one run, on one event loop.

    Args:
        attach: resolves a run (`server.targets.resolve.attach`); raises `ConfigError`. Called on threads.
        rows: the run's targets in the store.
        taken: names of other targets.
    """

    def __init__(
        self, awaited: Sequence[PendingSource], attach: Callable[[RunSettings], Attached], rows: Iterable[TargetState],
        taken: Collection[str],
    ) -> None:  # fmt: skip
        self._attach = attach
        by_name = {row.name: row for row in rows if row.origin is None and not row.gone} if awaited else {}
        self._sources: list[_Source] = []
        # Two spellings of one address are one target, which shows only when both answer.
        self._identities: set[object] = set()
        names = set(taken)
        for source in awaited:
            if source.found:
                kinds = {target.collector for target in source.found}
                self._sources.append(_Source(source, source.name, "", (), kinds))
                continue
            assumed = [target for target in self._remembered(source, by_name) if target.name not in names]
            name = assumed[0].name if assumed else naming.free_name(source.name, names)
            names |= {name, *(target.name for target in assumed)}
            self._sources.append(_Source(source, name, source.error, assumed))

    def __bool__(self) -> bool:
        return bool(self._sources)

    @property
    def assumed(self) -> list[Target]:
        """Targets that are read at once, as their recorded kind."""
        return [target for source in self._sources for target in source.assumed]

    @property
    def urls(self) -> list[str]:
        """URLs of pending sources, which discovery must not add too."""
        return [source.awaited.source.source for source in self._sources if source.awaited.source.is_url]

    def _remembered(self, source: PendingSource, rows: Mapping[str, TargetState]) -> list[Target]:
        """Returns targets that this source was according to the store."""
        if not source.source.is_url:
            return []
        targets: list[Target] = []
        kinds = {row.collector for row in rows.values()}
        for kind in sorted(kinds & {name for name, source in collectors.load().items() if source.poll is not None}):
            run = replace(source.settings, targets=(replace(source.source, collector=kind),))
            named = self._attach(run).targets
            targets += [target for target in named if target.name in rows and rows[target.name].collector == kind]
        # An engine of another kind may have used the address earlier.
        newest = max((rows[target.name].last_ts for target in targets), default=0.0)
        return [target for target in targets if rows[target.name].last_ts >= newest - TOGETHER_SECONDS]

    async def look(self, now: float, taken: Collection[str], *, patient: bool = False) -> IdentifiedSource:
        """Retries due sources. ``taken``: names of the run's targets. ``patient``: wait for every answer."""
        in_flight = sum(source.task is not None for source in self._sources)
        due = [
            source
            for source in self._sources
            if source.task is None and not now < source.due <= now + 2 * BACKOFF_MOST_SECONDS
        ]
        for source in due if patient else due[: max(0, AT_ONCE - in_flight)]:
            source.task = asyncio.create_task(source.thread.read(partial(self._attach, source.awaited.settings)))
        tasks = [source.task for source in self._sources if source.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=None if patient else PATIENCE_SECONDS)
        result = IdentifiedSource()
        for source in [source for source in self._sources if source.task is not None and source.task.done()]:
            if source.kinds:
                self._further(source, now, set(taken), result)
            else:
                self._identified(source, now, set(taken), result)
        return result

    def _further(self, source: _Source, now: float, taken: set[str], result: IdentifiedSource) -> None:
        """Adds targets of collectors that had nothing to read in a run directory before."""
        assert source.task is not None
        task, source.task = source.task, None
        source.due, source.until = now + FURTHER_SECONDS, min(source.until, now + FURTHER_MOST_SECONDS)
        if now >= source.until:
            self._sources.remove(source)
        try:
            found = task.result().targets
        except (ConfigError, StillReadingError):
            return  # its existing targets report the error
        for target in found:
            if target.collector not in source.kinds:
                source.kinds.add(target.collector)
                result.targets += unique([target], taken)

    def _identified(self, source: _Source, now: float, taken: set[str], result: IdentifiedSource) -> None:
        assert source.task is not None
        task, source.task = source.task, None
        try:
            targets = task.result()
        except (ConfigError, StillReadingError) as error:
            source.error = "; ".join(error.problems) if isinstance(error, ConfigError) else str(error)
            source.due = now + min(_most_seconds(source), BACKOFF_SECONDS * 2.0 ** min(source.failures, 8))
            source.failures += 1
            return
        if source.awaited.source.is_url:
            self._sources.remove(source)
        else:
            source.kinds, source.due = {target.collector for target in targets.targets}, now + FURTHER_SECONDS
            if not source.kinds:  # a list of targets
                self._sources.remove(source)
        was = {target.name: target for target in source.assumed}
        # The source's own names are free for its identified targets.
        taken -= {source.name, *was}
        new = [target for target in targets.targets if naming.target_identity(target) not in self._identities]
        self._identities |= {naming.target_identity(target) for target in new}
        named = unique(new, taken)
        result.targets += [target for target in named if was.get(target.name) != target]
        result.lists += targets.discover
        result.gone += sorted({source.name, *was} - {target.name for target in named})

    def rows(self, now: float) -> list[TargetState]:
        """Returns a row for each source of unknown kind."""
        return [
            TargetState(
                source.name, UNKNOWN, UNKNOWN, False, round(now, 3), None,
                f"{source.error}; tried again at least every {_most_seconds(source):.0f} s",
                "unreachable" if source.awaited.source.is_url else "missing",
                interval_seconds=source.awaited.source.interval_seconds,
            )
            for source in self._sources if not source.assumed and not source.kinds
        ]  # fmt: skip

    async def close(self) -> None:
        """Cancels requests in flight. A hanging thread ends with the process."""
        for source in self._sources:
            if source.task is not None:
                source.task.cancel()


def _most_seconds(source: _Source) -> float:
    return BACKOFF_MOST_SECONDS if source.awaited.source.is_url else PATH_BACKOFF_MOST_SECONDS
