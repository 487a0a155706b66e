"""The process that the crash test of a back-fill kills: a run with a long log, attached to as `rollscope watch` does.

Prints n after the n-th part of the log is derived.
"""

import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path

from collectors.model import Limits, Target
from collectors.training_logs import tail
from server.lib.clock import ScaledClock
from server.scrape import recent_first, target_reader
from server.scrape.run_loop import LoopServices, RunLoop
from server.store import Store, Writer
from server.targets.model import Attached

STEPS, SECONDS = 400, 30.0
# The file's own time, on the grid of a minute.
MODIFIED = 1_800_000_000.0
NOW = MODIFIED + 5.0


def shrink(put: Callable[[object, str, int], None]) -> None:
    """Let 60 kB be a long log."""
    put(recent_first, "LONG_BYTES", 40_000)
    put(recent_first, "RECENT_BYTES", 6_000)
    put(tail, "HEAD_BYTES", 2_000)
    put(target_reader, "HISTORY_BYTES", 9_000)


def write_log(folder: Path) -> Path:
    """A verl log of two lines a step: the reward is the step's number, and each step trains 1,000 tokens."""
    path = folder / "metrics.jsonl"
    with path.open("w") as out:
        for step in range(1, STEPS + 1):
            first = {"fully_async/rollouter/active_time": 17.0, "fully_async/rollouter/version_time": 23.0}
            second = {
                "timing_s/step": SECONDS,
                "timing_s/gen": 12.0,
                "perf/total_num_tokens": 1000.0,
                "critic/score/mean": float(step),
                "response_length/mean": 500.0 + step % 7,
                "fully_async/count/current_param_version": step,
                "fully_async/monitor/queue/mq_queue_size": step % 5,
            }
            for data in (first, second):
                out.write(json.dumps({"step": step, "data": data}) + "\n")
    os.utime(path, (MODIFIED, MODIFIED))
    return path


class Hurried(ScaledClock):
    """Every step of the loop is late, so that it reads one part of the log."""

    def now(self) -> float:
        return NOW + 5.0


def loop_of(store: Store, writer: Writer, log: str, late: bool = False) -> RunLoop:
    """The loop of the run ``run``."""
    target = Target("log", "run", "verl", "trainer", path=log)
    # A part is as long as the longest line may be.
    limits = Limits(line_bytes=4_000, timeout_seconds=60.0)
    return RunLoop(
        Attached("run", (target,)),
        LoopServices(store, writer, Hurried(NOW) if late else ScaledClock(NOW), limits=limits),
    )


async def fill(loop: RunLoop, done: Callable[[int], None] = lambda _: None) -> None:
    """From wherever it is to the present."""
    count = 0
    while True:
        await loop.step(NOW)
        count += 1
        done(count)
        if not any(reader.lagging for reader in loop.readers):
            break
    await loop.close()


def main(url: str, log: str) -> None:
    """Go on until killed."""
    shrink(setattr)
    store = Store.open(url)
    writer = Writer(store)
    loop = loop_of(store, writer, log, late=True)
    print("ready", flush=True)
    asyncio.run(fill(loop, lambda count: print(count, flush=True)))
    writer.close()
    store.close()
