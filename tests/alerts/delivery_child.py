"""The process that the delivery test kills: ticks that write notifications, then the real dispatcher.

A fault is ``where:n``: at the n-th time that point is reached, the process kills itself. Every process goes on
from the stored cursor, a minute of event time later than the one before it, when all leases have run out.
"""

import asyncio
import os
import signal
from typing import Any

from sqlalchemy import Connection

from server.alerts.dispatch import Dispatcher
from server.alerts.group import to_json
from server.lib.clock import ScaledClock
from server.lib.secret import Secret
from server.notify import outbound
from server.notify.model import AlertItem, DeliveryAnswer, Notification, ReceiverSettings, Request
from server.store import Store, alerts
from server.store.alerts import AlertStore
from server.store.types import Batch, DeliveryRow, OutboxRow

T0 = 1_800_000_000
TICKS = 5
"""Per process, each with one notification; three groups in turn."""

WHERE = ("before-commit", "after-commit", "after-claim", "after-send-before-log", "after-log")


class Fault:
    """Counts how often a point is reached."""

    def __init__(self, given: str) -> None:
        self.where, _, count = given.partition(":")
        self.left = int(count or 0)

    def reached(self, where: str) -> None:
        if where == self.where:
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def batch_of(n: int) -> Batch:
    """What tick ``n`` writes: its notification, and that it was made."""
    item = AlertItem("firing", {"alertname": "A", "run": "r", "n": str(n)}, {}, T0 + n, None, f"{n:016x}")
    note = Notification("ops", "r", f"g{n % 3}", {"run": "r"}, "firing", (item,))
    row = OutboxRow("ops", note.group_key, n, (T0 + n) * 1000, to_json(note))
    return Batch("r", outbox=[row], cursors={"tick": str(n + 1)})


def tick(store: Store, fault: Fault) -> None:
    """Write the notifications of some ticks. ``before-commit`` is inside the transaction, after its rows."""
    write = alerts.write

    def written(connection: Connection, batch: Batch, run: int) -> None:
        write(connection, batch, run)
        fault.reached("before-commit")

    alerts.write = written
    first = int(store.runs.cursors("r").get("tick", "0"))
    for n in range(first, first + TICKS):
        store.write(batch_of(n))
        fault.reached("after-commit")


class Faulty:
    """The real store of alerts and the real `send`, with a fault after each."""

    def __init__(self, store: AlertStore, fault: Fault, empty: Any) -> None:
        self._store, self._fault, self._empty = store, fault, empty

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def claim(self, *args: Any) -> list[DeliveryRow]:
        rows = self._store.claim(*args)
        if rows:
            self._fault.reached("after-claim")
        return rows

    def finish(self, *args: Any) -> None:
        self._store.finish(*args)
        self._fault.reached("after-log")
        if self._store.next_due(["ops"]) is None:
            self._empty()

    async def send(self, request: Request) -> DeliveryAnswer:
        answer = await outbound.send(request)
        self._fault.reached("after-send-before-log")
        return answer


async def deliver(store: Store, hook: str, now: int, fault: Fault) -> None:
    """Until nothing is left to send."""
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    faulty: Any = Faulty(store.alerts, fault, lambda: loop.call_soon_threadsafe(stop.set))
    settings = ReceiverSettings("ops", "webhook", Secret(hook))
    await Dispatcher(faulty, [settings], ScaledClock(T0 + now), send=faulty.send).run(stop)


def main(url: str, hook: str, now: int, where: str) -> None:
    store = Store.open(url)
    fault = Fault(where)
    tick(store, fault)
    asyncio.run(deliver(store, hook, now, fault))
    store.close()
