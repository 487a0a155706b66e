"""Runs without configuration that receive pushes: found in the store, collected like configured runs.

Another process may receive the pushes, so the store is queried. Both processes limit the number of runs to the same
value and prefer the newest.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping

from server.lib.clock import Clock, stopped_within
from server.lib.errors import ConfigError
from server.push.targets import MAX_RUNS, OVER_SECONDS
from server.scrape.run_loop import RunLoop
from server.store import Store
from server.targets.resolve import check_name

log = logging.getLogger("rollscope.adopt")

# Interval of the search for new runs, s.
LOOK_SECONDS = 2.0


def followed(active: Mapping[str, int], configured: Collection[str]) -> list[str]:
    """Returns the names of the runs to collect. ``active``: run -> time of its last push, newest first."""
    return [name for name in active if name not in configured][:MAX_RUNS]


def admits(store: Store, run: str, *, configured: Collection[str], clock: Clock) -> bool:
    """May a push name this run: is it configured or collected already, or below the limit?"""
    if run in configured:
        return True
    active = store.pushes.active(_since(clock.now()))
    return run in active or len(set(active) - set(configured)) < MAX_RUNS


def _since(now: float) -> int:
    return round((now - OVER_SECONDS) * 1000)


class PushedRuns:
    """Starts and stops the loops of pushed runs, on the collecting event loop.

    Args:
        make: creates a loop for a name; called on a thread.
        loops: all loops, shared with `CollectorService`; loops of pushed runs are added and removed.
        gone: called with the name of a run whose loop has ended.
    """

    def __init__(
        self, store: Store, clock: Clock, make: Callable[[str], RunLoop], loops: list[RunLoop],
        gone: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._store, self._clock, self._make, self._loops, self._gone = store, clock, make, loops, gone
        self._configured = frozenset(loop.run for loop in loops)
        self._running: dict[str, tuple[RunLoop, asyncio.Event, asyncio.Task[None]]] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Searches for runs until `stop`; then ends the loops that it started."""
        logged = ""
        while not stop.is_set():
            try:
                await self.look()
                logged = ""
            except Exception as error:  # noqa: BLE001 - the store is unreachable; runs are found when it returns
                if logged != (logged := type(error).__name__):
                    log.warning("cannot look for pushed runs: %s", logged)
            await stopped_within(stop, LOOK_SECONDS)
        await asyncio.gather(*(self._end(name) for name in list(self._running)))

    async def names(self) -> list[str]:
        """Returns the runs to collect now."""
        active = await asyncio.to_thread(self._store.pushes.active, _since(self._clock.now()))
        return followed(active, self._configured)

    async def look(self) -> None:
        """Starts loops of new runs, ends loops of runs that are over."""
        now, names = self._clock.now(), await self.names()
        for name, (loop, _, _) in [(name, entry) for name, entry in self._running.items() if name not in names]:
            if loop.pushes.over(now):
                await self._end(name)
            elif await asyncio.to_thread(self._store.runs.get, name) is None:
                loop.discard()  # the run was deleted; what this loop holds must not create it again
                await self._end(name)
        for name in names:
            if name not in self._running and len(self._running) < MAX_RUNS and _is_name(name):
                await self._begin(name)

    async def _begin(self, name: str) -> None:
        loop = await asyncio.to_thread(self._make, name)
        ended = asyncio.Event()
        self._loops.append(loop)
        self._running[name] = (loop, ended, asyncio.create_task(loop.live(ended)))
        log.info("run %s: pushed without configuration; it is followed from now on", name)

    async def _end(self, name: str) -> None:
        loop, ended, task = self._running.pop(name)
        ended.set()
        await task
        self._loops.remove(loop)
        self._gone(name)


def _is_name(name: str) -> bool:
    try:
        check_name(name)
    except ConfigError:
        return False
    return True
