"""Reads of files that may hang (NFS): one at a time on a daemon thread of its own, so that only its reader waits.

A pool would run out of threads that never return, and the interpreter would wait for them at its end.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
HANGS = "the last read has not returned yet: a file system that hangs?"


class StillReadingError(Exception):
    """The last read has not returned; no second one is begun beside it."""

    def __init__(self) -> None:
        super().__init__(HANGS)


@dataclass(slots=True)
class FileReadThread(Generic[T]):
    """The one read of a source that may be under way. Not thread-safe: one event loop."""

    name: str
    _out: "Future[T] | None" = None

    async def read(self, call: Callable[[], T]) -> T:
        """What `call` returns, or what the read before returned that nobody waited for any more.

        A late result is as good as a new one: thrown away, a slow machine would read the same rows for ever.

        Raises:
            StillReadingError: the last one goes on.
        """
        if self._out is None or self._out.cancelled():
            self._out = Future()
            threading.Thread(target=_answer, args=(self._out, call), name=self.name, daemon=True).start()
        elif not self._out.done():
            raise StillReadingError
        try:
            return await asyncio.wrap_future(self._out)
        finally:
            if self._out.done():
                self._out = None


def _answer(done: "Future[T]", call: Callable[[], T]) -> None:
    """Run `call` and hand over what came of it; nobody may be listening any more."""
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(call())
    except BaseException as error:  # noqa: BLE001  whatever it is belongs to the caller, not to this thread
        done.set_exception(error)
