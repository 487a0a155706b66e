"""Cost of attaching to a long run: a verl run of 10,000 steps, read by Rollscope and by TensorBoard. JSON lines.

    python -m bench.attach [sqlite] [postgres] [--steps 10000] [--no-tensorboard]

The run is two JSON lines a step, 87 values together, as verl's fully asynchronous trainer logs them (the keys and
sizes are those of tests/testdata/verl; every value is drawn at full precision). Its loop attaches as `rollscope watch`
does, to an empty store, until history is derived and the rollups are closed. TensorBoard's own reader
(`EventAccumulator`, every point kept) reads the same values from an event file. CPU seconds are user and system time of
all threads, without the imports; ``ratio`` is ours over TensorBoard's. PostgreSQL's server process is not counted.
"""

import argparse
import asyncio
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench.backfill import PARTS, Parts, database_rows
from collectors.model import Limits, Target
from server.derive.deriver import Deriver
from server.derive.results import VerdictTracker
from server.lib.clock import WallClock
from server.query import Reader
from server.runtime.collector_service import seldom_swept
from server.scrape.run_loop import LoopServices, RunLoop
from server.signals.model import STEP_WINDOW
from server.store import Store, Writer, migrate
from server.targets.model import Attached
from tests import support_postgres

STEPS = 10_000
ROOT = Path(__file__).parent.parent
RECORDED = ROOT / "tests/testdata/verl"
# Keys of verl's synchronous trainer that make the second line as long as with its default metrics.
FURTHER = 16
TARGET_CPU_SECONDS = 12.0
TARGET_FIRST_SECONDS = 3.0
# Signals that a complete overview shows of such a run.
OVERVIEW = ("trainer_step_seconds", "trainer_wait_ratio", "reward", "response_tokens", "policy_version")
# Seconds. Long, because a busy machine is slow and not broken.
PATIENT = Limits(timeout_seconds=600.0)

TENSORBOARD = """
import json, sys, time
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
log, folder = sys.argv[1:]
writer = EventFileWriter(folder)
for line in open(log):
    row = json.loads(line)
    for key, value in row["data"].items():
        summary = Summary(value=[Summary.Value(tag=key, simple_value=value)])
        writer.add_event(Event(wall_time=1.7e9 + 30 * row["step"], step=row["step"], summary=summary))
writer.close()
start = time.process_time()
read = EventAccumulator(folder, size_guidance={"scalars": 0})
read.Reload()
values = sum(len(read.Scalars(tag)) for tag in read.Tags()["scalars"])
print(json.dumps({"values": values, "cpu": time.process_time() - start}))
"""


def recorded() -> tuple[dict[str, float], dict[str, float]]:
    """The two lines of one step, as recorded."""
    lines = [json.loads(line)["data"] for line in (RECORDED / "fully_async/fully-async.jsonl").open()]
    more = json.loads((RECORDED / "sync_jsonl/sync-exp.jsonl").open().readline())["data"]
    first, second = lines[6], lines[7]
    missing = [key for key in more if key not in second][:FURTHER]
    return first, {**second, **{key: more[key] for key in missing}}


def write_log(path: Path, steps: int) -> int:
    """Write the log; the number of values in it."""
    rng, values = random.Random(1), 0
    lines = recorded()
    with path.open("w") as out:
        for step in range(1, steps + 1):
            for line in lines:
                data = {key: value * rng.uniform(0.9, 1.1) for key, value in line.items()}
                if "training/global_step" in data:
                    data |= {"training/global_step": float(step), "fully_async/count/current_param_version": step // 2}
                    data["fully_async/count/dropped_stale_samples"] = float(step)
                    data["fully_async/count/total_generated_samples"] = step * 40.0
                values += len(data)
                out.write(json.dumps({"step": step, "data": data}, separators=(",", ":")) + "\n")
    return values


@dataclass(slots=True)
class Attach:
    """Seconds and CPU seconds until the overview was complete, and until history was derived."""

    first: float = 0.0
    first_cpu: float = 0.0
    whole: float = 0.0
    whole_cpu: float = 0.0


async def attach(store: Store, writer: Writer, log: Path) -> Attach:
    """The run's loop from an empty store to the present."""
    clock, found = WallClock(), Attach()
    wall, cpu = time.perf_counter(), time.process_time()
    loop = RunLoop(
        Attached("run", (Target("log", "run", "verl", "trainer", path=str(log)),)),
        LoopServices(store, writer, clock, limits=PATIENT),
    )
    await loop.look_ahead(clock.now())
    found.first, found.first_cpu = time.perf_counter() - wall, time.process_time() - cpu
    shown = {one.name for one in Reader(store, clock).status("run").signals.values() if one.value is not None}
    missing = [name for name in OVERVIEW if not any(one.split("{")[0] == name for one in shown)]
    assert not missing, missing
    while any(reader.lagging for reader in loop.readers):
        await loop.step(clock.now())
    await asyncio.to_thread(store.rollup, "run", round(clock.now() * 1000))
    found.whole, found.whole_cpu = time.perf_counter() - wall, time.process_time() - cpu
    await loop.close()
    return found


def tensorboard(log: Path, folder: Path) -> tuple[int, float]:
    """(values, CPU seconds) of TensorBoard's own reader."""
    python = ROOT / ".venv-writers/bin/python"
    done = subprocess.run([python, "-c", TENSORBOARD, log, folder], capture_output=True, text=True, check=True)
    read = json.loads(done.stdout)
    return read["values"], read["cpu"]


def run(name: str, url: str, log: Path, steps: int, peer: float | None) -> None:
    """One database: lines for the overview, the whole and its parts."""
    migrate(url)
    store, parts = Store.open(url), Parts()
    writer = Writer(store)
    with ExitStack() as stack:
        for owner, method, part in (*PARTS, (Deriver, "step", "step signals"), (Deriver, "tick", "tick signals"),
                                    (VerdictTracker, "tick", "verdict")):  # fmt: skip
            parts.around(stack, owner, method, part)
        found = asyncio.run(attach(store, writer, log))
    writer.close()
    newest = store.steps.newest("run", last=STEP_WINDOW)
    assert newest[-1].step == steps, newest[-1]
    store.close()
    line = {"cpu_seconds": round(found.first_cpu, 2), "seconds": round(found.first, 2)}
    print(json.dumps({"bench": f"attach {name} first overview", **line, "target": TARGET_FIRST_SECONDS,
                      "ok": found.first_cpu <= TARGET_FIRST_SECONDS}), flush=True)  # fmt: skip
    megabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    line = {"cpu_seconds": round(found.whole_cpu, 2), "seconds": round(found.whole, 2), "rss_mb": round(megabytes),
            "megabytes": round(log.stat().st_size / 1e6), "database_rows": database_rows(url)}  # fmt: skip
    if peer is not None:
        line["ratio"] = round(found.whole_cpu / peer, 2)
    print(json.dumps({"bench": f"attach {name} whole run", **line, "target": TARGET_CPU_SECONDS,
                      "ok": found.whole_cpu <= TARGET_CPU_SECONDS}), flush=True)  # fmt: skip
    for part, seconds in parts.seconds.items():
        print(json.dumps({"bench": f"attach {name} {part}", "cpu_seconds": round(seconds, 2)}), flush=True)


def main() -> None:
    """Runs the requested databases; SQLite by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backends", nargs="*", choices=["sqlite", "postgres", []])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--no-tensorboard", action="store_true")
    asked = parser.parse_args(sys.argv[1:])
    seldom_swept()
    with tempfile.TemporaryDirectory(prefix="rs-bench-") as folder:
        log, peer = Path(folder, "metrics.jsonl"), None
        values = write_log(log, asked.steps)
        if not asked.no_tensorboard:
            read, peer = tensorboard(log, Path(folder, "events"))
            assert read == values, (read, values)
            print(
                json.dumps({"bench": "attach tensorboard", "cpu_seconds": round(peer, 2), "values": read}), flush=True
            )
        if "postgres" not in asked.backends or "sqlite" in asked.backends:
            run("sqlite", f"sqlite:///{folder}/store.db", log, asked.steps, peer)
        if "postgres" in asked.backends:
            with support_postgres.server() as server, support_postgres.database(server) as url:
                run("postgres", url, log, asked.steps, peer)


if __name__ == "__main__":
    main()
