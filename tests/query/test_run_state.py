"""The state of a run: the rules by hand, and the same state at every exit of a real store."""

import asyncio
import math
from pathlib import Path

import httpx
import msgspec
import pytest

import collectors
from collectors.model import Collector, Cursor, Limits, Reading, Sample, Target
from server.api import metrics as api_metrics
from server.api.app import create_api
from server.cli.status import text as status_text
from server.lib import clock as lib_clock
from server.lib.clock import CatchUp, CatchUpClock, ScaledClock
from server.query import Reader
from server.query.run_state import Facts, RunState, run_state
from server.scrape.run_loop import LoopServices, RunLoop
from server.store import Store, Writer
from server.targets.model import Attached

T0 = 1_800_000_000.0
NOW = T0 + 3600


def facts(**changes: object) -> Facts:
    """A healthy run: collected 3 s ago, its newest value 4 s old, two targets answer."""
    base: dict[str, object] = {
        "now": NOW, "lifecycle": "running", "collected_at": NOW - 3, "catch_up": None, "newest": NOW - 4,
        "patience": 1800.0, "targets": 2, "up": 2, "answered_at": NOW - 3,
    }  # fmt: skip
    return Facts(**{**base, **changes})  # type: ignore[arg-type]


# A quarter of the way from T0 to now, after 12 s.
QUARTER = CatchUp(T0, T0 + 900, NOW, 12.0)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, RunState("live", None, NOW - 4)),
        ({"lifecycle": "starting"}, RunState("live", None, NOW - 4)),
        # A collector that missed four steps is gone; its last stamp says since when.
        ({"collected_at": NOW - 20}, RunState("live", None, NOW - 4)),
        ({"collected_at": NOW - 21}, RunState("not_collected", NOW - 21, NOW - 4)),
        ({"collected_at": None, "newest": None}, RunState("not_collected")),
        # One that died while it read history is gone all the same.
        ({"collected_at": NOW - 60, "catch_up": QUARTER}, RunState("not_collected", NOW - 60, NOW - 4)),
        ({"catch_up": QUARTER}, RunState("catching_up", T0, T0 + 900, 0.25, 36.0, NOW)),
        # Before the first tick there is no position; a hundredth of the way is too little for an estimate.
        ({"catch_up": CatchUp(None, None, NOW, 2.0)}, RunState("catching_up", target=NOW)),
        (
            {"catch_up": CatchUp(T0, T0 + 36, NOW, 2.0)},
            RunState("catching_up", T0, T0 + 36, 0.01, None, NOW),
        ),
        # What the collector counts and estimates goes before the positions.
        (
            {"catch_up": CatchUp(T0, T0 + 900, NOW, 12.0, 300, 1000, 41, 99.0)},
            RunState("catching_up", T0, T0 + 900, 0.3, 99.0, NOW, 300, 1000, 41),
        ),
        # No target answers, though steps of ten minutes ago still count as new.
        ({"up": 0, "answered_at": NOW - 30, "newest": NOW - 600}, RunState("live", None, NOW - 600)),
        ({"up": 0, "answered_at": NOW - 31, "newest": NOW - 600}, RunState("stale", NOW - 31, NOW - 600)),
        ({"up": 0, "answered_at": None, "newest": None}, RunState("stale")),
        # Targets answer and bring nothing new: an open step may take as long as steps do.
        ({"newest": NOW - 1800}, RunState("live", None, NOW - 1800)),
        ({"newest": NOW - 1801}, RunState("stale", NOW - 1801, NOW - 1801)),
        ({"newest": None, "targets": 0, "up": 0}, RunState("stale")),
        # A run that is over needs neither collector nor targets.
        (
            {"lifecycle": "finished", "collected_at": NOW - 9000, "up": 0, "newest": NOW - 9010},
            RunState("finished", NOW - 9010, NOW - 9010),
        ),
        ({"lifecycle": "crashed", "collected_at": None}, RunState("finished", NOW - 4, NOW - 4)),
    ],
)
def test_one_state(changes: dict[str, object], expected: RunState) -> None:
    assert run_state(facts(**changes)) == expected


def test_a_catch_up_is_measured_from_where_it_began() -> None:
    wall = 100.0
    clock = CatchUpClock(lambda: wall)
    assert clock.at(NOW - 60, NOW) is None
    assert clock.at(None, NOW) is None
    assert clock.at(None, NOW, reading=True) == CatchUp(None, None, NOW, 0.0)
    wall = 104.0
    assert clock.at(T0, NOW, reading=True) == CatchUp(T0, T0, NOW, 4.0)
    wall = 110.0
    found = clock.at(T0 + 900, NOW)
    assert found == CatchUp(T0, T0 + 900, NOW, 10.0)
    assert lib_clock.loads(lib_clock.dumps(found)) == found
    # At the present it ends; the next one begins anew.
    assert (clock.at(NOW - 5, NOW), lib_clock.loads(lib_clock.dumps(None))) == (None, None)
    wall = 200.0
    assert clock.at(NOW - 600, NOW) == CatchUp(NOW - 600, NOW - 600, NOW, 0.0)


# ---- through a collector and a store

HOURS = 3 * 3600.0
CHUNKS = 4


def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
    """Three hours of steps, one a minute, in four chunks; then nothing new."""
    at = int(cursor.get("chunk", 0))
    each = int(HOURS / 60 / CHUNKS)
    rows = range(at * each, (at + 1) * each) if at < CHUNKS else range(0)
    samples = [
        Sample(metric, value, ts=T0 + 60 * number, step=number, axis="trainer")
        for number in rows
        for metric, value in (("trainer_step_seconds", 60.0), ("trainer_wait_seconds", 12.0))
    ]
    ended = {"lifecycle": "finished"} if at >= CHUNKS - 1 and path.name == "over" else {}
    return Reading(
        samples=tuple(samples), cursor={"chunk": min(CHUNKS, at + 1)}, more=at < CHUNKS - 1,
        facts={"framework": "prime_rl", "mode": "async", **ended},
    )  # fmt: skip


class Watched:
    """A run whose loop is stepped by hand; `collect` steps it, `status` reads it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: Store, writer: Writer, path: str) -> None:
        known = {**collectors.load(), "file": Collector("file", "trainer", "", "", tail=tail)}
        monkeypatch.setattr("server.scrape.run_loop.collectors.load", lambda: known)
        self.clock = ScaledClock(T0 + HOURS)
        self.store, self.reader = store, Reader(store, self.clock)
        self.loop = RunLoop(
            Attached("run", (Target("file", "run", "file", "trainer", path=path),)),
            LoopServices(store, writer, self.clock),
        )

    async def until(self, t: float) -> None:
        """A tick that may not read further than its own time allows: one chunk of history a step."""
        self.clock.set(t)
        await self.loop.step(t)

    def exits(self) -> tuple[str, str, str, str]:
        """The state by each of its exits: status, list of runs, fleet, metrics."""
        api = create_api(self.reader, version="1", ready=lambda: None)

        async def get() -> httpx.Response:
            transport = httpx.ASGITransport(app=api)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.get("/api/v1/runs")

        [listed] = asyncio.run(get()).json()
        status, [row] = self.reader.status("run"), self.reader.runs.now()
        lines = api_metrics.render(self.reader, "1").decode().splitlines()
        series = "rollscope_run_data_state{"
        [found] = [line for line in lines if line.startswith(series) and line.endswith(" 1.0")]
        assert row.state == status.state
        return status.state.name, listed["state"]["name"], row.state.name, found.partition('state="')[2][:-6]


@pytest.fixture
def writer(store: Store):  # type: ignore[no-untyped-def]
    made = Writer(store)
    yield made
    made.close()


def test_every_exit_says_the_same(store: Store, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Watched(monkeypatch, store, writer, "/nowhere/log")
    # One read a step, as on a machine where each of them takes the whole of a tick.
    monkeypatch.setattr("server.scrape.run_loop.SHARE", -1.0)
    end = T0 + HOURS

    asyncio.run(run.until(end))
    # The first of four chunks ends with step 44: 2,640 of 10,800 s, with the hour-old grid of a minute.
    status = run.reader.status("run")
    assert run.exits() == ("catching_up",) * 4
    assert (status.state.as_of, status.state.target) == (T0 + 44 * 60, end)
    # A target that is read at times of the history is not down.
    assert [(target.up, target.error) for target in status.trust] == [(True, "")]
    # Nothing is said of now; the verdict at the position stands in `last`.
    assert status.verdict is not None
    assert (status.verdict.outcome, status.verdict.usd_per_hour) == ("unknown", None)
    assert status.verdict.last.as_of == T0 + 44 * 60
    wait = next(signal for signal in status.signals.values() if signal.signal == "trainer_wait_ratio")
    assert (wait.value, wait.age_seconds) == (pytest.approx(0.2), HOURS - 44 * 60)
    assert "rollscope_trainer_wait_ratio" not in api_metrics.render(run.reader, "1").decode()
    assert "state: catching up at " in status_text(msgspec.to_builtins(status))

    for tick in range(1, CHUNKS + 1):
        asyncio.run(run.until(end + 5 * tick))
    assert run.exits() == ("live",) * 4
    assert "rollscope_trainer_wait_ratio" in api_metrics.render(run.reader, "1").decode()
    state = run.reader.status("run").state
    assert (state.progress, state.as_of) == (None, T0 + 179 * 60)

    # Twenty minutes of an idle run, each step of it stamped, are no silence of the collector.
    for tick in range(CHUNKS + 1, 240, 20):
        asyncio.run(run.until(end + 5 * tick))
        assert run.exits() == ("live",) * 4
    last = run.clock.now()
    # The collector is gone.
    run.clock.set(last + 25)
    assert run.exits() == ("not_collected",) * 4
    status = run.reader.status("run")
    assert status.state.since == last
    [signal] = [signal for signal in status.signals.values() if signal.signal == "trainer_wait_ratio"]
    assert (signal.state, signal.value) == ("unknown", None)
    assert signal.why == "not collected for 25 s; the last value was 20%"
    assert [(one.up, one.error) for one in status.trust] == [
        (False, "not read for 25 s: no collector follows this run")
    ]
    [span] = run.reader.verdicts.spans("run", last - 600, last + 600)[-1:]
    assert span.end == last
    assert "state: not collected since " in status_text(msgspec.to_builtins(status))

    # Collected again, and the open step is by now older than any: 6 x 60 s is less than half an hour.
    asyncio.run(run.until(T0 + 179 * 60 + 1805))
    assert run.exits() == ("stale",) * 4
    assert run.reader.status("run").state.since == T0 + 179 * 60


def test_a_finished_run_needs_no_collector(store: Store, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Watched(monkeypatch, store, writer, "/nowhere/over")
    for tick in range(CHUNKS + 1):
        asyncio.run(run.until(T0 + HOURS + 5 * tick))
    assert run.exits() == ("finished",) * 4
    run.clock.set(T0 + HOURS + 9000)
    assert run.exits() == ("finished",) * 4
    assert "state: finished at " in status_text(msgspec.to_builtins(run.reader.status("run")))
    assert math.isclose(run.reader.status("run").state.since or 0, T0 + 179 * 60)
