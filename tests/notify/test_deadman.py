"""The ping against a real server: it comes while we are healthy, and says nothing of its URL when it does not."""

import asyncio
import logging

import pytest

from server.alerts.dispatch import DeadMan, MonotonicClock
from server.lib.secret import Secret
from tests.notify.support import Reply, Server, serving


class StepClock:
    """Time that passes when it is waited for; the test ends after so many waits."""

    def __init__(self, waits: int) -> None:
        self.t, self.left, self.waited = 1000.0, waits, list[float]()

    def now(self) -> float:
        return self.t

    async def wait(self, stop: asyncio.Event, seconds: float) -> None:
        self.waited.append(seconds)
        self.t += seconds
        self.left -= 1
        if self.left == 0:
            stop.set()


def switch(server: Server, troubles: list[str | None]) -> tuple[DeadMan, StepClock]:
    """A switch that finds these states of health, one per ping, and stops after the last."""
    clock, states = StepClock(len(troubles)), iter(troubles)
    url = Secret(f"http://127.0.0.1:{server.port}/ping/s3cret-uuid")
    return DeadMan(url, 60.0, lambda: next(states), clock=clock), clock


def run(switch: DeadMan) -> None:
    asyncio.run(switch.run(asyncio.Event()))


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "rollscope.alerts"]


def test_one_get_per_interval_while_healthy(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serving() as server:
        deadman, clock = switch(server, [None, None, None])
        run(deadman)
        got = [server.next() for _ in range(3)]
        assert server.got.empty()
    assert [(one.method, one.path, one.body) for one in got] == [("GET", "/ping/s3cret-uuid", b"")] * 3
    assert clock.waited == [60.0, 60.0, 60.0]
    assert lines(caplog) == [] and "s3cret" not in caplog.text


def test_no_ping_while_unhealthy_and_one_line_each_way(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with serving() as server:
        deadman, _ = switch(server, [None, "the store takes no writes", "the store takes no writes", None, None])
        run(deadman)
        assert server.got.qsize() == 3
    assert lines(caplog) == [
        ("WARNING", "dead-man ping withheld: the store takes no writes"),
        ("INFO", "dead-man ping works again"),
    ]


def test_a_failing_ping_is_logged_once_without_its_url(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    replies = iter([Reply(500, b"down /ping/s3cret-uuid"), Reply(500), Reply(200), Reply(404)])
    with serving(lambda _: next(replies)) as server:
        deadman, _ = switch(server, [None] * 4)
        run(deadman)
        assert server.got.qsize() == 4
    assert lines(caplog) == [
        ("WARNING", "dead-man ping failed: HTTP 500: down ***"),
        ("INFO", "dead-man ping works again"),
        ("WARNING", "dead-man ping failed: HTTP 404: ok"),
    ]
    assert "s3cret" not in caplog.text and "s3cret" not in repr(deadman)


def test_a_slow_ping_does_not_shift_the_later_ones() -> None:
    with serving() as server:
        deadman, clock = switch(server, [None, None, None])

        def slow(_: object) -> Reply:
            clock.t += {0: 10.0, 1: 150.0, 2: 0.0}[len(clock.waited)]
            return Reply()

        server.behave = slow
        run(deadman)
    # 10 s late: 50 s to the next; 150 s late: at once, and the missed two are not made up for.
    assert clock.waited == [50.0, 0.0, 60.0]


def test_stopping_ends_the_wait_at_once() -> None:
    async def stopped() -> None:
        stop = asyncio.Event()
        waiting = asyncio.create_task(MonotonicClock().wait(stop, 3600.0))
        stop.set()
        await asyncio.wait_for(waiting, 10.0)

    asyncio.run(stopped())
