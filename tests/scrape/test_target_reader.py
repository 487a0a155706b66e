"""One target's reader: back-off, guards, and what is logged."""

import asyncio
import logging
import threading
from pathlib import Path

import httpx
import pytest
from msgspec import structs

from collectors.model import Collector, Cursor, Limits, Reading, ScrapeError, State, Target
from server.scrape.target_reader import TargetReader

TARGET = Target("t", "run", "x", "generator", url="http://127.0.0.1:9", interval_seconds=5.0)
FILE = Target("t", "run", "x", "trainer", path="/nowhere", interval_seconds=5.0)
FAST = Limits(timeout_seconds=0.05)


def collector(poll: object = None, tail: object = None) -> Collector:
    return Collector("x", "generator", "a test", "none", poll=poll, tail=tail)  # type: ignore[arg-type]


async def refuse(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    raise ScrapeError("unreachable", "no answer")


def once(reader: TargetReader, now: float) -> None:
    reader.committed(asyncio.run(reader.read(now)))


def test_a_dead_target_is_asked_every_10_seconds_for_two_minutes_then_every_60() -> None:
    reader = TargetReader(TARGET, collector(refuse))
    waits, now = [], 1000.0
    while now < 1000.0 + 600:
        once(reader, now)
        waits.append((now - 1000.0, reader.due - now))
        now = reader.due
    assert waits[0][1] == 5.0
    early = [wait for age, wait in waits[1:] if age < 120]
    late = [wait for age, wait in waits if age >= 120]
    assert all(8.0 <= wait <= 12.0 for wait in early), "an engine that restarts in 40 s must not look dead for a minute"
    assert len(late) >= 6 and all(48.0 <= wait <= 72.0 for wait in late)
    assert len(set(late)) > 1, "jittered, so that a fleet that died together is not asked together"


def test_one_success_ends_the_back_off(caplog: pytest.LogCaptureFixture) -> None:
    answers = [True, True, False, False]

    async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
        if answers.pop(0):
            raise ScrapeError("timeout", "no answer")
        return Reading()

    reader = TargetReader(TARGET, collector(poll))
    with caplog.at_level(logging.INFO, logger="rollscope"):
        for now in (0.0, 10.0, 20.0, 30.0):
            once(reader, now)
    assert (reader.failures, reader.due) == (0, 35.0)
    assert [record.getMessage() for record in caplog.records] == [
        "target t cannot be read: no answer",
        "target t is up again",
    ]


def test_a_collectors_bug_is_an_error_of_its_target() -> None:
    async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
        raise KeyError("secret=hunter2")

    outcome = asyncio.run(TargetReader(TARGET, collector(poll)).read(0.0))
    assert outcome.error is not None and str(outcome.error) == "internal error in collector x: KeyError"


def test_a_verb_that_forgets_its_limit_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
        await asyncio.Event().wait()
        return Reading()

    monkeypatch.setattr("server.scrape.target_reader.GUARD_SECONDS", 0.0)
    outcome = asyncio.run(TargetReader(TARGET, collector(poll), limits=FAST).read(0.0))
    assert outcome.error is not None and outcome.error.kind == "timeout"


def test_rows_that_came_too_late_are_taken_by_the_next_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine so slow that every read passes its limit must get on all the same: no row is read twice."""
    may_return, begun = threading.Event(), []

    def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
        begun.append(cursor)
        may_return.wait()
        return Reading(cursor={"at": len(begun)})

    monkeypatch.setattr("server.scrape.target_reader.GUARD_SECONDS", 0.0)
    reader = TargetReader(FILE, collector(tail=tail), limits=FAST)
    for _ in range(2):
        late = asyncio.run(reader.read(0.0))
        reader.committed(late)
        assert late.error is not None and late.error.kind == "timeout"
    (reading,) = (thread for thread in threading.enumerate() if thread.name == "tail t")
    may_return.set()
    reading.join()
    reader.limits = Limits()
    for _ in range(2):
        once(reader, 10.0)
    assert (begun, reader.cursor, reader.failures) == ([{}, {"at": 1}], {"at": 2}, 0)


def test_files_are_read_off_the_event_loop() -> None:
    """A hung file system (NFS) must hold up its own target only."""
    threads: list[str] = []

    def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
        threads.append(threading.current_thread().name)
        return Reading(cursor={"at": 1})

    reader = TargetReader(FILE, collector(tail=tail))
    once(reader, 0.0)
    assert threads[0] != threading.main_thread().name and reader.cursor == {"at": 1}


def test_the_cursor_moves_only_when_the_rows_are_committed() -> None:
    def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
        return Reading(cursor={"at": cursor.get("at", 0) + 1}, more=True)

    reader = TargetReader(FILE, collector(tail=tail))
    outcome = asyncio.run(reader.read(7.0))
    assert reader.cursor == {}
    reader.committed(outcome)
    assert reader.cursor == {"at": 1} and reader.due == 7.0, "more to read: again at once"


@pytest.mark.parametrize(("interval", "due"), [(30.0, 12.0), (2.0, 9.0)])
def test_a_listing_that_goes_on_is_asked_for_again_soon_and_holds_nothing_back(interval: float, due: float) -> None:
    async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
        return Reading(more=True)

    reader = TargetReader(structs.replace(TARGET, interval_seconds=interval), collector(poll))
    once(reader, 7.0)
    assert (reader.due, reader.lagging) == (due, False)
