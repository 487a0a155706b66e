"""Delivers notifications from the outbox: claim, render, send, log; each at least once.

A notification is claimed by lease, so that after a crash another process sends it. A claim ends in one commit of the
status and the answer; after that the notification is never sent again. Receivers are independent: a hanging one does
not delay the others. Within a group order is kept, because only its oldest unsent notification is due. Silences, and
repetitions of a group that waited together, are considered before each attempt.
"""

import asyncio
import contextlib
import logging
import random
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol

from server import notify
from server.alerts.group import from_json
from server.alerts.mute import without_silenced
from server.lib.clock import Clock
from server.lib.secret import Secret
from server.notify import outbound
from server.notify.model import DeliveryAnswer, Notification, Receiver, ReceiverSettings, Request
from server.notify.outbound import send as send_request
from server.store.alerts import AlertStore
from server.store.types import DeliveryRow

log = logging.getLogger("rollscope.alerts")

LEASE_SECONDS = 30.0
# Limit of one delivery, s: above the maximum of `outbound` (15 s) and below the lease, so that no other process starts.
SEND_SECONDS = 20.0
AT_ONCE = 4
"""Requests to one receiver at a time, so that a backlog of many groups does not look like an attack."""

# Seconds before the second attempt; doubled for each further one.
BACKOFF_SECONDS = 5.0
# Longest pause between two attempts, s.
BACKOFF_MAX_SECONDS = 300.0
# Share by which a pause varies, so that attempts do not coincide after an outage.
JITTER = 0.2
# Longest Retry-After that is respected, s.
AFTER_MAX_SECONDS = 3600.0
# A notification is given up after this time, s (one day).
GIVE_UP_SECONDS = 86_400.0

KEEP_SECONDS = 7 * 86_400.0
"""Retention of the notification log, s."""

# Poll interval when nothing is due, s: a lease of a crashed process is noticed after this time at most.
POLL_SECONDS = 10.0
# Pause if another process has the claim, or the database is unreachable, s.
PAUSE_SECONDS = 0.5
STOP_SECONDS = 2.0
PRUNE_SECONDS = 3600.0

Send = Callable[[Request], Awaitable[DeliveryAnswer]]


class Dispatcher:
    """Delivers notifications from the outbox. One task; several processes may run one on the same store.

    Args:
        clock: event time, which stamps everything here.
        send: one attempt, bounded, never raising; see `outbound.send`.
        rng: for the jitter of the back-off.
    """

    def __init__(
        self, store: AlertStore, receivers: Sequence[ReceiverSettings], clock: Clock, *, send: Send = outbound.send,
        rng: random.Random | None = None,
    ) -> None:  # fmt: skip
        self._store, self._clock, self._send = store, clock, send
        self._settings = {receiver.name: receiver for receiver in receivers}
        self._rng = rng or random.Random()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._tasks: dict[str, set[asyncio.Task[None]]] = {name: set() for name in self._settings}
        # Claimed by this process and not logged yet; an expired lease is no reason to send these again.
        self._open: set[int] = set()
        self._failing: set[str] = set()
        self._store_away = False
        self._pruned: float | None = None

    def wake(self) -> None:
        """Signals a new notification. Callable from any thread; no effect before `run` and after it."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._changed.set)

    async def run(self, stop: asyncio.Event) -> None:
        """Delivers until `stop`. Deliveries in flight then have 2 s; the rest is left to their leases."""
        self._loop = asyncio.get_running_loop()
        stopping = asyncio.create_task(self._wake_at(stop))
        try:
            while not stop.is_set():
                self._changed.clear()
                pause = await self._round()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), pause)
        finally:
            stopping.cancel()
            await self._finish_running()

    async def _wake_at(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self._changed.set()

    async def _finish_running(self) -> None:
        running = {task for tasks in self._tasks.values() for task in tasks}
        if not running:
            return
        _, late = await asyncio.wait(running, timeout=STOP_SECONDS)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    # ---- claiming

    async def _round(self) -> float:
        """Claims and sends due notifications; returns wall seconds until the next round."""
        try:
            await self._prune()
            await self._claim()
            pause = await self._pause()
        except Exception as error:  # noqa: BLE001 - outermost loop: it must outlive a database that is away
            self._note_store(error)
            return PAUSE_SECONDS
        self._note_store(None)
        return pause

    def _free(self) -> dict[str, int]:
        """Returns receiver -> free request slots."""
        return {name: AT_ONCE - len(tasks) for name, tasks in self._tasks.items() if len(tasks) < AT_ONCE}

    async def _claim(self) -> None:
        # Per receiver, because with a common limit one receiver's backlog would starve the others.
        for name, slots in self._free().items():
            now, lease = self._ms(), round(LEASE_SECONDS * 1000)
            for row in await asyncio.to_thread(self._store.claim, now, lease, slots, [name]):
                if row.id not in self._open:
                    self._start(row)

    def _start(self, row: DeliveryRow) -> None:
        self._open.add(row.id)
        tasks = self._tasks[row.receiver]
        task = asyncio.create_task(self._deliver(row))
        tasks.add(task)

        def ended(done: asyncio.Task[None]) -> None:
            tasks.discard(done)
            self._open.discard(row.id)
            self._changed.set()

        task.add_done_callback(ended)

    async def _pause(self) -> float:
        free = list(self._free())
        due = await asyncio.to_thread(self._store.next_due, free) if free else None
        if due is None:
            return POLL_SECONDS
        return min(POLL_SECONDS, max(PAUSE_SECONDS, self._clock.wall_until(due / 1000)))

    async def _prune(self) -> None:
        now = self._clock.now()
        if self._pruned is None or now - self._pruned >= PRUNE_SECONDS:
            await asyncio.to_thread(self._store.prune, round((now - KEEP_SECONDS) * 1000))
            self._pruned = now

    # ---- one notification

    async def _deliver(self, row: DeliveryRow) -> None:
        write = await self._sent(row)
        # The result of a sent notification must be logged, so this task retries, whatever the lease.
        while True:
            try:
                await asyncio.to_thread(write)
            except Exception as error:  # noqa: BLE001 - outermost loop of this delivery: the store may be away
                self._note_store(error)
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                return

    async def _sent(self, row: DeliveryRow) -> Callable[[], None]:
        """Sends a claimed notification if it is still due; returns the function that writes what became of it."""
        settings = self._settings[row.receiver]
        try:
            notification = await asyncio.to_thread(from_json, row.payload)
        except Exception as error:  # noqa: BLE001 - a damaged row must end its notification, not the delivery
            answer = _not_rendered(error)
        else:
            due, why = await asyncio.to_thread(self._still_due, row, notification, settings)
            if due is None:
                return lambda: self._store.finish(row.id, "superseded", why, None)
            answer = await self._attempt(due, settings)
        self._note_receiver(row.receiver, answer)
        return self._outcome(row, answer)

    def _still_due(
        self, row: DeliveryRow, notification: Notification, settings: ReceiverSettings
    ) -> tuple[Notification | None, str]:
        """Returns what is left to send of a notification that may have waited for its receiver; None with the reason.

        A repetition is not due if a newer notification of its group waits. Alerts that were silenced meanwhile are
        left out, but not for receivers that treat missing alerts as resolved.
        """
        try:
            if notification.reason == "repeat" and self._store.has_newer(row):
                return None, "a newer notification of its group was waiting"
            receiver = notify.load().get(settings.kind)
            if receiver is not None and receiver.refresh_seconds:
                return notification, ""
            now = self._clock.now()
            silences = self._store.silences(round(now * 1000))
        except Exception as error:  # noqa: BLE001 - as when the result is written: the store may be away
            self._note_store(error)
            return notification, ""
        return without_silenced(notification, [silence for silence in silences if silence.active(now)], now)

    async def _attempt(self, notification: Notification, settings: ReceiverSettings) -> DeliveryAnswer:
        receiver = notify.load().get(settings.kind)
        if receiver is None:
            return DeliveryAnswer(False, text=f"unknown receiver kind {settings.kind!r}")
        try:
            request = await asyncio.to_thread(self._render, receiver, notification, settings)
        except Exception as error:  # noqa: BLE001 - a receiver's bug must end its notification, not the delivery
            return _not_rendered(error)
        sending = self._send(request) if request is not None else _on_thread(receiver, notification, settings)
        try:
            return await asyncio.wait_for(sending, SEND_SECONDS)
        except TimeoutError:
            return DeliveryAnswer(False, retry=True, text=f"no answer within {SEND_SECONDS:g} s")
        except Exception as error:  # noqa: BLE001 - as above; what was sent or not is unknown, hence again
            return DeliveryAnswer(False, retry=True, text=f"sending failed: {type(error).__name__}")

    def _render(self, receiver: Receiver, notification: Notification, settings: ReceiverSettings) -> Request | None:
        """Returns the request; None for a receiver that sends by itself."""
        return None if receiver.render is None else receiver.render(notification, settings, self._clock.now())

    def _outcome(self, row: DeliveryRow, answer: DeliveryAnswer) -> Callable[[], None]:
        """Returns the function that writes the log entry or the time of the next attempt."""
        now = self._ms()
        if answer.ok:
            return lambda: self._store.finish(row.id, "sent", answer.text, now)
        if not answer.retry:
            return lambda: self._store.finish(row.id, "failed", answer.text, None)
        if now - row.created_at >= GIVE_UP_SECONDS * 1000:
            return lambda: self._store.finish(row.id, "failed", f"gave up after 24 h: {answer.text}", None)
        next_attempt = now + round(self._delay(row.attempts, answer.after) * 1000)
        return lambda: self._store.retry(row.id, next_attempt, answer.text)

    def _delay(self, attempts: int, after: float | None) -> float:
        """Returns seconds until the next attempt, with jitter, so that attempts do not coincide after an outage."""
        doubled = BACKOFF_SECONDS * 2.0 ** min(attempts - 1, 10)
        backoff = min(BACKOFF_MAX_SECONDS, doubled) * self._rng.uniform(1 - JITTER, 1 + JITTER)
        return max(backoff, min(after or 0.0, AFTER_MAX_SECONDS))

    # ---- log messages, once per change

    def _note_receiver(self, name: str, answer: DeliveryAnswer) -> None:
        if not answer.ok and name not in self._failing:
            self._failing.add(name)
            log.warning("receiver %s: a notification was not delivered: %s", name, answer.text)
        elif answer.ok and name in self._failing:
            self._failing.discard(name)
            log.warning("receiver %s: delivered again", name)

    def _note_store(self, error: Exception | None) -> None:
        if error is not None and not self._store_away:
            log.warning("notifications wait for the store: %s", type(error).__name__)
        elif error is None and self._store_away:
            log.warning("notifications: the store answers again")
        self._store_away = error is not None

    def _ms(self) -> int:
        return round(self._clock.now() * 1000)


def _not_rendered(error: Exception) -> DeliveryAnswer:
    # Only its type: the message may quote the settings.
    return DeliveryAnswer(False, text=f"the notification cannot be rendered: {type(error).__name__}")


async def _on_thread(receiver: Receiver, notification: Notification, settings: ReceiverSettings) -> DeliveryAnswer:
    """Calls `Receiver.deliver` on a daemon thread: it needs no thread of the store's pool and never delays an exit."""
    assert receiver.deliver is not None
    deliver, loop = receiver.deliver, asyncio.get_running_loop()
    done: asyncio.Future[DeliveryAnswer] = loop.create_future()

    def work() -> None:
        try:
            answer = deliver(notification, settings)
        except Exception as error:  # noqa: BLE001 - a library's bug ends as a failed notification
            answer = DeliveryAnswer(False, text=f"the receiver failed: {type(error).__name__}")
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(lambda: None if done.done() else done.set_result(answer))

    threading.Thread(target=work, name=f"notify-{settings.name}", daemon=True).start()
    return await done


# ---- deadman
# Dead-man switch: pings a URL while Rollscope is healthy; the service behind the URL alerts when pings stop.


class WaitingClock(Protocol):
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
        clock: WaitingClock | None = None,
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
