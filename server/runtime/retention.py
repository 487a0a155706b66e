"""Deletes expired rows and packs old ones next to collection, in small steps with pauses for the writer."""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress

from server.store import Store
from server.store.retention import Retention
from server.store.types import RetentionSettings

log = logging.getLogger("rollscope")

PERIOD_SECONDS = 60.0
# Share of the time that steps may take while much is due: the writer needs the rest of the write lock.
BUSY_SHARE = 0.2
PAUSE_SECONDS = 0.02


def limits(settings: RetentionSettings) -> Retention:
    """Settings (seconds) as the store's limits (ms)."""
    ms = {
        name: None if (seconds := getattr(settings, name)) is None else round(seconds * 1000)
        for name in ("raw", "signals", "rollups", "records")
    }
    return Retention(**ms, max_bytes=settings.max_bytes)


class RetentionTask:
    """Runs next to the run loops of one process; ``leading`` (called on a thread): may this process write?"""

    def __init__(self, store: Store, settings: RetentionSettings, leading: Callable[[], bool]) -> None:
        self._store, self._limits, self._leading = store, limits(settings), leading
        # Called after each attempt with the time (epoch s) since which more has been due than one step does, or since
        # which steps fail (None: nothing is due), and with the hours of runs that are due to be packed.
        self.on_behind: Callable[[float | None, int], None] = lambda since, hours: None
        self._behind_since: float | None = None

    async def run(self, stop: asyncio.Event) -> None:
        """Until ``stop`` is set. An error is logged and the work is tried again in the next period."""
        hours = 0
        while not stop.is_set():
            pause = PERIOD_SECONDS
            try:
                started = time.monotonic()
                more, hours = await asyncio.to_thread(self._step)
                self._behind_since = (self._behind_since or time.time()) if more else None
                self.on_behind(self._behind_since, hours)
                if more:
                    pause = max(PAUSE_SECONDS, (time.monotonic() - started) * (1 / BUSY_SHARE - 1))
            except Exception as error:  # noqa: BLE001 - the task's outermost loop: retention must not end collection
                self._behind_since = self._behind_since or time.time()
                self.on_behind(self._behind_since, hours)
                log.warning("retention: %s: %s; next attempt in %.0f s", type(error).__name__, error, PERIOD_SECONDS)
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), pause)

    def _step(self) -> tuple[bool, int]:
        """Returns whether something was due, and the hours of runs that are due to be packed."""
        # Wall clock: retention is about when rows were collected, in the demo's scaled time too.
        if not self._leading():
            return False, 0
        more = self._store.retention.step(self._limits, round(time.time() * 1000)) or self._store.chunks.step()
        return more, self._store.chunks.backlog()
