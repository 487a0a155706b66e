"""Accuracy of the verdict on the demo's live scenarios. Exits 1 when one is wrong with confidence.

    python -m bench.verdict.demo_live [SCENARIO...] [--mode MODE]... [--seeds N] [--jobs N] [--minutes N] [--ticks]

The simulated cluster and the product step together, without a wall clock. The product is attached 20 minutes before
the end of the demo's first hour and goes on through the live minutes. A scenario whose orchestrator pushes records of
rollouts is judged in three modes: `pushes` (as `rollscope demo` does: records of what ended in the last 15 minutes of
history, of everything from the live phase on), `silent` (no record at all: pages, log and the provider's states) and
`late` (records begin five live minutes after the start, while the log goes on).
"""

import argparse
import asyncio
import gc
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fastapi.testclient import TestClient

from bench.real_runs.play import PATIENT
from bench.verdict.contradictions import Walker, report
from demo.process import Demo
from demo.scenarios import SCENARIOS
from server.api.app import create_api
from server.api.rollouts import add_rollouts
from server.cli.demo import HISTORY_SECONDS, RECORDS_SECONDS
from server.lib.clock import ScaledClock
from server.query import Reader
from server.query.types import Status
from server.scrape.run_loop import LoopServices, RunLoop
from server.signals.model import TICK_SECONDS
from server.store import Store, Writer, migrate
from server.targets.model import Attached
from server.targets.resolve import attach
from tests.demo.watched import START, Posted, Same

# The windows of all signals are full before the live phase begins.
ATTACHED_SECONDS = 1_200.0
LIVE_MINUTES = 12
# In mode `late` records begin here, so that both sides of the hand-over are judged.
LATE_SECONDS = 300.0
SEEDS = 2
PUSHES, SILENT, LATE = "pushes", "silent", "late"
MODES = (PUSHES, SILENT, LATE)
BELIEVED, CERTAIN = 0.5, 0.8
UNKNOWN = "unknown"

RIGHT: dict[str, tuple[str, ...]] = {
    "healthy": ("balanced",),
    "generator-bound": ("generator_bound",),
    "trainer-bound": ("trainer_bound",),
    "reward-bound": ("reward_bound",),
    "stalled": ("stalled",),
    "gb300-sandbox-wall": ("sandbox_bound",),
    "qwen3-235b-slime": ("generator_bound",),
    "math-sync-colocated": ("balanced",),
    # Limits of nearly the same size: tasks that are too easy, and rollouts that grow in engines which would run more:
    # 330 in flight of 1,354 that fit; twice as many, with as many more seats, make 1.44 times as much.
    "glm5-easy-curriculum": ("curriculum_bound", "generator_bound", "orchestrator_bound"),
}
"""Outcomes that are right of each scenario, as it was built."""


RIGHT_CAUSES: dict[str, tuple[str, ...]] = {
    # 128 sandboxes may start at once, 552 are queued, and 97 % of the quota is used: two of three rollouts boot.
    "gb300-sandbox-wall": ("spin_up", "starting_limit", "quota"),
}
"""Causes that are right, where the scenario has a single one."""


@dataclass(frozen=True, slots=True)
class Tick:
    """What the product stated. `at`: seconds since the live phase began, below zero in the history."""

    at: float
    outcome: str
    cause: str
    confidence: float
    summary: str


@dataclass(slots=True)
class Judged:
    """A scenario, and what the product stated of it."""

    scenario: str
    seed: int
    mode: str
    ticks: list[Tick] = field(default_factory=list)
    contradictions: dict[str, list[tuple[float, str]]] = field(default_factory=dict)
    cpu_seconds: float = 0.0

    @property
    def live(self) -> list[Tick]:
        return [tick for tick in self.ticks if tick.at > 0]

    def right(self, tick: Tick) -> bool:
        return tick.outcome in RIGHT[self.scenario]

    def wrong(self, confidence: float) -> list[Tick]:
        """Live ticks that are wrong with at least this confidence."""
        return [
            tick for tick in self.live
            if not self.right(tick) and tick.outcome != UNKNOWN and tick.confidence >= confidence
        ]  # fmt: skip

    def misnamed(self) -> list[Tick]:
        """Live ticks with the right outcome, and a wrong cause that is believed."""
        causes = RIGHT_CAUSES.get(self.scenario)
        return [
            tick for tick in self.live
            if causes and self.right(tick) and tick.cause not in causes and tick.confidence >= BELIEVED
        ]  # fmt: skip

    def minutes(self) -> Iterator[float]:
        """Share of right ticks of each live minute."""
        for minute in range(int(self.live[-1].at // 60)):
            ticks = [tick for tick in self.live if minute * 60 < tick.at <= minute * 60 + 60]
            yield sum(map(self.right, ticks)) / len(ticks)


def modes(scenario: str) -> tuple[str, ...]:
    """The modes that differ in a scenario: records are pushed where files do not contain the same data."""
    row = SCENARIOS[scenario]
    return MODES if row.sandboxes or row.slime or row.agents else (SILENT,)


def judge(scenario: str, seed: int, mode: str, minutes: float = LIVE_MINUTES) -> Judged:
    """One scenario, from the last minutes of its history to the end of its live minutes."""
    found, cpu = Judged(scenario, seed, mode), time.process_time()
    live = START + HISTORY_SECONDS
    with tempfile.TemporaryDirectory() as place, _store(Path(place)) as store:
        demo = Demo(scenario, seed, Path(place) / "demo", START, live - RECORDS_SECONDS)
        with closing(demo), closing(Writer(store)) as writer:
            demo.advance(live - ATTACHED_SECONDS)
            clock = ScaledClock(live - ATTACHED_SECONDS)
            run, reader = attach(Same(demo).settings()), Reader(store, clock)
            loop = RunLoop(
                Attached(run.name, run.targets, run.facts), LoopServices(store, writer, clock, limits=PATIENT)
            )
            api = create_api(reader, version="test", ready=lambda: None)
            add_rollouts(api, reader, store, clock)
            with TestClient(api, base_url="http://127.0.0.1") as client:
                poster = Posted(client, run.name)
                if mode == PUSHES:
                    demo.poster = poster
                asyncio.run(_step(found, demo, poster, loop, reader, clock, live, live + minutes * 60))
    found.cpu_seconds = time.process_time() - cpu
    return found


@contextmanager
def _store(folder: Path) -> Iterator[Store]:
    url = f"sqlite:///{folder}/store.db"
    migrate(url)
    with closing(Store.open(url)) as store:
        yield store


async def _step(
    found: Judged, demo: Demo, poster: Posted, loop: RunLoop, reader: Reader, clock: ScaledClock,
    live: float, end: float,
) -> None:  # fmt: skip
    begins = {PUSHES: live, LATE: live + LATE_SECONDS}.get(found.mode)
    walker = Walker()
    while clock.now() < end:
        t = clock.now() + TICK_SECONDS
        if begins is not None and t > begins:
            if demo.instrument is not None and found.mode == LATE:
                demo.instrument.take()  # what ended before the orchestrator was instrumented was never recorded
            demo.poster = poster
            demo.go_live()
            begins = None
        demo.advance(t)
        clock.set(t)
        await loop.step(t, patient=True)
        status = reader.status(loop.run)
        found.ticks.append(_tick(t - live, status))
        walker.status(t - live, status)
    await loop.close()
    found.contradictions = walker.found


def _tick(at: float, status: Status) -> Tick:
    verdict = status.verdict or {"outcome": UNKNOWN, "cause": "", "confidence": 0.0, "summary": ""}
    return Tick(at, verdict.outcome, verdict.cause or "", verdict.confidence, verdict.summary)


# ---- the report

HEADER = (
    f"{'scenario':22} {'seed':>4} {'mode':7} {'history':>7} {'live':>5} {'>=.5':>5} {'>=.8':>5} {'cause':>5}"
    "  right of each minute"
)


def line(found: Judged) -> str:
    """One row: share of right ticks in history and live, ticks wrong with confidence, with a wrong cause, by minute."""
    history = [tick for tick in found.ticks if tick.at <= 0]
    shares = [sum(map(found.right, ticks)) / max(1, len(ticks)) for ticks in (history, found.live)]
    by_minute = " ".join(f"{share * 100:3.0f}" for share in found.minutes())
    last = found.live[-1]
    worst = max(found.wrong(0.0), key=lambda tick: tick.confidence, default=None)
    text = f"{found.scenario:22} {found.seed:4} {found.mode:7} {shares[0]:7.0%} {shares[1]:5.0%}"
    text += f" {len(found.wrong(BELIEVED)):5} {len(found.wrong(CERTAIN)):5} {len(found.misnamed()):5}  {by_minute}"
    text += f"  {last.outcome}/{last.cause} {last.confidence:.2f}"
    return text + (f"; worst {worst.outcome}/{worst.cause} {worst.confidence:.2f} at {worst.at:.0f} s" if worst else "")


def changes(found: Judged) -> Iterator[str]:
    """Each verdict that differs from the one before, seconds since the live phase began."""
    before: tuple[str, str, float] | None = None
    for tick in found.ticks:
        key = tick.outcome, tick.cause, round(tick.confidence, 1)
        if key != before:
            yield f"  {tick.at:6.0f} s {tick.outcome}/{tick.cause} {tick.confidence:.2f} | {tick.summary[:130]}"
        before = key


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO")
    parser.add_argument("--mode", action="append", choices=MODES, default=[])
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--minutes", type=float, default=LIVE_MINUTES)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--ticks", action="store_true", help="each change of the verdict, with its summary")
    options = parser.parse_args(arguments)
    chosen = [
        (scenario, seed, mode)
        for scenario in options.scenarios or SCENARIOS for mode in modes(scenario)
        if mode in (options.mode or MODES) for seed in range(1, options.seeds + 1)
    ]  # fmt: skip
    wrong = contradicted = 0
    print(HEADER, flush=True)
    with ProcessPoolExecutor(options.jobs, initializer=gc.set_threshold, initargs=(200_000,)) as pool:
        for found in pool.map(judge, *zip(*chosen, strict=True), [options.minutes] * len(chosen)):
            print(line(found), flush=True)
            for text in (*report(found.contradictions), *(changes(found) if options.ticks else ())):
                print(f"  {text}", flush=True)
            wrong += len(found.wrong(BELIEVED)) + len(found.misnamed())
            contradicted += len(found.contradictions)
    print(f"{len(chosen)} runs; ticks wrong at {BELIEVED} and above: {wrong}; contradictions: {contradicted}")
    return min(1, wrong + contradicted)


if __name__ == "__main__":
    sys.exit(main())
