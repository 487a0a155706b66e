"""Cost of runs without new log data: 20 run directories with a long metrics file each, polled as live. JSON lines.

    python -m bench.steady [--rows 1000000]

The file (verl's, see bench.backfill) is read to its end once; the directories hold links to it, and each run's loop
goes on from that cursor, its last steps in the store. Then event time goes on by the 5 s grid as fast as the loops
return: ``core_percent`` is their CPU time, all threads, of the time that passed on the grid. Memory is what the process
holds after a tenth of the grid and at its end.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from msgspec import structs

import collectors
from bench.backfill import SAID, write_log
from collectors.model import Cursor, Limits, Reading, Target
from server.ingest.readings import Ingest
from server.lib.clock import ScaledClock
from server.scrape.run_loop import LoopServices, RunLoop
from server.signals.model import TICK_SECONDS
from server.store import Store, Writer, migrate
from server.store.types import Batch
from server.targets.model import Attached

ROWS = 50_000
DIRECTORIES = 20
STEPS = 120
STORED_STEPS = 64
TARGET_PERCENT = 5.0


def drained(log: Path) -> Reading:
    """Returns the last reading of a file, whose cursor is at its end."""
    tail = collectors.load()["verl"].tail
    assert tail is not None
    cursor: Cursor = {}
    while True:
        reading = tail(log.parent, cursor, Limits(), log.stat().st_mtime)
        assert reading.cursor is not None
        cursor = reading.cursor
        if not reading.more:
            return reading


def linked(log: Path, folder: Path) -> Path:
    """Makes a run directory with the same file."""
    folder.mkdir()
    os.link(log, folder / log.name)
    return folder


def follow(store: Store, writer: Writer, folder: Path, reading: Reading, now: float) -> RunLoop:
    """Returns the loop of a run whose file is fully read."""
    assert reading.cursor is not None
    source = {**reading.cursor["source"], "path": str(next(folder.iterdir()))}
    target = Target("log", folder.name, "verl", "trainer", path=str(folder))
    kept = reading.samples[-STORED_STEPS * (len(SAID) + 1) :]
    own = structs.replace(reading, samples=kept, cursor={**reading.cursor, "source": source})
    batch, _ = Ingest(store, folder.name).reading(target, own, now, 0.0)
    writer.submit(batch).result()
    # The files' beginnings are not ingested, so the watermark is set to the stored end.
    writer.submit(Batch(folder.name, run_fields={"watermark": round(now * 1000)})).result()
    return RunLoop(Attached(folder.name, (target,)), LoopServices(store, writer, ScaledClock(now)))


async def poll(loops: list[RunLoop], begin: float, steps: int) -> None:
    """Steps every loop at every instant of the grid."""
    for at in range(steps):
        for loop in loops:
            await loop.step(begin + at * TICK_SECONDS)
    assert all(reader.was_up and not reader.lagging for loop in loops for reader in loop.readers)


def resident_mb() -> float:
    """Returns the memory of the process now (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


async def measure(loops: list[RunLoop], begin: float, rows: int) -> None:
    """Runs a tenth of the grid to settle, then measures."""
    settle = STEPS // 10
    await poll(loops, begin, settle)
    memory, cpu = resident_mb(), time.process_time()
    await poll(loops, begin + settle * TICK_SECONDS, STEPS - settle)
    spent, passed = time.process_time() - cpu, (STEPS - settle) * TICK_SECONDS
    percent, each = 100 * spent / passed, spent / (STEPS - settle) / len(loops)
    line = {"bench": "steady", "core_percent": round(percent, 2), "directories": len(loops), "rows": rows}
    held = {"rss_mb": round(memory, 1), "rss_mb_after": round(resident_mb(), 1)}
    verdict = {"us_per_step_of_a_run": round(each * 1e6), "target": TARGET_PERCENT, "ok": percent <= TARGET_PERCENT}
    print(json.dumps({**line, **held, **verdict}), flush=True)
    for loop in loops:
        await loop.close()


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    rows = parser.parse_args(sys.argv[1:]).rows
    with tempfile.TemporaryDirectory(prefix="rs-bench-") as name:
        first = Path(name, "run0")
        first.mkdir()
        log = first / "metrics.jsonl"
        write_log(log, rows)
        reading = drained(log)
        folders = [first, *(linked(log, Path(name, f"run{at}")) for at in range(1, DIRECTORIES))]
        url = f"sqlite:///{name}/store.db"
        migrate(url)
        store = Store.open(url)
        writer = Writer(store)
        now = log.stat().st_mtime + TICK_SECONDS
        loops = [follow(store, writer, folder, reading, now) for folder in folders]
        asyncio.run(measure(loops, now + TICK_SECONDS, rows))
        writer.close()
        store.close()


if __name__ == "__main__":
    main()
