"""Plays a recording to the product: detection, collectors, ingest, driver and store are real, the clock is not.

Time is event time: the clock stands still within a step and moves by one grid step, so that two minutes of a run cost
a few seconds of CPU and a loaded machine changes no verdict.
"""

import asyncio
import math
import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.real_runs import world
from bench.real_runs.recording import Recording
from collectors.model import Limits
from server.lib.clock import ScaledClock
from server.lib.errors import ConfigError
from server.query import Reader
from server.query.types import Status
from server.scrape.run_loop import LoopServices, RunLoop
from server.signals.model import TICK_SECONDS
from server.store import Store, Writer, migrate
from server.targets.model import Attached, RunSettings
from server.targets.resolve import attach, source_of

RUN = "recorded"
# A loaded machine must not turn an engine that answers into one that is down.
PATIENT = Limits(timeout_seconds=60.0)


@dataclass(frozen=True, slots=True)
class Tick:
    """What the product stated at an instant, through the reader of its API."""

    at: float
    status: Status


@dataclass(slots=True)
class Played:
    """A recording and what the product stated of it. `attached`: when the product had resolved every source."""

    recording: Recording
    attached: float = math.inf
    ticks: list[Tick] = field(default_factory=list)
    cpu_seconds: float = 0.0


def play(recording: Recording, *, sink: str = "trackio", attach_at: float | None = None) -> Played:
    """Attach as `rollscope watch --wait` does from `attach_at` on (default: as recorded), then tick to the end.

    Args:
        sink: the log that the trainer writes, "trackio" or "tensorboard".
    """
    begun, played = time.process_time(), Played(recording)
    start = recording.attach_at if attach_at is None else attach_at
    clock = ScaledClock(start)
    with tempfile.TemporaryDirectory() as place, world.engines(recording.engines, clock.now) as urls:
        trainer = Path(place) / "trainer"
        log = world.SINKS[sink](trainer, recording.log) if recording.log is not None else None
        sources = [*urls, str(trainer)] if log is not None else urls
        with _store(Path(place)) as store:
            _run(played, clock, log, sources, store)
        if log is not None:
            log.close()
    played.cpu_seconds = time.process_time() - begun
    return played


@contextmanager
def _store(folder: Path) -> Iterator[Store]:
    url = f"sqlite:///{folder}/store.db"
    migrate(url)
    with closing(Store.open(url)) as store:
        yield store


def _run(played: Played, clock: ScaledClock, log: world.LogWriter | None, sources: list[str], store: Store) -> None:
    attached: Attached | None = None
    ticks = list(grid(clock.now(), played.recording.end))
    while ticks:
        t = ticks.pop(0)
        clock.set(t)
        if log is not None:
            log.write(t)
        if (attached := _attach(sources)) is not None:
            break
    if attached is None:
        return
    played.attached = clock.now()
    with closing(Writer(store)) as writer:
        loop = RunLoop(
            Attached(RUN, attached.targets, attached.facts), LoopServices(store, writer, clock, limits=PATIENT)
        )
        for reader in loop.readers:
            reader._random = random.Random(0)  # the jitter of a dead target's back-off: the same in each play
        asyncio.run(_tick(played, clock, log, loop, Reader(store, clock), ticks))


def grid(begin: float, end: float) -> Iterator[float]:
    """The instants at which a live loop steps."""
    first, last = math.floor(begin / TICK_SECONDS) + 1, math.floor(end / TICK_SECONDS)
    return (number * TICK_SECONDS for number in range(first, last + 1))


def _attach(sources: list[str]) -> Attached | None:
    try:
        return attach(RunSettings(RUN, tuple(map(source_of, sources))), PATIENT)
    except ConfigError:
        return None  # a source is not there yet


async def _tick(
    played: Played, clock: ScaledClock, log: world.LogWriter | None, loop: RunLoop, reader: Reader,
    ticks: list[float],
) -> None:  # fmt: skip
    for t in ticks:
        clock.set(t)
        if log is not None:
            log.write(t)
        # patient: wall time of a slow machine must not make a target late.
        await loop.step(t, patient=True)
        played.ticks.append(Tick(t, reader.status(RUN)))
    await loop.close()
