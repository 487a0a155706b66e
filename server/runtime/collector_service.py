"""Runs role `collect` on its own thread: the runs' loops, alert dispatch, and pushed runs.

Used by `server.runtime.serve` in the web process, and by `server.runtime.collector_process` in a child process.
"""

import asyncio
import ctypes
import gc
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Protocol

from server.alerts.dispatch import DeadMan, Dispatcher
from server.config.settings import Settings
from server.lib.clock import Clock
from server.runtime.self_metrics import CollectorNumbers, Numbers, process_numbers
from server.scrape.pushed_runs import PushedRuns
from server.scrape.run_loop import LoopServices, RunLoop
from server.store import Store, Writer
from server.store.foreign import refuse_foreign
from server.store.lock import Locked, acquire
from server.store.retention import Retention
from server.store.types import RetentionSettings
from server.targets.model import Attached

# ---- memory
# Memory of a process that runs for weeks: garbage collection, and memory returned to the system.

# Threshold of garbage collection, young objects (default 700). A tick allocates many short-lived acyclic objects;
# collecting them was a sixth of the cost of a page. This many objects have 10 MB.
YOUNG_OBJECTS = 50_000
# Malloc arenas (default: eight per core). Memory freed in one arena does not serve another: a hundred MB after six
# hours of a run by default, 15 MB with two arenas.
ARENAS = 2
_M_ARENA_MAX = -8  # parameter of mallopt, from glibc's malloc.h
# Interval of returning memory to the system, s. A call takes 2 to 20 ms.
GIVE_BACK_SECONDS = 60.0


def seldom_swept() -> None:
    """Excludes imported objects from garbage collection, and collects others rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 10, 10)


def few_arenas() -> bool:
    """Limits the number of malloc arenas; must be called before threads start. Returns False if it did not.

    It does not if the user set ``MALLOC_ARENA_MAX``, or if this C library has no arenas.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is None or "MALLOC_ARENA_MAX" in os.environ:
        return False
    return bool(option(_M_ARENA_MAX, ARENAS))


def give_back() -> bool:
    """Returns free memory pages to the system. Returns False if this C library cannot (glibc can).

    Otherwise free pages below the last used one in each arena stay allocated: 40 MB after four hours of a run with ten
    viewers.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return False
    trim(0)
    return True


@contextmanager
def giving_back(every: float = GIVE_BACK_SECONDS) -> Iterator[None]:
    """Calls `give_back` at intervals until the block ends."""
    over = threading.Event()

    def run() -> None:
        while not over.wait(every):
            give_back()

    thread = threading.Thread(target=run, name="giving-back", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


# ---- retention
# Deletes expired rows and packs old ones next to collection, in small steps with pauses for the writer.

log = logging.getLogger("rollscope")

PERIOD_SECONDS = 60.0
# With a size limit: what is written in between may exceed it.
SIZE_PERIOD_SECONDS = 5.0
# Share of the time that steps may take while much is due: the writer needs the rest of the write lock.
BUSY_SHARE = 0.2
PAUSE_SECONDS = 0.02


class RetentionTask:
    """Runs next to the run loops of one process; ``leading`` (called on a thread): may this process write?"""

    def __init__(self, store: Store, settings: RetentionSettings, leading: Callable[[], bool]) -> None:
        self._store, self._limits, self._leading = store, Retention.of(settings), leading
        if self._limits.max_bytes is not None:
            store.retention.bound_log(self._limits.max_bytes)
        # Called after each attempt with the time (epoch s) since which more rows have been due to be deleted than one
        # step does, or since which steps fail (None: no row is due), and with the hours of runs due to be packed.
        self.on_behind: Callable[[float | None, int], None] = lambda since, hours: None
        self.on_size: Callable[[int], None] = lambda used: None
        self._behind_since: float | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Until ``stop`` is set. An error is logged and the work is tried again in the next period."""
        hours = 0
        while not stop.is_set():
            pause = PERIOD_SECONDS if self._limits.max_bytes is None else SIZE_PERIOD_SECONDS
            try:
                started = time.monotonic()
                deleted, packed, hours = await asyncio.to_thread(self._step)
                self._behind_since = (self._behind_since or time.time()) if deleted else None
                self.on_behind(self._behind_since, hours)
                if deleted or packed:
                    pause = max(PAUSE_SECONDS, (time.monotonic() - started) * (1 / BUSY_SHARE - 1))
            except Exception as error:  # noqa: BLE001 - the task's outermost loop: retention must not end collection
                self._behind_since = self._behind_since or time.time()
                self.on_behind(self._behind_since, hours)
                log.warning("retention: %s: %s; next attempt in %.0f s", type(error).__name__, error, PERIOD_SECONDS)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), pause)

    def _step(self) -> tuple[bool, bool, int]:
        """Returns whether rows were deleted, whether rows were packed, and the hours of runs due to be packed."""
        # Wall clock: retention is about when rows were collected, in the demo's scaled time too.
        if not self._leading():
            return False, False, 0
        deleted = self._store.retention.step(self._limits, round(time.time() * 1000))
        packed = not deleted and self._store.chunks.step()
        if not deleted:
            self.on_size(self._store.retention.size().bytes)
        return deleted, packed, self._store.chunks.backlog()


log = logging.getLogger("rollscope")

Before = Callable[[Sequence[RunLoop]], Awaitable[None]]
# A collect loop without a step for this long (s) is stuck: three grid steps and a slow disk.
STUCK_SECONDS = 30.0
# Time to end, s: one scrape's time limit and a commit. A thread that hangs in an NFS mount cannot be ended.
DRAIN_SECONDS = 15.0


class LeaseHolder(Protocol):
    """Knows whether this process may write (`server.runtime.collector_service.Leader`)."""

    def leading(self) -> bool:
        """Called before each step, on a thread."""


@dataclass(slots=True)
class Health:
    """State behind `/readyz`: written by the collect thread, read by the web's."""

    turned: dict[str, float] = field(default_factory=dict)
    failed: str = ""
    numbers: Numbers = field(default_factory=Numbers)

    def publish(self, numbers: CollectorNumbers) -> None:
        """Records the numbers of the collecting process for `/metrics`."""
        self.numbers.current = numbers

    def fail(self, why: str) -> None:
        """Records that collecting has ended, and why."""
        self.failed = why

    def problem(self) -> str | None:
        if self.failed:
            return self.failed
        now = time.monotonic()
        stuck = [
            f"{run} for {now - turned:.0f} s" for run, turned in self.turned.items() if now - turned > STUCK_SECONDS
        ]
        return f"not collected: {', '.join(stuck)}" if stuck else None


class CollectorService(AbstractContextManager[None]):
    """Role `collect` on its own thread. Leaving drains: running scrapes end, the writer commits its queue."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        runs: Sequence[Attached],
        clock: Clock,
        health: Health,
        before: Before | None,
        leader: LeaseHolder,
    ) -> None:
        self._leader, self._alerts, self._retention = leader, settings.alerts, settings.retention
        self._heartbeats = settings.heartbeats
        self._store, self._runs, self._clock, self._health, self._before = store, runs, clock, health, before
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._numbers = CollectorNumbers()
        self._loops: list[RunLoop] = []
        self.stuck = False
        self._thread = threading.Thread(target=self._main, name="collect", daemon=True)

    def __enter__(self) -> None:
        self._writer = Writer(self._store)
        self._thread.start()
        self._ready.wait()

    def __exit__(self, *_: object) -> None:
        for loop in tuple(self._loops):
            loop.stop()
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(timeout=DRAIN_SECONDS)
        self._writer.close()
        self.stuck = self._thread.is_alive()
        if self.stuck:
            log.warning(
                "collection does not stop within %g s and is abandoned; everything read so far is stored", DRAIN_SECONDS
            )

    def _main(self) -> None:
        try:
            asyncio.run(self._run())
        except Exception as error:  # recorded, so that the web can report it
            log.exception("collecting stopped")
            self._health.fail(f"collecting stopped: {type(error).__name__}")
        finally:
            self._ready.set()

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self._ready.set()
        dispatcher = Dispatcher(self._store.alerts, self._alerts.receivers, self._clock)
        services = LoopServices(
            self._store, self._writer, self._clock, self._alerts, heartbeats=self._heartbeats,
            on_outbox=dispatcher.wake, on_step=self._stepped, leading=self._leader.leading,
        )  # fmt: skip
        for run in self._runs:
            # On threads, one by one: loading a long run must block neither the loop nor a signal to stop.
            self._loops.append(await asyncio.to_thread(self._made, run, services))
        loops = tuple(self._loops)
        adopter = PushedRuns(
            self._store, self._clock, lambda name: self._made(Attached(name, ()), services, adopted=True),
            self._loops, self._forget,
        )  # fmt: skip
        # Runs that will not be collected get no alert evaluation, so their alerts are closed.
        collected = [*(loop.run for loop in loops), *await adopter.names()]
        await asyncio.to_thread(self._store.alerts.abandon, collected, round(self._clock.now() * 1000))
        retention = RetentionTask(self._store, self._retention, self._leader.leading)
        retention.on_behind, retention.on_size = self._note_retention, self._numbers.size
        if self._before is not None:
            filling = asyncio.create_task(_as_coroutine(self._before(loops)))
            stopping = asyncio.create_task(self._stop.wait())
            await asyncio.wait({filling, stopping}, return_when=asyncio.FIRST_COMPLETED)
            stopping.cancel()
            if not filling.done():
                filling.cancel()
                await asyncio.wait({filling})
                for loop in loops:
                    # `live` closes a loop otherwise; without it connections stay open until the interpreter ends.
                    await loop.close()
                return
            filling.result()
        tasks = [dispatcher.run(self._stop), retention.run(self._stop)]
        if self._alerts.deadman.url:
            dead_man = DeadMan(self._alerts.deadman.url, self._alerts.deadman.interval, self._health.problem)
            tasks.append(dead_man.run(self._stop))
        await asyncio.gather(*(loop.live(self._stop) for loop in loops), *tasks, adopter.run(self._stop))

    def _made(self, run: Attached, services: LoopServices, adopted: bool = False) -> RunLoop:
        loop = RunLoop(run, services, adopted=adopted)
        self._turned(run.name)
        return loop

    def _stepped(self, loop: RunLoop) -> None:
        self._turned(loop.run)
        self._numbers.tick(loop.run, time.monotonic() - loop.began, self._writer)
        if self._numbers.process is not None:
            self._numbers.process = process_numbers()
        self._health.publish(self._numbers)

    def _forget(self, run: str) -> None:
        self._health.turned.pop(run, None)
        self._numbers.ticks.pop(run, None)

    def _note_retention(self, since: float | None, hours: int) -> None:
        self._numbers.behind_since, self._numbers.unpacked_hours = since, hours

    def report_process(self) -> None:
        """Publishes the numbers of this process too, because another process serves `/metrics`."""
        self._numbers.process = process_numbers()

    def _turned(self, run: str) -> None:
        self._health.turned[run] = time.monotonic()


async def _as_coroutine(awaitable: Awaitable[None]) -> None:
    await awaitable


# ---- leader
# The lease that lets exactly one process write to a store.


class Leader:
    """The lease for writing. It is lost with the database connection, and then acquired again."""

    def __init__(self, store: str, url: str) -> None:
        self._store, self._url = store, url
        self._guard = threading.Lock()
        refuse_foreign(store)  # or the lock's file would be made next to it
        self._lease = acquire(store, serving=url)

    def leading(self) -> bool:
        """Is the lease held, or can it be acquired again? Called before each step, on a thread.

        Raises:
            StoreError: the store is unreachable, so the answer is unknown.
        """
        with self._guard:
            if self._lease.held():
                return True
            self.release()
            try:
                self._lease = acquire(self._store, serving=self._url)
            except Locked:
                return False
            return True

    @property
    def descriptors(self) -> tuple[int, ...]:
        """File descriptors that hold the lease; a child process shares it through them."""
        return self._lease.descriptors

    def release(self) -> None:
        with suppress(Exception):  # a lease of a connection that is gone
            self._lease.release()
