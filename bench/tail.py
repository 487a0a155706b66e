"""Cost of reading a trainer's logs, compared with the writers' own readers in the same run. JSON lines.

    python -m bench.tail [--quick]

A million scalars (50 keys a step), written by TensorBoard's and wandb's own writers and read in calls of the usual
limits; ``reference`` is what TensorBoard's loader (behind its web page), its accumulator, and wandb's protobuf classes
take for a scalar. The last lines are the polls of a run that logs nothing. All CPU time of one core, in microseconds.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from collectors.formats import tensorboard, wandb
from collectors.formats.rows import Sink
from collectors.model import Cursor, Limits
from collectors.training_logs import tail
from tests.support_writers import run_writer

KEYS = 50
WRITTEN_STEPS = 500  # by the real writer, which takes a minute for a million; the rest are copies
DIRECTORIES = 20
POLLS = 1000

WRITE_TENSORBOARD = """
import sys
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter
writer = EventFileWriter(sys.argv[1])
for step in range(int(sys.argv[2])):
    for key in range(int(sys.argv[3])):
        value = Summary.Value(tag=f"train/metric_{key}", simple_value=step / (key + 1))
        writer.add_event(Event(wall_time=1795000000 + step, step=step, summary=Summary(value=[value])))
writer.close()
"""

WRITE_WANDB = """
import sys, wandb
run = wandb.init(dir=sys.argv[1], mode="offline", settings=wandb.Settings(x_disable_stats=True, console="off"))
for step in range(int(sys.argv[2])):
    run.log({f"train/metric_{key}": step / (key + 1) for key in range(int(sys.argv[3]))})
wandb.finish()
"""

READ_TENSORBOARD = """
import sys, time
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader, LegacyEventFileLoader
def loaded(loader):
    start = time.process_time()
    count = sum(len(event.summary.value) for event in loader(sys.argv[1]).Load())
    return (time.process_time() - start) / count * 1e6
print(loaded(LegacyEventFileLoader))
print(loaded(EventFileLoader))
start = time.process_time()
accumulator = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0}).Reload()
count = sum(len(accumulator.Scalars(tag)) for tag in accumulator.Tags()["scalars"])
print((time.process_time() - start) / count * 1e6)
"""

READ_WANDB = """
import json, struct, sys, time, zlib
from wandb.proto.wandb_internal_pb2 import Record
start, count, at, whole = time.process_time(), 0, 7, b""
data = open(sys.argv[1], "rb").read()
while at < len(data):
    left = 32768 - at % 32768
    if left < 7:
        at += left
        continue
    crc, length, kind = struct.unpack_from("<IHB", data, at)
    assert zlib.crc32(data[at + 6:at + 7 + length]) == crc
    whole = (whole if kind in (3, 4) else b"") + data[at + 7:at + 7 + length]
    at += 7 + length
    if kind in (1, 4):
        record = Record.FromString(whole)
        if record.HasField("history"):
            row = {".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            count += sum(not key.startswith("_") for key in row)
print((time.process_time() - start) / count * 1e6)
"""


def report(bench: str, value: float, **more: object) -> None:
    """Returns one line; ``value`` in microseconds of CPU."""
    print(json.dumps({"bench": bench, "us": round(value, 2), **more}), flush=True)


def cpu(call: Callable[[], object]) -> float:
    """Returns seconds of CPU."""
    start = time.process_time()
    call()
    return time.process_time() - start


def drain(sink: Sink, path: Path) -> tuple[int, Cursor]:
    """Returns the scalars of a log, read call by call, and the cursor at its end."""
    count, cursor, more = 0, {}, True
    while more:
        logs = sink.read(path, cursor, Limits())
        assert not logs.dropped, logs.why
        count += sum(key.startswith("train/") for row in logs.rows for key in row.values)
        cursor, more = logs.cursor, logs.more
    return count, cursor


def per_scalar(sink: Sink, paths: list[Path], expected: int) -> float:
    """Returns microseconds per scalar, over all logs."""
    counts: list[int] = []
    seconds = cpu(lambda: counts.extend(drain(sink, path)[0] for path in paths))
    assert sum(counts) == expected, (sum(counts), expected)
    return seconds / expected * 1e6


def run_tensorboard(folder: Path, scalars: int) -> Path:
    """Returns the written file, for the idle part."""
    run_writer(WRITE_TENSORBOARD, folder / "one", WRITTEN_STEPS, KEYS)
    (one,) = (folder / "one").iterdir()
    legacy, loader, accumulator = map(float, run_writer(READ_TENSORBOARD, one).split())
    copies = scalars // (WRITTEN_STEPS * KEYS)
    (folder / "all").mkdir()
    with (folder / "all" / one.name).open("wb") as out:
        for _ in range(copies):
            out.write(one.read_bytes())
    ours = per_scalar(tensorboard.SINK, [folder / "all"], scalars)
    for name, theirs in (("raw loader", legacy), ("EventFileLoader", loader), ("EventAccumulator", accumulator)):
        report(
            "tail tensorboard",
            ours,
            scalars=scalars,
            beside=name,
            reference=round(theirs, 2),
            ratio=round(theirs / ours, 1),
        )
    return one


def run_wandb(folder: Path, scalars: int) -> None:
    """Copies are read one by one, because blocks are counted from a file's start."""
    run_writer(WRITE_WANDB, folder, WRITTEN_STEPS, KEYS)
    (one,) = wandb.SINK.find(folder)
    theirs = float(run_writer(READ_WANDB, one))
    ours = per_scalar(wandb.SINK, [one] * (scalars // (WRITTEN_STEPS * KEYS)), scalars)
    report(
        "tail wandb",
        ours,
        scalars=scalars,
        beside="wandb protobuf",
        reference=round(theirs, 2),
        ratio=round(theirs / ours, 1),
    )


def run_idle(folder: Path, one: Path) -> None:
    """Measures polls of runs without new log data: the sink alone, then a collector's whole `tail`."""
    runs = [folder / f"run{number}" for number in range(DIRECTORIES)]
    for run in runs:
        (run / "tb").mkdir(parents=True)
        (run / "tb" / one.name).write_bytes(one.read_bytes())
    again = cpu(lambda: drain(tensorboard.SINK, runs[0] / "tb")) * 1e6
    cursors = [drain(tensorboard.SINK, run / "tb")[1] for run in runs]
    sink = cpu(
        lambda: [
            tensorboard.SINK.read(runs[at % DIRECTORIES] / "tb", cursors[at % DIRECTORIES], Limits())
            for at in range(POLLS)
        ]
    )
    report("idle sink", sink / POLLS * 1e6, polls=POLLS, directories=DIRECTORIES, reread=round(again))
    framework = tail.Framework("bench", "", "", (tensorboard.SINK,), {}, marks=("train/metric_0",))
    tails = [_tailed(framework, run) for run in runs]
    whole = cpu(
        lambda: [
            tail.tail(framework, runs[at % DIRECTORIES], tails[at % DIRECTORIES], Limits(), 0.0) for at in range(POLLS)
        ]
    )
    report("idle collector", whole / POLLS * 1e6, polls=POLLS, directories=DIRECTORIES, reread=round(again))


def _tailed(framework: tail.Framework, run: Path) -> Cursor:
    cursor: Cursor = {}
    while True:
        reading = tail.tail(framework, run, cursor, Limits(), 0.0)
        cursor = reading.cursor
        if not reading.more:
            return cursor


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="a tenth of the scalars")
    scalars = 100_000 if parser.parse_args(sys.argv[1:]).quick else 1_000_000
    with tempfile.TemporaryDirectory(prefix="rs-bench-") as name:
        folder = Path(name)
        one = run_tensorboard(folder / "tensorboard", scalars)
        run_wandb(folder / "wandb", scalars)
        run_idle(folder / "idle", one)


if __name__ == "__main__":
    main()
