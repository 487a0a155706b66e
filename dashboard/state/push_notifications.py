"""Push: an open tab is told that its run has something new, and looks at once instead of at its next tick.

Only a word crosses the socket. What a tab needs depends on what it has, and the one way to get it stays its pull
(`dashboard.ticks`): news while a pull is under way are one more pull, and a tab whose socket is down looks by the clock
again. One look at a run's cursor serves all of its tabs.
"""

import asyncio
import contextlib
import logging
from collections import defaultdict

from fastapi import WebSocket, WebSocketDisconnect

from server.query.types import Reader, UnknownRun

# Half of it is what push adds to a datum's way to the screen; a look is one row of the database.
EVERY_SECONDS = 0.2
# SQLite's log is written just before what it holds is seen, and longer before where its writer is held in between: so
# many looks at the mark later all runs are looked at once more.
AGAIN = 5
# A socket costs memory as long as it is open: beyond these tabs look by the clock, which any number can.
MOST = 500
_LATER, _NO_RUN = 1013, 4404

log = logging.getLogger(__name__)


class PushNotifications:
    """The open tabs of all runs. Used on one event loop."""

    def __init__(self, reader: Reader, every: float = EVERY_SECONDS, most: int = MOST) -> None:
        self._reader, self._every, self._most = reader, every, most
        self._tabs: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._seen: dict[str, str] = {}
        self._looking: asyncio.Task[None] | None = None

    async def serve(self, socket: WebSocket) -> None:
        """One tab, until it goes; ``?run=`` says what it shows. Refused: too many tabs, or no such run."""
        run, news = socket.query_params.get("run", ""), asyncio.Event()
        if sum(map(len, self._tabs.values())) >= self._most:
            return await socket.close(_LATER)
        self._tabs[run].add(news)
        try:
            # Before the tab is let in: what is new after its first look is then seen to differ.
            self._seen.setdefault(run, await asyncio.to_thread(self._reader.cursor, run))
            await socket.accept()
            await self._tell(socket, news)
        except UnknownRun:
            await socket.close(_NO_RUN)
        except Exception as error:  # noqa: BLE001 - of the first look alone: the tab asks again by its own clock
            log.debug("push: %s: %s", run, error)
            with contextlib.suppress(RuntimeError):
                await socket.close(_LATER)
        finally:
            self._leave(run, news)

    async def _tell(self, socket: WebSocket, news: asyncio.Event) -> None:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        gone, telling = asyncio.create_task(_gone(socket)), asyncio.create_task(_each(socket, news))
        try:
            await asyncio.wait({gone, telling}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            telling.cancel()

    def _leave(self, run: str, news: asyncio.Event) -> None:
        self._tabs[run].discard(news)
        if not self._tabs[run]:
            del self._tabs[run]
            self._seen.pop(run, None)

    async def _look(self) -> None:
        seen: int | None = None
        left = 0
        while self._tabs:
            # Read before the cursors: what is written in between moves it again.
            mark = self._mark()
            left -= 1
            if mark is None or mark != seen or left == 0:
                left = AGAIN if mark != seen else 0
                looked = [await self._look_at(run) for run in tuple(self._tabs)]
                # A look that failed is due again, whether or not more is written.
                seen = mark if all(looked) else None
            await asyncio.sleep(self._every)

    def _mark(self) -> int | None:
        # Not in a thread: to wake one up was a third of what an idle tab cost.
        try:
            return self._reader.mark()
        except Exception as error:  # noqa: BLE001 - it only saves looks: those say what is wrong, too
            log.debug("push: %s", error)
            return None

    async def _look_at(self, run: str) -> bool:
        """Tells the run's tabs what is new; False: there was no answer."""
        try:
            cursor = await asyncio.to_thread(self._reader.cursor, run)
        except UnknownRun:
            # An answer, too: were it asked for again, one tab of a run that is gone would have all others looked at.
            return True
        except Exception as error:  # noqa: BLE001 - whatever a database does, the tabs' own looks tell; asked again
            log.debug("push: %s: %s", run, error)
            return False
        if run in self._seen and cursor != self._seen[run]:
            self._seen[run] = cursor
            for news in self._tabs[run]:
                news.set()
        return True


async def _each(socket: WebSocket, news: asyncio.Event) -> None:
    """Says each piece of news, until the tab is gone."""
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        while await news.wait():
            news.clear()
            await socket.send_text("news")


async def _gone(socket: WebSocket) -> None:
    """Until the tab closes its end; what it says is not heard."""
    with contextlib.suppress(WebSocketDisconnect, RuntimeError):
        while True:
            await socket.receive_text()
