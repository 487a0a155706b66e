"""Drives a demo scenario from outside without a wall clock, and takes a snapshot in each situation of a run's life."""

import asyncio
import shutil
import sqlite3
import tempfile
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from fastapi.testclient import TestClient

from bench.real_runs.play import PATIENT
from demo.process import Demo
from demo.scenarios import SCENARIOS
from server.api.alerts import add_alerts
from server.api.app import create_api
from server.api.rollouts import add_rollouts
from server.api.runs import add_engines, add_sandboxes, add_what_if
from server.cli.demo import HISTORY_SECONDS, RECORDS_SECONDS
from server.config.alerts import defaults
from server.ingest.arrivals import Arrivals
from server.lib.clock import ScaledClock
from server.query import Reader
from server.query.run_state import NOT_COLLECTED_SECONDS, UNANSWERED_SECONDS
from server.query.verdicts import STALE_SECONDS as VERDICT_SECONDS
from server.scrape.run_loop import LoopServices, RunLoop
from server.store import Store, Writer, migrate
from server.targets.model import Attached
from server.targets.resolve import attach
from tests.contradictions.snapshot import Snapshot, take
from tests.demo.watched import START, Posted, Same

MOMENTS = ("catching up", "no pushes", "live", "not collected", "stale", "finished")
# Seconds between two reads: a mean of 5 minutes then has 20 instants.
EVERY = 15.0
# While the run catches up, the collector heads for a present that is this far ahead.
BEHIND_SECONDS = 1_800.0
# A run is stale this long after its last target answered, at the latest.
STALE_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Length:
    """How long a scenario is driven.

    Attributes:
        history_seconds: simulated time before the live phase.
        attached_seconds: the collector is attached this long before the live phase.
        pushed_seconds: records are pushed for this long before the live snapshot.
        moments: of `MOMENTS`, the situations of which a snapshot is taken; the run ends with the last one.
    """

    history_seconds: float
    attached_seconds: float
    pushed_seconds: float
    moments: tuple[str, ...]


# The demo's first hour. Each window of 5 minutes is full at its end.
WHOLE = Length(HISTORY_SECONDS, 300.0, 120.0, MOMENTS)
# 2 to 4 s of CPU: most of the time of a whole run is simulating and reading the first hour.
BRIEF = Length(300.0, 75.0, 30.0, ("catching up", "live"))
# Steps of minutes: a chart needs more than the first of them.
BRIEF_LONG_STEPS = replace(BRIEF, history_seconds=420.0)
BRIEF_ALL_MOMENTS = replace(BRIEF, moments=MOMENTS)


@dataclass(frozen=True, slots=True)
class Stored:
    """A copy of the store at the live moment; ``now``: epoch seconds. The folder is removed with the process."""

    folder: tempfile.TemporaryDirectory[str]
    run: str
    now: float

    @property
    def url(self) -> str:
        return f"sqlite:///{self.folder.name}/store.db"


LIVE: dict[tuple[str, Length], Stored] = {}
"""(scenario, length) -> its store at the live moment, once `moments` drove it."""


@lru_cache(maxsize=2 * len(SCENARIOS))
def moments(scenario: str, length: Length = WHOLE) -> tuple[Snapshot, ...]:
    """The snapshots of a scenario, in the order of `Length.moments`."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/store.db"
        migrate(url)
        with closing(Store.open(url)) as store, closing(Writer(store)) as writer:
            drive = _Drive(scenario, length, store, writer, Path(folder) / "demo")
            # In a thread of its own: a test with a browser has an event loop in this one.
            with ThreadPoolExecutor(1) as own:
                return own.submit(asyncio.run, drive.run()).result()


class _Drive:
    """One scenario, its collector and its readers, on a clock that only `step` moves."""

    def __init__(self, scenario: str, length: Length, store: Store, writer: Writer, folder: Path) -> None:
        self.scenario, self.length, self.folder = scenario, length, folder
        self.database = folder.parent / "store.db"
        self.live = START + length.history_seconds
        self.t, self.behind = self.live - length.attached_seconds, 0.0
        self.demo = Demo(scenario, 1, folder, START, self.live - RECORDS_SECONDS)
        self.demo.advance(self.t)
        self.clock, alerts = ScaledClock(self.t), defaults()
        run = attach(Same(self.demo).settings())
        self.name, self.reader = run.name, Reader(store, self.clock, alerts)
        self.loop = RunLoop(
            Attached(run.name, run.targets, run.facts), LoopServices(store, writer, self.clock, alerts, limits=PATIENT)
        )
        api = create_api(self.reader, version="test", ready=lambda: None)
        add_alerts(api, self.reader, store, self.clock, lambda token: False)
        add_sandboxes(api, self.reader, store, self.clock)
        add_rollouts(api, self.reader, store, self.clock)
        add_what_if(api, self.reader)
        add_engines(api, self.reader)
        self.api = api

    async def run(self) -> tuple[Snapshot, ...]:
        found: list[Snapshot] = []
        with TestClient(self.api, base_url="http://127.0.0.1") as client:
            try:
                async for moment in self._moments(client):
                    if moment in self.length.moments:
                        found.append(take(self.scenario, moment, self.reader, client, self.name))
                    if moment == self.length.moments[-1]:
                        break
                return tuple(found)
            finally:
                await self.loop.close()
                self.demo.close()

    async def _moments(self, client: TestClient) -> AsyncIterator[str]:
        """Yields the name of each situation when the run is in it."""
        # A collector that works off history: its present is ahead of what it has derived.
        self.behind = BEHIND_SECONDS
        await self._until(self.t + 4 * EVERY)
        yield "catching up"
        self.behind = 0.0
        await self._until(self.live)
        yield "no pushes"
        if self.demo.instrument is not None:
            self.demo.poster = Posted(client, self.name)
            self.demo.go_live()
        await self._until(self.live + self.length.pushed_seconds)
        self._keep()
        yield "live"
        self.clock.set(self.t + NOT_COLLECTED_SECONDS + EVERY)
        yield "not collected"
        # The cluster is gone: no engine answers, and its files cannot be read.
        self.demo.close()
        shutil.rmtree(self.folder)
        self.t += NOT_COLLECTED_SECONDS + EVERY
        while not self._is_stale():
            assert self.t < self.live + self.length.pushed_seconds + STALE_SECONDS, self.reader.status(self.name).state
            self.t += UNANSWERED_SECONDS
            self.clock.set(self.t)
            await self.loop.step(self.t, patient=True, present=self.t + self.behind)
        yield "stale"
        # What a collector reports when the trainer's log ends.
        self.loop.pipeline.driver.feed(Arrivals(facts={"lifecycle": "finished"}))
        for _ in range(2):
            self.t += EVERY
            self.clock.set(self.t)
            await self.loop.step(self.t, patient=True, present=self.t + self.behind)
        yield "finished"

    def _keep(self) -> None:
        stored = LIVE[self.scenario, self.length] = Stored(tempfile.TemporaryDirectory(), self.name, self.t)
        with closing(sqlite3.connect(self.database)) as database:
            database.execute("VACUUM INTO ?", (f"{stored.folder.name}/store.db",))

    async def _until(self, end: float) -> None:
        while self.t < end:
            self.t += EVERY
            self.demo.advance(self.t)
            self.clock.set(self.t)
            await self.loop.step(self.t, patient=True, present=self.t + self.behind)

    def _is_stale(self) -> bool:
        """Whether data is missing for so long that the verdict is withheld."""
        state = self.reader.status(self.name).state
        return state.name == "stale" and state.since is not None and self.t - state.since > VERDICT_SECONDS
