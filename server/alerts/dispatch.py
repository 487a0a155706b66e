"""From the outbox to the receivers: claim, render, send, and the log entry, at least once each.

A notification is claimed by lease, so that one whose process dies is sent by the next; a claim ends in one commit
that holds the status and the answer, and after that the notification is never sent again. Receivers are independent:
one that hangs delays nobody else. Within a group order is kept, because only its oldest unsent notification is due.
"""

import asyncio
import logging
import random
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from server import notify
from server.alerts.group import from_json
from server.clock import Clock
from server.notify import outbound
from server.notify.model import DeliveryAnswer, Notification, Receiver, ReceiverSettings, Request
from server.store.alerts import AlertStore
from server.store.types import DeliveryRow

log = logging.getLogger(__name__)

LEASE_SECONDS = 30.0
# Above what `outbound` needs at most (15 s), below the lease: nobody else may begin while this one still sends.
SEND_SECONDS = 20.0
AT_ONCE = 4
"""Requests to one receiver at a time: a backlog of many groups must not look like an attack."""

BACKOFF_SECONDS, BACKOFF_MAX_SECONDS, JITTER = 5.0, 300.0, 0.2
AFTER_MAX_SECONDS = 3600.0
GIVE_UP_SECONDS = 86_400.0

KEEP_SECONDS = 7 * 86_400.0
"""How long the log of notifications is kept."""

# Without anything due: what a process that died had leased is seen this late at most.
POLL_SECONDS = 10.0
# Something is due but somebody else has it, or the database is away: no hurry, and no spinning.
PAUSE_SECONDS = 0.5
STOP_SECONDS = 2.0
PRUNE_SECONDS = 3600.0

Send = Callable[[Request], Awaitable[DeliveryAnswer]]


class Dispatcher:
    """Delivers what is in the outbox. One task; any number of processes may run one on the same store.

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
        self._settings = {one.name: one for one in receivers}
        self._rng = rng or random.Random()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._tasks: dict[str, set[asyncio.Task[None]]] = {name: set() for name in self._settings}
        # Claimed by this process and not yet in the log: a lease that ran out meanwhile is no reason to send again.
        self._open: set[int] = set()
        self._failing: set[str] = set()
        self._store_away = False
        self._pruned: float | None = None

    def wake(self) -> None:
        """Something was put into the outbox. From any thread; before `run` and after it without effect."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._changed.set)

    async def run(self, stop: asyncio.Event) -> None:
        """Deliver until `stop`; then what is being sent has 2 s to end, and the rest is left to its leases."""
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
        """Claim what is due and begin to send it; wall seconds until there is more to do."""
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
        """receiver -> how many more it can take just now."""
        return {name: AT_ONCE - len(tasks) for name, tasks in self._tasks.items() if len(tasks) < AT_ONCE}

    async def _claim(self) -> None:
        # One receiver after the other: a limit over all would let one receiver's backlog starve the rest.
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
        answer = await self._attempt(row, self._settings[row.receiver])
        self._note_receiver(row.receiver, answer)
        write = self._outcome(row, answer)
        # Sent, so it must get into the log: until then this task holds on to it, whatever the lease says.
        while True:
            try:
                await asyncio.to_thread(write)
            except Exception as error:  # noqa: BLE001 - outermost loop of this delivery: the store may be away
                self._note_store(error)
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                return

    async def _attempt(self, row: DeliveryRow, settings: ReceiverSettings) -> DeliveryAnswer:
        receiver = notify.load().get(settings.kind)
        if receiver is None:
            return DeliveryAnswer(False, text=f"unknown receiver kind {settings.kind!r}")
        try:
            notification = await asyncio.to_thread(from_json, row.payload)
            request = await asyncio.to_thread(self._render, receiver, notification, settings)
        except Exception as error:  # noqa: BLE001 - a receiver's bug must end its notification, not the delivery
            # Only its type: the message may quote the settings.
            return DeliveryAnswer(False, text=f"the notification cannot be rendered: {type(error).__name__}")
        sending = self._send(request) if request is not None else _on_thread(receiver, notification, settings)
        try:
            return await asyncio.wait_for(sending, SEND_SECONDS)
        except TimeoutError:
            return DeliveryAnswer(False, retry=True, text=f"no answer within {SEND_SECONDS:g} s")
        except Exception as error:  # noqa: BLE001 - as above; what was sent or not is unknown, hence again
            return DeliveryAnswer(False, retry=True, text=f"sending failed: {type(error).__name__}")

    def _render(self, receiver: Receiver, notification: Notification, settings: ReceiverSettings) -> Request | None:
        """The request; None for a receiver that sends by itself."""
        return None if receiver.render is None else receiver.render(notification, settings, self._clock.now())

    def _outcome(self, row: DeliveryRow, answer: DeliveryAnswer) -> Callable[[], None]:
        """The log entry, or when to try again."""
        now = self._ms()
        if answer.ok:
            return lambda: self._store.finish(row.id, "sent", answer.text, now)
        if not answer.retry:
            return lambda: self._store.finish(row.id, "failed", answer.text, None)
        if now - row.created_at >= GIVE_UP_SECONDS * 1000:
            return lambda: self._store.finish(row.id, "failed", f"gave up after 24 h: {answer.text}", None)
        again = now + round(self._delay(row.attempts, answer.after) * 1000)
        return lambda: self._store.retry(row.id, again, answer.text)

    def _delay(self, attempts: int, after: float | None) -> float:
        """Seconds until the next attempt: jittered, so that a receiver that comes back is not met by all at once."""
        doubled = BACKOFF_SECONDS * 2.0 ** min(attempts - 1, 10)
        own = min(BACKOFF_MAX_SECONDS, doubled) * self._rng.uniform(1 - JITTER, 1 + JITTER)
        return max(own, min(after or 0.0, AFTER_MAX_SECONDS))

    # ---- words, once per change

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
            log.warning("notifications: the store is back")
        self._store_away = error is not None

    def _ms(self) -> int:
        return round(self._clock.now() * 1000)


async def _on_thread(receiver: Receiver, notification: Notification, settings: ReceiverSettings) -> DeliveryAnswer:
    """`Receiver.deliver` on a thread of its own: the pool's are for the store, and a daemon never delays an exit."""
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
