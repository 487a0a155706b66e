"""Reads files that may hang (NFS) on a daemon thread per source, so that a hanging read blocks only its source.

A thread pool would run out of threads that never return, and the interpreter would wait for them at exit.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
HANGS = "the previous read has not returned yet; the file system may hang"


class StillReadingError(Exception):
    """The previous read has not returned, so no second one is started."""

    def __init__(self) -> None:
        super().__init__(HANGS)


@dataclass(slots=True)
class FileReadThread(Generic[T]):
    """The single read of a source in flight. Not thread-safe: one event loop."""

    name: str
    _future: "Future[T] | None" = None

    async def read(self, call: Callable[[], T]) -> T:
        """Returns the result of `call`, or the result of an earlier, abandoned read.

        A late result is used, because a slow machine would otherwise read the same rows again and again.

        Raises:
            StillReadingError: the previous read is still running.
        """
        if self._future is None or self._future.cancelled():
            self._future = Future()
            threading.Thread(target=_answer, args=(self._future, call), name=self.name, daemon=True).start()
        elif not self._future.done():
            raise StillReadingError
        try:
            return await asyncio.wrap_future(self._future)
        finally:
            if self._future.done():
                self._future = None


def _answer(done: "Future[T]", call: Callable[[], T]) -> None:
    """Runs `call` and passes its result on, unless the read was cancelled."""
    if not done.set_running_or_notify_cancel():
        return
    try:
        done.set_result(call())
    except BaseException as error:  # noqa: BLE001  any error belongs to the caller, not to this thread
        done.set_exception(error)
