"""Dead-man switch: pings a URL while Rollscope is healthy; the service behind the URL alerts when pings stop.

For services such as Healthchecks.io, Better Stack or a Watchdog route, because an alerting system cannot report its own
death.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from server.lib.secret import Secret
from server.notify.model import DeliveryAnswer, Request
from server.notify.outbound import send as send_request

log = logging.getLogger("rollscope.deadman")


class Clock(Protocol):
    """A monotonic clock in seconds, and waiting by it."""

    def now(self) -> float: ...

    async def wait(self, stop: asyncio.Event, seconds: float) -> None:
        """Returns after so many seconds, or at once when ``stop`` is set."""


class MonotonicClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def wait(self, stop: asyncio.Event, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), seconds)


class DeadMan:
    """Pings ``url`` with a GET every ``interval`` seconds while ``healthy`` returns None.

    Args:
        healthy: returns why Rollscope is not healthy, or None.

    A change of state is logged once and never with the URL: ping withheld, ping failed, ping back.
    """

    def __init__(
        self,
        url: Secret,
        interval: float,
        healthy: Callable[[], str | None],
        send: Callable[[Request], Awaitable[DeliveryAnswer]] = send_request,
        clock: Clock | None = None,
    ) -> None:
        self._request = Request(url, b"", method="GET")
        self._interval, self._healthy, self._send = interval, healthy, send
        self._clock = clock or MonotonicClock()
        self._trouble = ""

    async def run(self, stop: asyncio.Event) -> None:
        """Pings until ``stop``. A slow ping does not delay later ones, which follow the interval's grid."""
        due = self._clock.now()
        while not stop.is_set():
            await self.ping()
            now = self._clock.now()
            # Missed pings are not repeated, because one ping is enough.
            due = max(due + self._interval, now)
            await self._clock.wait(stop, due - now)

    async def ping(self) -> None:
        """Sends one ping if healthy."""
        why = self._healthy()
        if why is not None:
            self._note("withheld", f"dead-man ping withheld: {why}")
            return
        answer = await self._send(self._request)
        self._note("" if answer.ok else "failed", f"dead-man ping failed: {answer.text}")

    def _note(self, trouble: str, text: str) -> None:
        if trouble == self._trouble:
            return
        self._trouble = trouble
        if trouble:
            log.warning("%s", text)
        else:
            log.info("dead-man ping works again")
