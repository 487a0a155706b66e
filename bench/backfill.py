"""Rate of back-filling history. JSON lines: bench, cost of a row, in total and by part.

    python -m bench.backfill [sqlite] [postgres] [--rows 1000000]

A verl metrics file (eleven keys a row, a step every eight seconds, as its file logger writes it) is read to its end by
the run's own loop: tail, ingest, store, `advance`. A row becomes eleven step values and some fifteen points of signals;
``database_rows`` counts them. Parts are CPU microseconds a row on the thread that does them. The store's thread runs
in parallel with the others, so that ``wall`` may be less than their sum. PostgreSQL comes from the tests' wheel.
"""

import argparse
import asyncio
import json
import random
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, text

from collectors.model import Limits, Target
from server.derive.driver import RunDriver
from server.ingest.readings import Ingest
from server.lib.clock import ScaledClock
from server.scrape.run_loop import LoopServices, RunLoop
from server.store import Store, Writer, migrate
from server.targets.model import Attached
from tests import support_postgres

ROWS = 20_000
WANDERS = 0.1
SAID: dict[str, float] = {
    "timing_s/step": 8.0,
    "timing_s/gen": 4.0,
    "timing_s/update_actor": 2.0,
    "timing_s/update_weights": 0.4,
    "critic/score/mean": 0.5,
    "actor/entropy": 1.2,
    "actor/grad_norm": 0.3,
    "response_length/mean": 812.0,
    "response_length/max": 2048.0,
    "response_length/clip_ratio": 0.02,
    "perf/throughput": 5100.0,
}
# Microseconds per row: a million rows within a minute.
TARGET_US = 60.0
# A short recent file would be derived on the fine grid, which a long file is not.
AGE_SECONDS = 2 * 86_400.0
# A long limit, because a read that times out on a busy machine would end the measurement.
PATIENT = Limits(timeout_seconds=600.0)
TABLES = ("points", "step_values", "steps", "samples")
PARTS = ((Ingest, "reading", "ingest"), (RunDriver, "advance", "advance"), (Store, "write_many", "store"),
         (Store, "rollup", "rollup"))  # fmt: skip


def write_log(path: Path, rows: int) -> None:
    """Writes lines as verl's file logger does (utils/tracking.py)."""
    rng = random.Random(1)
    with path.open("w") as out:
        for step in range(1, rows + 1):
            data = {key: round(usual * rng.uniform(1 - WANDERS, 1 + WANDERS), 6) for key, usual in SAID.items()}
            out.write(json.dumps({"step": step, "data": data}) + "\n")


class Parts:
    """CPU seconds by part, each on the thread that does the work."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._guard = threading.Lock()

    def around(self, stack: ExitStack, owner: type, name: str, part: str) -> None:
        """Measures a method until the stack is closed."""
        real = getattr(owner, name)
        setattr(owner, name, self.counted(real, part))
        stack.callback(setattr, owner, name, real)

    def counted(self, real: Callable[..., Any], part: str) -> Callable[..., Any]:
        """Returns the function with its CPU time added to the part."""

        def call(*args: Any, **more: Any) -> Any:
            start = time.thread_time()
            try:
                return real(*args, **more)
            finally:
                self._add(part, time.thread_time() - start)

        return call

    def _add(self, part: str, seconds: float) -> None:
        with self._guard:
            self.seconds[part] = self.seconds.get(part, 0.0) + seconds


async def backfill(store: Store, writer: Writer, log: Path, parts: Parts) -> None:
    """Runs the loop over the whole file, as at the start of `rollscope watch`."""
    now = log.stat().st_mtime + AGE_SECONDS
    target = Target("log", "run", "verl", "trainer", path=str(log))
    loop = RunLoop(Attached("run", (target,)), LoopServices(store, writer, ScaledClock(now), limits=PATIENT))
    (reader,) = loop.readers
    assert reader.collector.tail is not None
    reader.collector = replace(reader.collector, tail=parts.counted(reader.collector.tail, "read"))
    with ExitStack() as stack:
        for owner, name, part in PARTS:
            parts.around(stack, owner, name, part)
        await loop.step(now, patient=True)
    await loop.close()
    assert not reader.failures and not reader.lagging


def database_rows(url: str) -> int:
    """Returns counts of stored rows."""
    engine = create_engine(url)
    with engine.connect() as connection:
        found = sum(int(connection.execute(text(f"SELECT count(*) FROM {name}")).scalar_one()) for name in TABLES)
    engine.dispose()
    return found


def run(name: str, url: str, log: Path, rows: int) -> None:
    """Measures one database: lines for the whole and for each part."""
    migrate(url)
    store, parts = Store.open(url), Parts()
    writer = Writer(store)
    wall, cpu = time.perf_counter(), time.process_time()
    asyncio.run(backfill(store, writer, log, parts))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    writer.close()
    steps = store.steps.newest("run", last=1)
    assert steps[0].step == rows, steps
    store.close()
    us, written = 1e6 / rows, database_rows(url)
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    line = {"rows": rows, "rows_per_second": round(rows / wall), "database_rows": written, "rss_mb": round(megabytes)}
    print(json.dumps({"bench": f"backfill {name} wall", "us": round(wall * us, 1), **line,
                      "target": TARGET_US, "ok": wall * us <= TARGET_US}), flush=True)  # fmt: skip
    for part, seconds in {"cpu": cpu, **parts.seconds}.items():
        print(json.dumps({"bench": f"backfill {name} {part}", "us": round(seconds * us, 1)}), flush=True)


def main() -> None:
    """Runs the requested databases; SQLite by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backends", nargs="*", choices=["sqlite", "postgres", []])
    parser.add_argument("--rows", type=int, default=ROWS)
    asked = parser.parse_args(sys.argv[1:])
    with tempfile.TemporaryDirectory(prefix="rs-bench-") as folder:
        log = Path(folder, "metrics.jsonl")
        write_log(log, asked.rows)
        if "postgres" not in asked.backends or "sqlite" in asked.backends:
            run("sqlite", f"sqlite:///{folder}/store.db", log, asked.rows)
        if "postgres" in asked.backends:
            with support_postgres.server() as server, support_postgres.database(server) as url:
                run("postgres", url, log, asked.rows)


if __name__ == "__main__":
    main()
