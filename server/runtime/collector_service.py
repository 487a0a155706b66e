"""Runs role `collect` on its own thread: the runs' loops, alert dispatch, and pushed runs.

Used by `server.runtime.serve` in the web process, and by `server.runtime.collector_process` in a child process.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from server.alerts.deadman import DeadMan
from server.alerts.dispatch import Dispatcher
from server.config.settings import Settings
from server.lib.clock import Clock
from server.runtime.retention import RetentionTask
from server.runtime.self_metrics import CollectorNumbers, Numbers, process_numbers
from server.scrape.pushed_runs import PushedRuns
from server.scrape.run_loop import RunLoop
from server.store import Store, Writer
from server.targets.discovery.model import Attached

log = logging.getLogger("rollscope")

Before = Callable[[Sequence[RunLoop]], Awaitable[None]]
# A collect loop without a step for this long (s) is stuck: three grid steps and a slow disk.
STUCK_SECONDS = 30.0
# Time to end, s: one scrape's time limit and a commit. A thread that hangs in an NFS mount cannot be ended.
DRAIN_SECONDS = 15.0


class LeaseHolder(Protocol):
    """Knows whether this process may write (`server.runtime.leader.Leader`)."""

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
        for run in self._runs:
            # On threads, one by one: loading a long run must block neither the loop nor a signal to stop.
            self._loops.append(await asyncio.to_thread(self._made, run, dispatcher.wake))
        loops = tuple(self._loops)
        adopter = PushedRuns(
            self._store, self._clock, lambda name: self._made(Attached(name, (), {}), dispatcher.wake, adopted=True),
            self._loops, self._forget,
        )  # fmt: skip
        # Runs that will not be collected get no alert evaluation, so their alerts are closed.
        collected = [*(loop.run for loop in loops), *await adopter.names()]
        await asyncio.to_thread(self._store.alerts.abandon, collected, round(self._clock.now() * 1000))
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
        retention = RetentionTask(self._store, self._retention, self._leader.leading)
        retention.on_behind = self._note_retention
        tasks = [dispatcher.run(self._stop), retention.run(self._stop)]
        if self._alerts.deadman.url:
            dead_man = DeadMan(self._alerts.deadman.url, self._alerts.deadman.interval, self._health.problem)
            tasks.append(dead_man.run(self._stop))
        await asyncio.gather(*(loop.live(self._stop) for loop in loops), *tasks, adopter.run(self._stop))

    def _made(self, run: Attached, wake: Callable[[], None], adopted: bool = False) -> RunLoop:
        """Returns a run's loop with its callbacks set."""
        loop = RunLoop(
            run.name, run.targets, self._store, self._writer, self._clock,
            facts=run.facts, alerts=self._alerts, heartbeats=self._heartbeats.get(run.name, ()),
            adopted=adopted, discover=run.discover,
            awaited=run.awaited,
        )  # fmt: skip
        self._turned(run.name)
        loop.on_outbox = wake
        loop.on_step = partial(self._stepped, loop)
        loop.leading = self._leader.leading
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
