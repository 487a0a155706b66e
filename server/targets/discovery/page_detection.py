"""Detects the collectors of listed pages: a few requests at a time, with back-off for pages that do not answer.

Pages of unknown systems (a node exporter in the same list) are not read, and requested again rarely. The metrics
themselves are read by the collectors.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from collectors.model import Limits, ScrapeError
from collectors.transport import failures

# Requests at once. Each holds a page of up to megabytes for a moment, and its connection costs 1 ms.
AT_ONCE = 64
# Interval at which a page of an unknown system is requested again, s.
STRANGER_SECONDS = 600.0
# First retry interval, s; it doubles with each failure.
BACKOFF_SECONDS = 5.0
# Longest retry interval, s.
BACKOFF_MOST_SECONDS = 60.0

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
        while due and len(self._tasks) < AT_ONCE:
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
    wait = min(BACKOFF_MOST_SECONDS, BACKOFF_SECONDS * 2.0 ** min(page.failures - 1, 8))
    page.due = now + (STRANGER_SECONDS if page.is_unknown_system else wait)
