"""The way from the outbox to a receiver: real stores, real HTTP, a clock that is moved by hand."""

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

import pytest

from server import notify
from server.alerts import dispatch
from server.alerts.dispatch import Dispatcher
from server.alerts.group import to_json
from server.alerts.model import Silence
from server.lib.clock import ScaledClock
from server.lib.matchers import Matcher
from server.lib.secret import Secret
from server.notify import outbound
from server.notify.model import AlertItem, DeliveryAnswer, Notification, Receiver, ReceiverSettings, Request
from server.store import Store
from server.store.types import Batch, DeliveryRow, OutboxRow
from tests.alerts.hook import Hook, hook

T0 = 1_800_000_000.0
DAY = 86_400.0


@pytest.fixture
def receiver() -> Iterator[Hook]:
    """A real HTTP receiver."""
    with hook() as made:
        yield made


def message(key: str, seq: int, name: str = "ops") -> Notification:
    item = AlertItem("firing", {"alertname": "A", "run": "r", "n": str(seq)}, {}, T0, None, "aa")
    return Notification(name, "r", key, {"run": "r"}, "firing", (item,))


class Rig:
    """A dispatcher over a store, and what is put into its outbox."""

    def __init__(self, store: Store, *receivers: ReceiverSettings, send: Any = outbound.send) -> None:
        self.store, self.clock = store, ScaledClock(T0)
        self.dispatcher = Dispatcher(store.alerts, receivers, self.clock, send=send, rng=random.Random(1))

    def put(self, key: str, seq: int, name: str = "ops", payload: str | None = None) -> None:
        text = to_json(message(key, seq, name)) if payload is None else payload
        row = OutboxRow(name, key, seq, round(self.clock.now() * 1000), text)
        self.store.write(Batch("r", outbox=[row]))

    async def settle(self) -> None:
        """Everything that is due now is claimed and attempted."""
        while True:
            await self.dispatcher._round()
            await asyncio.gather(*(task for of in self.dispatcher._tasks.values() for task in of))
            due = self.store.alerts.next_due(list(self.dispatcher._tasks))
            if due is None or due > self.clock.now() * 1000:
                return

    def rows(self) -> dict[tuple[str, int], DeliveryRow]:
        return {(row.group_key, row.seq): row for row in self.store.alerts.deliveries(None, 1000)}

    def one(self) -> DeliveryRow:
        (row,) = self.rows().values()
        return row


def ops(url: str = "http://127.0.0.1:1", name: str = "ops", kind: str = "webhook") -> ReceiverSettings:
    return ReceiverSettings(name, kind, Secret(url))


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """With a bound: what hangs must fail, not wait for ever."""
    asyncio.run(asyncio.wait_for(coroutine, 60))


def answering(*answers: DeliveryAnswer) -> Callable[[Request], Coroutine[Any, Any, DeliveryAnswer]]:
    """A `send` that gives these answers, the last one for ever."""
    left = list(answers)

    async def send(_request: Request) -> DeliveryAnswer:
        return left.pop(0) if len(left) > 1 else left[0]

    return send


def test_a_notification_arrives_and_is_logged(store: Store, receiver: Hook) -> None:
    rig = Rig(store, ops(receiver.url))
    rig.put("g", 1)
    run(rig.settle())
    (body,) = receiver.bodies
    assert (body["version"], body["groupKey"], body["alerts"][0]["labels"]["n"]) == ("4", "g", "1")
    row = rig.one()
    assert (row.status, row.attempts, row.sent_at) == ("sent", 1, round(T0 * 1000))
    rig.clock.set(T0 + DAY)
    run(rig.settle())
    assert receiver.requests == 1


def test_a_receiver_that_is_down_for_an_hour_gets_everything_in_order(store: Store, receiver: Hook) -> None:
    rig = Rig(store, ops(receiver.url))
    receiver.status = 503

    async def scenario() -> None:
        for minute in range(70):
            rig.clock.set(T0 + 60 * minute)
            receiver.status = 503 if minute < 60 else 200
            if minute < 60:
                rig.put(f"g{minute % 3}", minute)
            await rig.settle()

    run(scenario())
    got = [(body["groupKey"], int(body["alerts"][0]["labels"]["n"])) for body in receiver.bodies]
    assert sorted(n for _, n in got) == list(range(60))
    for key in ("g0", "g1", "g2"):
        of = [n for group, n in got if group == key]
        assert of == sorted(of)
    assert {row.status for row in rig.rows().values()} == {"sent"}
    # Three heads of groups, each asked about every five minutes at the end: no storm. Then each once.
    assert 3 * 12 <= receiver.requests - 60 <= 3 * 18


def test_a_hundred_alerts_outlast_an_hour_without_a_receiver(store: Store, receiver: Hook) -> None:
    """Each of 100 groups fires when the hour begins. Each is refused at 0, 20 and 40 minutes, and then arrives once."""
    rig = Rig(store, ops(receiver.url))

    async def scenario() -> None:
        for number in range(100):
            rig.put(f"g{number}", 1)
        for minute in (0, 20, 40, 60, 80):
            rig.clock.set(T0 + 60 * minute)
            receiver.status = 503 if minute < 60 else 200
            await rig.settle()

    run(scenario())
    assert sorted(body["groupKey"] for body in receiver.bodies) == sorted(f"g{number}" for number in range(100))
    assert {row.status for row in rig.rows().values()} == {"sent"}
    assert receiver.requests == 3 * 100 + 100


@pytest.mark.parametrize(("status", "final"), [(404, "failed"), (400, "failed"), (503, ""), (429, ""), (408, "")])
def test_which_answers_are_tried_again(store: Store, receiver: Hook, status: int, final: str) -> None:
    rig = Rig(store, ops(receiver.url))
    receiver.status = status
    rig.put("g", 1)
    run(rig.settle())
    assert rig.one().status == (final or "pending") and str(status) in rig.one().answer
    receiver.status = 200
    rig.clock.set(T0 + 10)
    run(rig.settle())
    assert len(receiver.bodies) == (0 if final else 1)


def test_a_failed_one_lets_the_next_of_its_group_through(store: Store, receiver: Hook) -> None:
    rig = Rig(
        store, ops(receiver.url), send=answering(DeliveryAnswer(False, text="404"), DeliveryAnswer(True, text="200"))
    )
    rig.put("g", 1)
    rig.put("g", 2)
    run(rig.settle())
    assert [row.status for _, row in sorted(rig.rows().items())] == ["failed", "sent"]


def test_the_back_off_doubles_up_to_five_minutes(store: Store) -> None:
    rig = Rig(store, ops(), send=answering(DeliveryAnswer(False, retry=True, text="503")))
    rig.put("g", 1)
    waits = []

    async def scenario() -> None:
        for _ in range(10):
            await rig.settle()
            waits.append(rig.one().next_at / 1000 - rig.clock.now())
            rig.clock.set(rig.one().next_at / 1000)

    run(scenario())
    for wait, base in zip(waits, (5, 10, 20, 40, 80, 160, 300, 300, 300, 300), strict=True):
        assert 0.8 * base - 0.001 <= wait <= 1.2 * base + 0.001
    assert len({round(wait / base, 3) for wait, base in zip(waits, (5, 10, 20, 40), strict=False)}) == 4  # jittered
    assert rig.one().attempts == 10


@pytest.mark.parametrize(("after", "least", "most"), [(120.0, 120, 120), (1e9, 3600, 3600), (1.0, 4, 6), (None, 4, 6)])
def test_what_the_receiver_asks_for(store: Store, after: float | None, least: float, most: float) -> None:
    rig = Rig(store, ops(), send=answering(DeliveryAnswer(False, retry=True, text="429", after=after)))
    rig.put("g", 1)
    run(rig.settle())
    assert least <= rig.one().next_at / 1000 - T0 <= most


@pytest.mark.parametrize(("age", "status"), [(DAY - 1, "pending"), (DAY, "failed")])
def test_after_a_day_it_gives_up(store: Store, age: float, status: str) -> None:
    rig = Rig(store, ops(), send=answering(DeliveryAnswer(False, retry=True, text="503")))
    rig.put("g", 1)
    rig.clock.set(T0 + age)  # also after a day without a process there is one attempt
    run(rig.settle())
    assert (rig.one().status, rig.one().attempts) == (status, 1)
    assert rig.one().answer == ("503" if status == "pending" else "gave up after 24 h: 503")


def broken(_note: Notification, _settings: ReceiverSettings, _now: float) -> Request:
    raise ValueError("with a secret")


@pytest.mark.parametrize(
    ("settings", "payload", "said"),
    [
        (ops(kind="pigeon"), None, "unknown receiver kind 'pigeon'"),
        (ops(kind="broken"), None, "the notification cannot be rendered: ValueError"),
        (ops(), "not json", "the notification cannot be rendered: JSONDecodeError"),
        (ops(), '{"alerts": [], "what": 1}', "the notification cannot be rendered: TypeError"),
    ],
)
def test_what_cannot_be_rendered_fails_and_the_rest_goes_on(
    store: Store, receiver: Hook, settings: ReceiverSettings, payload: str | None, said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    kinds = {**notify.load(), "broken": Receiver("broken", "", render=broken)}
    monkeypatch.setattr(notify, "load", lambda: kinds)
    rig = Rig(store, settings, ops(receiver.url, "good"))
    rig.put("g", 1, payload=payload)
    rig.put("h", 1, name="good")
    run(rig.settle())
    assert (rig.rows()["g", 1].status, rig.rows()["g", 1].answer) == ("failed", said)
    assert rig.rows()["h", 1].status == "sent"


def test_a_send_that_raises_is_tried_again(store: Store) -> None:
    async def send(_request: Request) -> DeliveryAnswer:
        raise RuntimeError("https://secret")

    rig = Rig(store, ops(), send=send)
    rig.put("g", 1)
    run(rig.settle())
    assert (rig.one().status, rig.one().answer) == ("pending", "sending failed: RuntimeError")


def test_a_library_that_sends_by_itself(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []

    def deliver(note: Notification, settings: ReceiverSettings) -> DeliveryAnswer:
        threads.append(threading.current_thread().name)
        if note.group_key == "bad":
            raise RuntimeError
        return DeliveryAnswer(True, text=f"{settings.name} took {note.group_key}")

    kinds = {"library": Receiver("library", "", deliver=deliver)}
    monkeypatch.setattr(notify, "load", lambda: kinds)
    rig = Rig(store, ops(kind="library"))
    rig.put("g", 1)
    rig.put("bad", 1)
    run(rig.settle())
    assert (rig.rows()["g", 1].status, rig.rows()["g", 1].answer) == ("sent", "ops took g")
    assert (rig.rows()["bad", 1].status, rig.rows()["bad", 1].answer) == ("failed", "the receiver failed: RuntimeError")
    assert threads == ["notify-ops", "notify-ops"]


def test_a_receiver_that_is_not_configured_is_left_alone(store: Store, receiver: Hook) -> None:
    rig = Rig(store, ops(receiver.url))
    rig.put("g", 1, name="away")
    run(rig.settle())
    assert (rig.one().status, rig.one().attempts, receiver.requests) == ("pending", 0, 0)


async def until(condition: Callable[[], bool]) -> None:
    """Bounded by `run`."""
    while not await asyncio.to_thread(condition):
        await asyncio.sleep(0)


def test_a_hanging_receiver_delays_nobody_and_gets_four_at_once(store: Store, receiver: Hook) -> None:
    """The whole task, woken from a thread; at the end what hangs is left to its lease."""
    receiver.gate.clear()
    with hook() as other:
        rig = Rig(store, ops(receiver.url), ops(other.url, "other"))

        async def scenario() -> None:
            stop = asyncio.Event()
            for n in range(10):
                rig.put(f"g{n}", n)
            running = asyncio.create_task(rig.dispatcher.run(stop))
            await until(lambda: receiver.requests == 4)
            rig.put("h", 1, name="other")
            await asyncio.to_thread(rig.dispatcher.wake)
            await until(lambda: rig.rows()["h", 1].status == "sent")
            stop.set()
            await running

        run(scenario())
        assert (receiver.requests, receiver.most_at_once) == (4, 4)
        assert {row.status for key, row in rig.rows().items() if key[0] != "h"} == {"pending"}
        # The next process: first the leases have to run out.
        receiver.gate.set()
        after = Rig(store, ops(receiver.url))
        after.clock.set(T0 + 29)
        run(after.settle())
        assert len({body["groupKey"] for body in receiver.bodies} & {f"g{n}" for n in range(4, 10)}) == 6
        after.clock.set(T0 + 30)
        run(after.settle())
        assert {row.status for row in rig.rows().values()} == {"sent"}


def test_at_a_stop_what_is_being_sent_may_end(store: Store) -> None:
    begun, go = asyncio.Event(), asyncio.Event()

    async def send(_request: Request) -> DeliveryAnswer:
        begun.set()
        await go.wait()
        return DeliveryAnswer(True, text="200")

    rig = Rig(store, ops(), send=send)
    rig.put("g", 1)

    async def scenario() -> None:
        stop = asyncio.Event()
        running = asyncio.create_task(rig.dispatcher.run(stop))
        await begun.wait()
        stop.set()
        go.set()
        await running

    run(scenario())
    assert rig.one().status == "sent"
    rig.dispatcher.wake()  # after the end: without effect


def test_a_store_that_is_away_costs_no_notification(
    store: Store, receiver: Hook, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log entry is tried until it is written, and what was sent is not sent again meanwhile."""
    rig = Rig(store, ops(receiver.url))
    rig.put("g", 1)
    finish, failures = store.alerts.finish, [OSError("away")] * 2

    def finishing(*args: Any) -> None:
        # The lease runs out while the entry waits: still nobody may send it again.
        rig.clock.set(rig.clock.now() + 40)
        if failures:
            raise failures.pop()
        finish(*args)

    monkeypatch.setattr(store.alerts, "finish", finishing)

    async def scenario() -> None:
        stop = asyncio.Event()
        running = asyncio.create_task(rig.dispatcher.run(stop))
        await until(lambda: rig.one().status == "sent")
        stop.set()
        await running

    with caplog.at_level(logging.WARNING):
        run(scenario())
    assert receiver.requests == 1
    assert caplog.messages.count("notifications wait for the store: OSError") >= 1


def test_words_once_per_change(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(store, ops(), send=answering(*[DeliveryAnswer(False, retry=True, text="503")] * 3, DeliveryAnswer(True)))
    rig.put("g", 1)

    async def scenario() -> None:
        for _ in range(4):
            await rig.settle()
            rig.clock.set(T0 + 3600 + rig.clock.now() - T0)

    with caplog.at_level(logging.WARNING):
        run(scenario())
    assert caplog.messages == ["receiver ops: a notification was not delivered: 503", "receiver ops: delivered again"]


def repeated(key: str, seq: int, reason: str = "repeat") -> str:
    return to_json(replace(message(key, seq), reason=reason))


def numbers(receiver: Hook) -> list[str]:
    return [body["alerts"][0]["labels"]["n"] for body in receiver.bodies]


def test_repetitions_that_waited_for_a_receiver_collapse_into_the_newest(store: Store, receiver: Hook) -> None:
    rig = Rig(store, ops(receiver.url))
    receiver.status = 503
    rig.put("g", 1, payload=repeated("g", 1, "firing"))
    run(rig.settle())
    for seq in (2, 3, 4):
        rig.put("g", seq, payload=repeated("g", seq))
    rig.put("other", 5, payload=repeated("other", 5))
    receiver.bodies.clear()
    receiver.status = 200
    rig.clock.set(T0 + 600)
    run(rig.settle())
    assert sorted(numbers(receiver)) == ["1", "4", "5"]
    statuses = {seq: row.status for (_, seq), row in rig.rows().items()}
    assert statuses == {1: "sent", 2: "superseded", 3: "superseded", 4: "sent", 5: "sent"}


def test_a_silence_stops_what_waits_to_be_tried_again(store: Store, receiver: Hook) -> None:
    rig = Rig(store, ops(receiver.url))
    receiver.status = 503
    both = message("g", 1)
    other = replace(both.alerts[0], labels={"alertname": "B"}, fingerprint="bb")
    rig.put("g", 1)
    rig.put("h", 2, payload=to_json(replace(both, group_key="h", alerts=(*both.alerts, other))))
    ended = replace(both.alerts[0], status="resolved", ends_at=T0)
    rig.put("i", 3, payload=to_json(replace(both, group_key="i", status="resolved", alerts=(ended,))))
    run(rig.settle())
    store.alerts.put_silence(Silence("s", (Matcher("alertname", "=", "A"),), T0, T0 + 3600, "me", "known", T0))
    receiver.bodies.clear()
    receiver.status = 200
    rig.clock.set(T0 + 600)
    run(rig.settle())
    sent = {body["groupKey"]: [alert["labels"]["alertname"] for alert in body["alerts"]] for body in receiver.bodies}
    assert sent == {"h": ["B"], "i": ["A"]}
    rows = {key: (row.status, row.answer) for (key, _), row in rig.rows().items()}
    assert rows["g"][0] == "superseded" and rows["g"][1].startswith("silenced by me until ")
    assert (rows["h"][0], rows["i"][0]) == ("sent", "sent")


def test_a_silence_keeps_nothing_from_a_receiver_that_resolves_what_is_missing(store: Store, receiver: Hook) -> None:
    rig = Rig(store, ops(receiver.url, kind="alertmanager"))
    store.alerts.put_silence(Silence("s", (Matcher("alertname", "=", "A"),), T0, T0 + 3600, "me", "known", T0))
    rig.put("g", 1)
    run(rig.settle())
    assert rig.one().status == "sent"


def test_the_logger_is_below_rollscope() -> None:
    """`--verbose` sets the level of this name."""
    assert dispatch.log.name == "rollscope.alerts"
