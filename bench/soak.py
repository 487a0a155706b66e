"""A long run on a simulated clock, with faults: is anything lost, and do memory, files and latencies stay flat?

    python -m bench.soak [--seconds 300] [--database sqlite|postgres] [--engines 50]

One run with engines, pushed rollouts and sandboxes, pushed trainer steps, ten viewers of the HTTP API, packing, and
retention of hours instead of days. Event time advances by the 5 s grid as fast as the steps return, for `--seconds` of
wall time: an hour is about five days on SQLite. Every hour of event time there is a fault, each in turn: the collecting
part dies between two steps and is recovered from the store, the file must not grow (SQLite; rows may still fit into its
free pages) or every connection is ended (PostgreSQL), a fifth of the engines is down, and the clock jumps an hour
ahead. Clients repeat what is not acknowledged. Figures as JSON lines; exit code 1 if a row is lost or counted twice, or
if a figure of the last quarter is above that of the third by more than its allowance.
"""

import argparse
import asyncio
import itertools
import json
import logging
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import httpx
from fastapi import FastAPI
from sqlalchemy import text

import collectors
from collectors.model import Collector, Limits, Reading, Sample, ScrapeError, State, Target
from server.api.app import create_api
from server.api.push import add_pushes
from server.api.rollouts import add_rollouts
from server.api.runs import add_sandboxes
from server.lib.clock import ScaledClock
from server.query import Reader
from server.runtime.self_metrics import process_numbers
from server.scrape.run_loop import LoopServices, RunLoop
from server.signals.model import TICK_SECONDS
from server.store import Store, StoreError, Writer, migrate
from server.store.retention import Retention
from server.targets.model import Attached
from tests import support_postgres

BEGIN = 1_800_000_000.0
RUN = "soak"
MINUTE_MS = 60_000
# Raw samples are packed when their hour ended 20 minutes ago.
RETENTION = Retention(
    raw=100 * MINUTE_MS, signals=60 * MINUTE_MS, rollups=120 * MINUTE_MS, records=60 * MINUTE_MS, max_bytes=None
)
# Steps of the grid between two faults, and how long each one lasts.
FAULT_EVERY = 720
FULL_STEPS = 12
DOWN_STEPS = 24
JUMP_SECONDS = 3600.0
VIEW_EVERY = 12
VIEWERS = 10
ROLLOUTS_A_STEP = 4
# Largest growth from the third to the last quarter. Times: the machine is shared. Sizes: pages fill up in steps.
ALLOWED = {"rss_mb": 1.10, "store_mb": 1.25, "tick_p95_ms": 1.5, "page_p95_ms": 1.5}


@dataclass(slots=True)
class World:
    """What the engines show and what the clients have pushed."""

    clock: ScaledClock
    down: bool = False
    pushed: dict[str, int] = field(default_factory=lambda: {"rollouts": 0, "sandboxes": 0})
    refused: int = 0

    async def poll(self, client: httpx.AsyncClient, state: State, limits: Limits) -> Reading:
        number = next(_TURNS) % 50
        if self.down and number % 5 == 0:
            raise ScrapeError("refused", "connection refused")
        age = self.clock.now() - BEGIN
        values = (("generator_requests_running", 8.0), ("generator_requests_waiting", float(number % 3)),
                  ("generator_tokens_total", 200.0 * age), ("kv_cache_usage_ratio", 0.5))  # fmt: skip
        return Reading(samples=tuple(Sample(name, value) for name, value in values), samples_scraped=4)


_TURNS = itertools.count()


class Server:
    """The API over the store, and the collecting part, which can die."""

    def __init__(self, store: Store, world: World, engines: int) -> None:
        self.store, self.world = store, world
        self.packed = 0
        self._targets = [
            Target(f"engine-{n}", RUN, "soak_engine", "generator", url=f"http://127.0.0.1:{n + 1}")
            for n in range(engines)
        ]
        self.writer = Writer(store, pause=lambda seconds: None)
        self.loop = self._made()
        reader = Reader(store, world.clock)
        api: FastAPI = create_api(reader, version="soak", ready=lambda: None)
        add_pushes(api, store, world.clock, lambda run: True)
        add_rollouts(api, reader, store, world.clock, lambda run: True)
        add_sandboxes(api, reader, store, world.clock)
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://soak")

    def _made(self) -> RunLoop:
        return RunLoop(
            Attached(RUN, tuple(self._targets)),
            LoopServices(self.store, self.writer, self.world.clock, limits=Limits()),
        )

    async def die(self) -> None:
        """Drops the collecting part between two steps, without letting it write, and recovers from the store."""
        self.loop.discard()
        await self.loop.close()
        self.loop = self._made()

    async def close(self) -> None:
        await self.client.aclose()
        await self.loop.close()
        self.writer.close()


@dataclass(slots=True)
class Backlog:
    """Requests of the clients that are not acknowledged yet, in order: [path, body, kind, records]."""

    waiting: list[tuple[str, str, str, int]] = field(default_factory=list)

    async def send(self, server: Server) -> None:
        while self.waiting:
            path, body, kind, count = self.waiting[0]
            answer = await server.client.post(path, content=body)
            if answer.status_code in (429, 503):
                server.world.refused += 1
                return
            answer.raise_for_status()
            self.waiting.pop(0)
            if kind:
                server.world.pushed[kind] += count


def bodies(step: int, now: float) -> Iterator[tuple[str, str, str, int]]:
    """Requests of one grid instant: rollouts, a sandbox with its later states, and a trainer step a minute."""
    rows = [
        {"rollout_id": f"r{step}-{n}", "group_id": f"g{step}", "group_size": ROLLOUTS_A_STEP, "reward": float(n % 2),
         "purpose": "train", "environment": "math", "dispatched_at": now - 30, "started_at": now - 29,
         "finished_at": now - 1, "version_start": 1, "version_finish": 1, "token_versions": [[1, 100]],
         "response_tokens": 100, "loss_tokens": 100, "scored_at": now - 1, "version_consumed": 2,
         "consumed_at": now - 0.5}
        for n in range(ROLLOUTS_A_STEP)
    ]  # fmt: skip
    yield f"/api/v1/runs/{RUN}/rollouts", "\n".join(map(json.dumps, rows)), "rollouts", len(rows)
    boxes = [{"id": f"s{step}", "requested_at": now - 3}, {"id": f"s{step - 2}", "ready_at": now - 5},
             {"id": f"s{step - 20}", "ended_at": now - 1}]  # fmt: skip
    known = boxes[: 1 + (step >= 2) + (step >= 20)]
    yield f"/api/v1/runs/{RUN}/sandboxes", "\n".join(map(json.dumps, known)), "sandboxes", 1
    if step % 12 == 0:
        values = "trainer_step_seconds 60\ntrainer_wait_seconds 20\ntrained_tokens 100000\n"
        yield f"/api/v1/write?run={RUN}&step={step // 12 + 1}", values, "", 0


@contextmanager
def full_disk(store: Store) -> Iterator[None]:
    """SQLite: no page can be added. PostgreSQL: every connection is ended once, which only costs a repetition."""
    with store._engines.writable().begin() as connection:
        if store.dialect == "sqlite":
            # Without it rows would go into pages that retention has freed.
            connection.connection.cursor().execute("PRAGMA incremental_vacuum").fetchall()
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")
        else:
            end = (
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> "
            )
            connection.execute(text(end + "pg_backend_pid()"))
    yield
    if store.dialect == "sqlite":
        with store._engines.writable().begin() as connection:
            connection.exec_driver_sql("PRAGMA max_page_count = 1073741823")


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * (len(values) - 1))] if values else 0.0


@dataclass(slots=True)
class Measured:
    """Values with their wall time since the start, by name."""

    rows: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, name: str, at: float, value: float) -> None:
        self.rows.setdefault(name, []).append((at, value))

    def quarter(self, name: str, number: int, whole: float) -> list[float]:
        return [value for at, value in self.rows.get(name, []) if number <= 4 * at / whole < number + 1]


class Faults:
    """Faults in turn; each ends at a step."""

    def __init__(self, server: Server) -> None:
        self._server, self._turns = server, itertools.cycle(("die", "full", "down", "jump"))
        self._held, self._ends = ExitStack(), 0

    async def at(self, step: int) -> float:
        """Ends the fault in progress or begins the next one; returns the seconds by which the clock jumps."""
        if step == self._ends:
            self.end()
        if step % FAULT_EVERY < FAULT_EVERY - 1:
            return 0.0
        fault = next(self._turns)
        if fault == "die":
            await self._server.die()
        elif fault == "full":
            self._held.enter_context(full_disk(self._server.store))
            self._ends = step + FULL_STEPS
        elif fault == "down":
            self._server.world.down, self._ends = True, step + DOWN_STEPS
        return JUMP_SECONDS if fault == "jump" else 0.0

    def end(self) -> None:
        self._held.close()
        self._server.world.down = False


async def advance(server: Server, now: float) -> float:
    """One step of the collecting part, as `RunLoop.live` does it; returns its duration in ms."""
    server.world.clock.set(now)
    begun = time.perf_counter()
    try:
        await server.loop.step(now, patient=True)
    except Exception as error:  # noqa: BLE001 - the next step recovers from the store
        if not isinstance(error, StoreError):
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        server.loop.fail()
    return 1000 * (time.perf_counter() - begun)


async def soak(server: Server, seconds: float) -> tuple[Measured, int]:
    """Runs for ``seconds`` of wall time; returns what was measured and the number of steps."""
    found, backlog, faults = Measured(), Backlog(), Faults(server)
    began, now, step = time.monotonic(), BEGIN, 0
    while (at := time.monotonic() - began) < seconds:
        now += TICK_SECONDS + await faults.at(step)
        server.world.clock.set(now - 2.0)
        backlog.waiting += bodies(step, now)
        await backlog.send(server)
        found.add("tick_ms", at, await advance(server, now))
        if step % VIEW_EVERY == 0:
            await view(server, found, at, now)
        step += 1
    # Clients continue until everything is acknowledged and counted.
    faults.end()
    for _ in range(4):
        now += TICK_SECONDS
        await backlog.send(server)
        await advance(server, now)
    assert not backlog.waiting
    return found, step


async def view(server: Server, found: Measured, at: float, now: float) -> None:
    """A page of each viewer, retention, packing, and the sizes."""
    signal = 'generator_requests_now{state="running"}'
    pages: tuple[tuple[str, dict[str, Any]], ...] = (
        (f"/api/v1/runs/{RUN}/status", {}), ("/metrics", {}),
        (f"/api/v1/runs/{RUN}/series", {"signal": signal, "start": now - 1800, "end": now}),
        (f"/api/v1/runs/{RUN}/rollouts", {"limit": 100}),
    )  # fmt: skip
    for path, query in itertools.islice(itertools.cycle(pages), VIEWERS):
        begun = time.perf_counter()
        answer = await server.client.get(path, params=query)
        answer.raise_for_status()
        found.add("page_ms", at, 1000 * (time.perf_counter() - begun))
    try:
        for _ in range(50):
            if server.store.retention.step(RETENTION, round(now * 1000)):
                continue
            if not server.store.chunks.step():
                break
            server.packed += 1
    except StoreError:
        pass  # the disk is full: the next period tries again
    found.add("rss_mb", at, (process_numbers().resident_bytes or 0) / 1e6)
    found.add("store_mb", at, server.store.retention.size().bytes / 1e6)


def counted(server: Server) -> dict[str, float]:
    """What Rollscope's own counters say was pushed."""
    found = Reader(server.store, server.world.clock).status(RUN).signals.values()
    rollouts = sum(one.value or 0.0 for one in found if one.signal == "rollouts_total")
    sandboxes = sum(one.value or 0.0 for one in found if one.signal == "sandboxes_created_total")
    return {"rollouts": rollouts, "sandboxes": sandboxes}


def report(server: Server, found: Measured, steps: int, seconds: float) -> bool:
    """Prints the figures; True if all hold."""
    world, counts = server.world, counted(server)
    lost = {name: world.pushed[name] - counts[name] for name in counts}
    hours = (world.clock.now() - BEGIN) / 3600
    print(json.dumps({"steps": steps, "event_hours": round(hours, 1), "acknowledged": world.pushed,
                      "counted": counts, "lost_or_doubled": lost, "refused_requests": world.refused,
                      "blocks_packed": server.packed}))  # fmt: skip
    fine = not any(lost.values())
    for name, of, calculate in (("rss_mb", "rss_mb", mean), ("store_mb", "store_mb", mean),
                                ("tick_p95_ms", "tick_ms", p95), ("page_p95_ms", "page_ms", p95)):  # fmt: skip
        third, last = (found.quarter(of, number, seconds) for number in (2, 3))
        before, after = calculate(third or [0.0]), calculate(last or [0.0])
        flat = after <= before * ALLOWED[name]
        print(json.dumps({"figure": name, "third_quarter": round(before, 1), "last_quarter": round(after, 1),
                          "allowed_factor": ALLOWED[name], "flat": flat}))  # fmt: skip
        fine = fine and flat
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0, help="wall time (default: an hour)")
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--engines", type=int, default=50)
    given = parser.parse_args()
    world = World(ScaledClock(BEGIN))
    logging.getLogger("rollscope").setLevel(logging.ERROR)
    known = {**collectors.load(), "soak_engine": Collector("soak_engine", "generator", "", "", poll=world.poll)}
    collectors.load = lambda: known
    with ExitStack() as held:
        if given.database == "postgres":
            url = held.enter_context(support_postgres.database(held.enter_context(support_postgres.server())))
        else:
            url = f"sqlite:///{Path(held.enter_context(tempfile.TemporaryDirectory()))}/soak.db"
        migrate(url)
        with closing(Store.open(url)) as store:

            async def run() -> bool:
                server = Server(store, world, given.engines)
                try:
                    found, steps = await soak(server, given.seconds)
                    return report(server, found, steps, given.seconds)
                finally:
                    await server.close()

            return 0 if asyncio.run(run()) else 1


if __name__ == "__main__":
    sys.exit(main())
