"""Push: notifies open tabs of new data of their run, so that they poll at once instead of at their next tick.

The socket carries only a notification; the data comes with the tab's pull (`dashboard.callbacks.tick`). A notification
during a pull causes one more pull. A tab without a socket polls by the clock. One read of a run's cursor serves all
tabs.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict

from fastapi import WebSocket, WebSocketDisconnect

from server.query import Reader
from server.query.run_state import UnknownRun

# Seconds between reads of the cursors (one database row each); half of it is the mean delay of a notification.
EVERY_SECONDS = 0.2
# SQLite's log is written just before what it holds is seen, and longer before where its writer is held in between: so
# many looks at the mark later all runs are looked at once more.
AGAIN = 5
# Most sockets, because each costs memory; further tabs poll by the clock.
MOST = 500
_LATER, _NO_RUN = 1013, 4404

log = logging.getLogger(__name__)


class PushNotifications:
    """The open tabs of all runs. Used on one event loop."""

    def __init__(self, reader: Reader, every: float = EVERY_SECONDS, most: int = MOST) -> None:
        self._reader, self._every, self._most = reader, every, most
        self._tabs: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._seen: dict[str, str] = {}
        self._watcher: asyncio.Task[None] | None = None

    async def serve(self, socket: WebSocket) -> None:
        """Serves one tab until it disconnects; ``?run=`` names its run. Refused: too many tabs, or no such run."""
        run, news = socket.query_params.get("run", ""), asyncio.Event()
        if sum(map(len, self._tabs.values())) >= self._most:
            return await socket.close(_LATER)
        self._tabs[run].add(news)
        try:
            # Read before accepting the tab, so that data after its first load counts as new.
            self._seen.setdefault(run, await asyncio.to_thread(self._reader.signals.cursor, run))
            await socket.accept()
            await self._notify(socket, news)
        except UnknownRun:
            await socket.close(_NO_RUN)
        except Exception as error:  # noqa: BLE001 - a failed first read: the tab retries by its own clock
            log.debug("push: %s: %s", run, error)
            with contextlib.suppress(RuntimeError):
                await socket.close(_LATER)
        finally:
            self._leave(run, news)

    async def _notify(self, socket: WebSocket, news: asyncio.Event) -> None:
        if self._watcher is None or self._watcher.done():
            self._watcher = asyncio.create_task(self._watch())
        gone, sending = asyncio.create_task(_gone(socket)), asyncio.create_task(_each(socket, news))
        try:
            await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            sending.cancel()

    def _leave(self, run: str, news: asyncio.Event) -> None:
        self._tabs[run].discard(news)
        if not self._tabs[run]:
            del self._tabs[run]
            self._seen.pop(run, None)

    async def _watch(self) -> None:
        seen: int | None = None
        left = 0
        while self._tabs:
            # Read before the cursors: what is written in between moves it again.
            mark = self._mark()
            left -= 1
            if mark is None or mark != seen or left == 0:
                left = AGAIN if mark != seen else 0
                checked = [await self._check(run) for run in tuple(self._tabs)]
                # A failed read is repeated even if nothing more is written.
                seen = mark if all(checked) else None
            await asyncio.sleep(self._every)

    def _mark(self) -> int | None:
        # Not in a thread: to wake one up was a third of what an idle tab cost.
        try:
            return self._reader.mark()
        except Exception as error:  # noqa: BLE001 - the mark only saves reads, which report the error themselves
            log.debug("push: %s", error)
            return None

    async def _check(self, run: str) -> bool:
        """Notifies the run's tabs of new data; False if the read failed."""
        try:
            cursor = await asyncio.to_thread(self._reader.signals.cursor, run)
        except UnknownRun:
            # Not an error: repeating it would read all other runs because of one deleted run.
            return True
        except Exception as error:  # noqa: BLE001 - any database error; the tabs' own polls report it, and the read is repeated
            log.debug("push: %s: %s", run, error)
            return False
        if run in self._seen and cursor != self._seen[run]:
            self._seen[run] = cursor
            for news in self._tabs[run]:
                news.set()
        return True


async def _each(socket: WebSocket, news: asyncio.Event) -> None:
    """Sends each notification, until the tab disconnects."""
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        while await news.wait():
            news.clear()
            await socket.send_text("news")


async def _gone(socket: WebSocket) -> None:
    """Returns when the tab disconnects; its messages are ignored."""
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        while True:
            await socket.receive_text()
