"""What are the pages that a list names? Asked once each, a few at a time, again with back-off where nobody answers.

Does not know: what is read of a page; that is its collector's. A page of no known system (a node's exporter in the
same list) is left alone, and asked again seldom.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from collectors.model import Limits, ScrapeError
from collectors.transport import failures

# Each holds a page of up to megabytes for a moment, and its connection costs 1 ms.
AT_ONCE = 64
# A page of another system seldom becomes an engine's.
STRANGER_SECONDS = 600.0
BACKOFF_SECONDS, BACKOFF_MOST_SECONDS = 5.0, 60.0

Headers = Sequence[tuple[str, str]]
Ask = Callable[[str, Headers, Limits], Awaitable[str]]


@dataclass(slots=True)
class UndetectedPage:
    """A page of which it is not known what it is.

    Attributes:
        stranger: it answers, and is of no known system.
        error: why it is not known; "" while it was not asked.
    """

    url: str
    headers: Headers
    due: float
    failures: int = 0
    stranger: bool = False
    error: str = ""
    kind: str = ""


@dataclass(slots=True)
class Detector:
    """Asks pages what they are. One event loop. ``ask``: URL, headers, limits -> a collector's name."""

    ask: Ask
    limits: Limits = field(default_factory=Limits)
    unknown: dict[str, UndetectedPage] = field(default_factory=dict)
    _tasks: dict[str, asyncio.Task[str]] = field(default_factory=dict)

    def want(self, key: str, url: str, headers: Headers, now: float) -> None:
        """Find out what it is; nothing new where that is under way."""
        self.unknown.setdefault(key, UndetectedPage(url, headers, now))

    def forget(self, key: str) -> None:
        """It is listed no more."""
        self.unknown.pop(key, None)
        if (task := self._tasks.pop(key, None)) is not None:
            task.cancel()

    async def look(self, now: float, patience: float | None) -> dict[str, str]:
        """Ask who is due; key -> collector of those that are known now. Waits ``patience`` seconds for answers."""
        found: dict[str, str] = {}
        loop = asyncio.get_running_loop()
        end = None if patience is None else loop.time() + patience
        due = deque(key for key, one in self.unknown.items() if one.due <= now and key not in self._tasks)
        while due or self._tasks:
            self._begin(due)
            left = None if end is None else end - loop.time()
            if left is not None and left <= 0:
                break
            await asyncio.wait(self._tasks.values(), timeout=left, return_when=asyncio.FIRST_COMPLETED)
            found |= self._ended(now)
        return found

    def _begin(self, due: deque[str]) -> None:
        while due and len(self._tasks) < AT_ONCE:
            key = due.popleft()
            self._tasks[key] = asyncio.create_task(_asked(self.ask, self.unknown[key], self.limits))

    def _ended(self, now: float) -> dict[str, str]:
        found: dict[str, str] = {}
        for key in [key for key, task in self._tasks.items() if task.done()]:
            task, one = self._tasks.pop(key), self.unknown[key]
            error = task.exception()
            if error is None:
                found[key] = task.result()
                del self.unknown[key]
            else:
                _failed(one, error, now)
        return found

    async def close(self) -> None:
        """End what is under way."""
        for key in list(self._tasks):
            self.forget(key)


async def _asked(ask: Ask, one: UndetectedPage, limits: Limits) -> str:
    async with asyncio.timeout(limits.timeout_seconds + 1.0):
        return await ask(one.url, one.headers, limits)


def _failed(one: UndetectedPage, error: BaseException, now: float) -> None:
    one.kind = error.kind if isinstance(error, ScrapeError) else "timeout"
    one.error = str(error) if isinstance(error, ScrapeError) else failures.sentence(error)
    one.stranger = one.kind == "garbage"
    one.failures += 1
    wait = min(BACKOFF_MOST_SECONDS, BACKOFF_SECONDS * 2.0 ** min(one.failures - 1, 8))
    one.due = now + (STRANGER_SECONDS if one.stranger else wait)
