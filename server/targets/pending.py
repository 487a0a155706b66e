"""Sources named by hand that were not there at the start: tried again until it is found out what they are.

One engine that is late must not keep the others from being watched. Where the store knows what a source was, it is read
as that at once, and missed like any other; what it is now is found out when it answers.

A run directory is looked at again for a while after it was recognised: a run opens its logs one after the other, and
its rollout records may be of another collector than its metrics.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import collectors
from collectors.model import Target
from server.config.discovery import DiscoverSettings
from server.config.errors import ConfigError
from server.config.settings import RunSettings, TargetSettings
from server.store.types import TargetRow
from server.targets.discovery import naming
from server.targets.file_thread import FileReadThread, StillReadingError

if TYPE_CHECKING:
    from server.targets.resolve import Attached
from server.store.types import UNKNOWN

# A thread and a connection each; who hangs keeps its own.
AT_ONCE = 16
PATIENCE_SECONDS = 1.0
BACKOFF_SECONDS, BACKOFF_MOST_SECONDS = 5.0, 60.0
# A look at a local path costs milliseconds, and a run that begins should be seen at once.
PATH_BACKOFF_MOST_SECONDS = 10.0
# How often a recognised run directory is looked at for logs of further collectors, and for how long. A trainer may
# write its first rollout traces only after some twenty steps.
FURTHER_SECONDS, FURTHER_MOST_SECONDS = 15.0, 1800.0
# What one page is told by two collectors is written within a tick or two, and a failing one is asked every minute.
TOGETHER_MS = 120_000


@dataclass(frozen=True, slots=True)
class PendingSource:
    """A source that is not there yet.

    Attributes:
        settings: a run of this source alone, to be attached again.
        error: why it could not be; safe to show.
        name: what it is called until it is known what it is.
        found: targets that it is already: a run directory whose further logs are waited for.
    """

    settings: RunSettings
    error: str
    name: str
    found: tuple[Target, ...] = ()

    @property
    def source(self) -> TargetSettings:
        return self.settings.targets[0]


@dataclass(slots=True)
class IdentifiedSource:
    """What became known: targets to read, lists to follow, and names that nothing is called by any more."""

    targets: list[Target] = field(default_factory=list)
    lists: list[DiscoverSettings] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Source:
    awaited: PendingSource
    name: str
    error: str
    assumed: Sequence[Target]
    # What is read of a directory, by the names of collectors; further ones are added while it is looked at.
    kinds: set[str] = field(default_factory=set)
    until: float = float("inf")
    due: float = float("-inf")
    failures: int = 0
    task: "asyncio.Task[Attached] | None" = None
    aside: "FileReadThread[Attached]" = field(default_factory=lambda: FileReadThread("awaited"))


class PendingSources:
    """Those of one run, on one event loop.

    Args:
        attach: a run -> what it is attached to (`server.targets.resolve.attach`); raises `ConfigError`. Called on
            threads.
        rows: what the store knows of the run's targets.
        taken: names of other targets.
    """

    def __init__(
        self, awaited: Sequence[PendingSource], attach: "Callable[[RunSettings], Attached]", rows: Iterable[TargetRow],
        taken: Collection[str],
    ) -> None:  # fmt: skip
        self._attach = attach
        known = {row.name: row for row in rows if row.origin is None and not row.gone} if awaited else {}
        self._sources: list[_Source] = []
        # Two spellings of one address are one target; this is seen when both answer.
        self._come: set[object] = set()
        names = set(taken)
        for one in awaited:
            if one.found:
                kinds = {target.collector for target in one.found}
                self._sources.append(_Source(one, one.name, "", (), kinds))
                continue
            assumed = [target for target in self._remembered(one, known) if target.name not in names]
            name = assumed[0].name if assumed else _free(one.name, names)
            names |= {name, *(target.name for target in assumed)}
            self._sources.append(_Source(one, name, one.error, assumed))

    def __bool__(self) -> bool:
        return bool(self._sources)

    @property
    def assumed(self) -> list[Target]:
        """What is read at once, as what it was."""
        return [target for one in self._sources for target in one.assumed]

    @property
    def urls(self) -> list[str]:
        """Who is waited for here is not read for a list that names it, too."""
        return [one.awaited.source.source for one in self._sources if one.awaited.source.is_url]

    def _remembered(self, one: PendingSource, known: Mapping[str, TargetRow]) -> list[Target]:
        """Targets that this source was, by the names it would give them."""
        if not one.source.is_url:
            return []
        found: list[Target] = []
        kinds = {row.collector for row in known.values()}
        for kind in sorted(kinds & {name for name, one in collectors.load().items() if one.poll is not None}):
            run = replace(one.settings, targets=(replace(one.source, collector=kind),))
            named = self._attach(run).targets
            found += [target for target in named if target.name in known and known[target.name].collector == kind]
        # An engine of another kind may have been there a month ago.
        newest = max((known[target.name].last_ts for target in found), default=0)
        return [target for target in found if known[target.name].last_ts >= newest - TOGETHER_MS]

    async def look(self, now: float, taken: Collection[str], *, patient: bool = False) -> IdentifiedSource:
        """Ask who is due. ``taken``: names of the run's targets now. ``patient``: wait for every answer."""
        under_way = sum(one.task is not None for one in self._sources)
        due = [one for one in self._sources if one.task is None and not now < one.due <= now + 2 * BACKOFF_MOST_SECONDS]
        for one in due if patient else due[: max(0, AT_ONCE - under_way)]:
            one.task = asyncio.create_task(one.aside.read(partial(self._attach, one.awaited.settings)))
        tasks = [one.task for one in self._sources if one.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=None if patient else PATIENCE_SECONDS)
        come = IdentifiedSource()
        for one in [one for one in self._sources if one.task is not None and one.task.done()]:
            if one.kinds:
                self._further(one, now, set(taken), come)
            else:
                self._heard(one, now, set(taken), come)
        return come

    def _further(self, one: _Source, now: float, taken: set[str], come: IdentifiedSource) -> None:
        """Targets of collectors that had nothing to read in a run directory before."""
        assert one.task is not None
        task, one.task = one.task, None
        one.due, one.until = now + FURTHER_SECONDS, min(one.until, now + FURTHER_MOST_SECONDS)
        if now >= one.until:
            self._sources.remove(one)
        try:
            found = task.result().targets
        except (ConfigError, StillReadingError):
            return  # what is read of it says so itself
        for target in found:
            if target.collector not in one.kinds:
                one.kinds.add(target.collector)
                come.targets.append(replace(target, name=_free(target.name, taken)))

    def _heard(self, one: _Source, now: float, taken: set[str], come: IdentifiedSource) -> None:
        assert one.task is not None
        task, one.task = one.task, None
        try:
            found = task.result()
        except (ConfigError, StillReadingError) as error:
            one.error = "; ".join(error.problems) if isinstance(error, ConfigError) else str(error)
            one.due = now + min(_most_seconds(one), BACKOFF_SECONDS * 2.0 ** min(one.failures, 8))
            one.failures += 1
            return
        if one.awaited.source.is_url:
            self._sources.remove(one)
        else:
            one.kinds, one.due = {target.collector for target in found.targets}, now + FURTHER_SECONDS
            if not one.kinds:  # a list of targets
                self._sources.remove(one)
        was = {target.name: target for target in one.assumed}
        # Its own names are free for what it is.
        taken -= {one.name, *was}
        new = [target for target in found.targets if naming.target_identity(target) not in self._come]
        self._come |= {naming.target_identity(target) for target in new}
        named = [replace(target, name=_free(target.name, taken)) for target in new]
        come.targets += [target for target in named if was.get(target.name) != target]
        come.lists += found.discover
        come.gone += sorted({one.name, *was} - {target.name for target in named})

    def rows(self, now: float) -> list[TargetRow]:
        """A row for each of which nobody knows what it is."""
        return [
            TargetRow(
                one.name, UNKNOWN, UNKNOWN, False, round(now * 1000), None,
                f"{one.error}; tried again at least every {_most_seconds(one):.0f} s",
                "unreachable" if one.awaited.source.is_url else "missing",
                interval_seconds=one.awaited.source.interval_seconds,
            )
            for one in self._sources if not one.assumed and not one.kinds
        ]  # fmt: skip

    async def close(self) -> None:
        """What is under way is not waited for: a thread that hangs ends with the process."""
        for one in self._sources:
            if one.task is not None:
                one.task.cancel()


def _most_seconds(one: _Source) -> float:
    return BACKOFF_MOST_SECONDS if one.awaited.source.is_url else PATH_BACKOFF_MOST_SECONDS


def _free(name: str, taken: set[str]) -> str:
    """The name, or with a number the first that is free; it is taken from now on."""
    found, number = name, 2
    while found in taken:
        found, number = f"{name}-{number}", number + 1
    taken.add(found)
    return found
