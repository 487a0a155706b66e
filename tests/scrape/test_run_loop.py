"""One run's loop: one broken target never hurts another, whatever it does."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

import collectors
from collectors.model import Collector, Cursor, Limits, Reading, Sample, State, Target
from server.ingest.readings import Ingest
from server.lib.clock import ScaledClock
from server.query import Reader
from server.scrape.run_loop import LoopServices, RunLoop
from server.scrape.target_reader import TargetReader
from server.store import Store, Writer
from server.store.types import SeriesKey
from server.targets.model import Attached

T0 = 1_800_000_000.0
FILE = Target("file", "run", "file", "trainer", path="/nowhere")
ENGINE = Target("engine", "run", "engine", "generator", url="http://x")
Tail = Callable[[Path, Cursor, Limits, float], Reading]


async def poll(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
    return Reading(samples=(Sample("generator_requests_running", 1.0),), samples_scraped=1)


def loop_with(monkeypatch: pytest.MonkeyPatch, store: Store, writer: Writer, clock: ScaledClock, tail: Tail) -> RunLoop:
    """A healthy engine beside a file that is read by `tail`."""
    known = dict(collectors.load())
    known["file"] = Collector("file", "trainer", "", "", tail=tail)
    known["engine"] = Collector("engine", "generator", "", "", poll=poll)
    monkeypatch.setattr("server.scrape.run_loop.collectors.load", lambda: known)
    return RunLoop(
        Attached("run", (FILE, ENGINE)), LoopServices(store, writer, clock, limits=Limits(timeout_seconds=0.2))
    )


def drive(loop: RunLoop, clock: ScaledClock, times: list[float], *, patient: bool = True) -> None:
    async def run() -> None:
        for t in times:
            clock.set(t)
            await loop.step(t, patient=patient)
        await loop.close()

    asyncio.run(run())


def running(store: Store) -> list[float]:
    """Times of the engine's points, seconds after T0."""
    series = store.series.find("run", SeriesKey("", "generator_requests_now", (("state", "running"),)))
    found = store.samples.points([series], 0, 1 << 60)[series] if series is not None else []
    return [ts / 1000 - T0 for ts, value, _ in found if value is not None]


def test_a_file_that_hangs_stops_only_itself(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """More attempts than any pool has threads: each of them leaves none behind."""
    release = threading.Event()

    def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
        release.wait()
        return Reading(cursor={})

    monkeypatch.setattr("server.scrape.target_reader.GUARD_SECONDS", 0.0)
    clock, writer = ScaledClock(T0), Writer(store)
    loop = loop_with(monkeypatch, store, writer, clock, tail)
    before = threading.active_count()
    drive(loop, clock, [T0 + 60 * n for n in range(12)])
    assert threading.active_count() <= before + 3
    release.set()
    writer.close()
    assert {60.0 * n for n in range(12)} <= set(running(store))
    trust = {target.target: target for target in Reader(store, clock).targets("run")}
    assert trust["engine"].up and "has not returned" in trust["file"].error


@pytest.mark.parametrize(
    "bad",
    [
        Sample("trainer_step_seconds", 1.0, ts=1e300, step=2, axis="trainer"),
        Sample("trainer_step_seconds", 1.0, ts=T0 * 1000, step=2, axis="trainer"),
        Sample("trainer_step_seconds", 1.0, ts=-1e18, step=2, axis="trainer"),
        Sample("trainer_step_seconds", 1.0, ts=T0, step=10**30, axis="trainer"),
        Sample("queue_samples", 1.0, ts=1e17),
    ],
    ids=["time-1e300", "milliseconds", "negative", "step-1e30", "gauge-1e17"],
)
def test_an_absurd_row_is_dropped_and_counted(store: Store, monkeypatch: pytest.MonkeyPatch, bad: Sample) -> None:
    def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
        good = Sample("trainer_step_seconds", 3.0, ts=T0, step=1, axis="trainer")
        return Reading() if cursor else Reading(samples=(good, bad), cursor={"at": 1})

    clock, writer = ScaledClock(T0), Writer(store)
    drive(loop_with(monkeypatch, store, writer, clock, tail), clock, [T0, T0 + 5])
    writer.close()
    trust = {target.target: target for target in Reader(store, clock).targets("run")}
    assert trust["file"].dropped == 1 and trust["file"].up
    assert [row.step for row in store.steps.newest("run")] == [1]
    assert running(store) == [0.0, 5.0]


def test_a_batch_the_store_refuses_hurts_no_neighbour(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Cursor] = []

    def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
        reads.append(cursor)
        return Reading(samples=(Sample("queue_samples", 1.0),), cursor={"at": 1})

    clock, writer = ScaledClock(T0), Writer(store)
    loop = loop_with(monkeypatch, store, writer, clock, tail)
    refuse = writer.submit

    def submit(batch, *, block=False):  # type: ignore[no-untyped-def]
        if "file" in batch.cursors:
            batch.run_fields["nonsense"] = 1  # what no transaction takes
        return refuse(batch, block=block)

    monkeypatch.setattr(writer, "submit", submit)
    drive(loop, clock, [T0 + 5 * n for n in range(4)])
    writer.close()
    assert running(store) == [0.0, 5.0, 10.0, 15.0]
    assert all(cursor == {} for cursor in reads) and len(reads) >= 2, "the cursor stays where it was"
    assert "did not accept it" in {t.target: t.error for t in Reader(store, clock).targets("run")}.get("file", "")


def test_a_chunk_without_a_sample_is_read_over(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """8 MB of log lines that say nothing to us, and more to come."""

    def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
        n = int(cursor.get("n", 0))
        samples = () if n == 0 else (Sample("queue_samples", 1.0, ts=T0 - 100 + n),)
        return Reading(samples=samples, cursor={"n": n + 1}, more=n < 3, facts={"mode": "async"})

    clock, writer = ScaledClock(T0), Writer(store)
    drive(loop_with(monkeypatch, store, writer, clock, tail), clock, [T0])
    writer.close()
    assert len(next(iter(store.samples.window("run", ["queue_samples"], 0)))[2]) == 3


def test_a_clock_that_goes_back_does_not_stop_the_scrapes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    polls: list[float] = []

    def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
        polls.append(now)
        return Reading(cursor={})

    clock, writer = ScaledClock(T0), Writer(store)
    back = [T0 - 3600 + 5 * n for n in range(5)]
    drive(loop_with(monkeypatch, store, writer, clock, tail), clock, [T0, *back])
    writer.close()
    assert polls == [T0, *back]


def test_history_in_chunks_with_one_restart_has_one_restart(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer's chunk passes the restart while the orchestrator's is still before it."""

    def rows(axis: str, first: int, last: int, start: float) -> list[Sample]:
        return [Sample("reward_mean", 1.0, ts=start + n, step=n, axis=axis) for n in range(first, last)]

    chunks = [
        rows("trainer", 0, 60, T0) + rows("trainer", 40, 50, T0 + 100) + rows("orchestrator", 0, 30, T0),
        rows("trainer", 50, 90, T0 + 100) + rows("orchestrator", 30, 60, T0),
        rows("orchestrator", 40, 90, T0 + 100),
    ]

    def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
        n = int(cursor.get("n", 0))
        samples = tuple(chunks[n]) if n < len(chunks) else ()
        return Reading(samples=samples, cursor={"n": n + 1}, more=n + 1 < len(chunks))

    clock, writer = ScaledClock(T0 + 500), Writer(store)
    drive(loop_with(monkeypatch, store, writer, clock, tail), clock, [T0 + 500])
    writer.close()
    assert [event.kind for _, event in store.runs.events("run", 0, 1 << 60)] == ["restart"]
    for axis in ("trainer", "orchestrator"):
        assert [row.step for row in store.steps.newest("run", axis=axis, incarnation=0)] == list(range(60))
        assert [row.step for row in store.steps.newest("run", axis=axis, incarnation=1)] == list(range(40, 90))


def test_a_listing_that_never_ends_holds_nobody_up(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked once a tick, beside a file with history to read; what is derived goes on to now."""
    polls: list[float] = []

    async def listing(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
        polls.append(clock.now())
        return Reading(more=True, partial="listing incomplete: 100 so far", samples_scraped=100)

    def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
        n = int(cursor.get("n", 0))
        return Reading(samples=(Sample("queue_samples", 1.0, ts=T0 - 100 + n),), cursor={"n": n + 1}, more=n < 3)

    clock, writer = ScaledClock(T0), Writer(store)
    loop = loop_with(monkeypatch, store, writer, clock, tail)
    account = Target("account", "run", "account", "sandbox", url="http://x", interval_seconds=30.0)
    loop.readers.append(TargetReader(account, Collector("account", "sandbox", "", "", poll=listing)))
    drive(loop, clock, [T0 + 5 * n for n in range(4)])
    writer.close()
    assert polls == [T0, T0 + 5, T0 + 10, T0 + 15]
    assert running(store) == [0.0, 5.0, 10.0, 15.0]
    trust = {target.target: (target.up, target.error) for target in Reader(store, clock).targets("run")}
    assert trust["account"] == (True, "listing incomplete: 100 so far")


def test_everything_that_is_missing_from_an_answer_is_told(store: Store) -> None:
    account = Target("account", "run", "account", "sandbox", url="http://x")
    reading = Reading(
        dropped=2, why_dropped="a pod without a uid", partial="listing incomplete: 2 rows could not be read",
        gaps=("wallet: HTTP 403", "whoami: HTTP 404"),
    )  # fmt: skip
    batch, _ = Ingest(store, "run", T0).reading(account, reading, T0, 0.1)
    assert [(row.up, row.dropped, row.error) for row in batch.targets] == [
        (True, 2, "dropped 2: a pod without a uid; listing incomplete: 2 rows could not be read; wallet: HTTP 403; "
         "whoami: HTTP 404"),
    ]  # fmt: skip


def test_who_answers_after_its_tick_is_asked_again_in_the_next(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fleet too large for one tick: nobody's next scrape is missed for it."""
    asked: list[float] = []

    async def run() -> None:
        answered = asyncio.Event()

        async def late(client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
            asked.append(state["now"] - T0)
            await answered.wait()
            return Reading(samples=(Sample("generator_requests_running", 1.0),))

        clock, writer = ScaledClock(T0), Writer(store)
        monkeypatch.setattr("server.scrape.run_loop.PATIENCE_SECONDS", 0.0)
        loop = loop_with(monkeypatch, store, writer, clock, lambda *_: Reading(cursor={}))
        (reader,) = loop.readers = [one for one in loop.readers if one.target is ENGINE]
        reader.collector = Collector("engine", "generator", "", "", poll=late)
        await loop.step(T0)
        answered.set()
        await asyncio.wait(loop._pending.values())
        await loop.step(T0 + 5)
        await loop.close()
        writer.close()

    asyncio.run(run())
    assert asked == [0.0, 5.0]


def test_a_large_fleet_begins_in_parts(store: Store) -> None:
    clock, writer = ScaledClock(T0), Writer(store)
    fleet = [Target(f"e{n}", "run", "vllm", "generator", url="http://x") for n in range(250)]
    due = [reader.due for reader in RunLoop(Attached("run", tuple(fleet)), LoopServices(store, writer, clock)).readers]
    writer.close()
    assert due[:100] == [0.0] * 100 and due[100:] == [T0 + 5] * 100 + [T0 + 10] * 50
