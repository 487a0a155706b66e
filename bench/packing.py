"""Bytes on disk of a raw sample, packed and not, and charts of packed hours. JSON lines, as bench/store.py.

    python -m bench.packing [sqlite] [postgres]

The samples are those of a recorded vLLM engine (tests/testdata/real_runs/kv_bound), repeated for 26 hours in random
order with counters that go on, as four engines. Prometheus gets the same samples, if promtool is installed.
"""

import argparse
import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from sqlalchemy import text

from bench.real_runs.recording import load
from bench.store import DAY, HOUR, START, report
from collectors.generators.vllm import parse
from collectors.model import Labels, Limits
from server.store import Store, migrate
from server.store.types import Batch, SeriesKey
from tests import support_postgres

ENGINES, HOURS = 4, 26
Page = list[tuple[int, float]]
"""(place in `KEYS`, value)."""


def recorded() -> tuple[list[SeriesKey], list[tuple[int, Page]]]:
    """The series of one engine, and (ms since the first page, its samples) of each page."""
    keys: dict[tuple[str, Labels], int] = {}
    found: list[tuple[int, Page]] = []
    state: dict[str, Any] = {}
    for page in load("kv_bound").engines[0]:
        if page.body is not None:
            samples = parse(page.body, state, Limits()).samples
            rows = {keys.setdefault((s.metric, s.labels), len(keys)): s.value for s in samples}
            found.append((round(page.at * 1000), list(rows.items())))
    first = found[0][0]
    return [SeriesKey("", name, labels) for name, labels in keys], [(at - first, rows) for at, rows in found]


def day(keys: list[SeriesKey], pages: list[tuple[int, Page]]) -> Iterator[tuple[int, Page]]:
    """The pages again and again for `HOURS`, each time in another order; counters grow by what they grew there."""
    rng = random.Random(1)
    every = (pages[-1][0] - pages[0][0]) // (len(pages) - 1)
    counts = {place for place, key in enumerate(keys) if key.metric.endswith("_total")}
    steps = [(dict(before), now) for (_, before), (_, now) in pairwise(pages)]
    reached: dict[int, float] = {}
    ts = START
    while ts < START + HOURS * HOUR:
        rng.shuffle(steps)
        for before, now in steps:
            for place, value in now:
                more = value - before.get(place, value) if place in counts else 0.0
                reached[place] = reached.get(place, 0.0) + more if place in counts else value
            yield ts + rng.randrange(8), [(place, reached[place]) for place, _ in now]
            ts += every


def bench_packing(name: str, url: str) -> None:
    """Fills, rolls up and packs a store."""
    keys, pages = recorded()
    migrate(url)
    store = Store.open(url)
    ids = [store.series.intern("run", [replace(key, target=f"engine-{n}") for key in keys]) for n in range(ENGINES)]
    begun, total, last = time.process_time(), 0, START
    for last, rows in day(keys, pages):
        store.write(Batch("run", samples=[(of[place], last, value) for of in ids for place, value in rows]))
        total += ENGINES * len(rows)
    write = time.process_time() - begun
    store.rollup("run", last)
    rows_bytes = size(store, "samples")
    some = [number for of in ids for number in of][:: len(keys) // 5]
    charts(f"{name}_rows", store, some, last)
    begun = time.process_time()
    while store.chunks.step():
        pass
    packed_cpu = time.process_time() - begun
    with store._engines.reading() as connection:
        packed, bodies = connection.execute(text("SELECT sum(n), sum(length(body)) FROM chunks")).one()
    report(f"{name}_bytes_a_row", rows_bytes / total, rows_bytes / total, 1000.0, at_most=True)
    report(
        f"{name}_bytes_a_packed_sample", size(store, "chunks") / float(packed), rows_bytes / total, 2.5, at_most=True
    )
    report(f"{name}_bytes_a_packed_sample_bodies", float(bodies) / float(packed), 1.0, 2.5, at_most=True)
    writing = 1e6 * write / total
    report(f"{name}_pack_us_a_sample", 1e6 * packed_cpu / float(packed), writing, 0.5 * writing, at_most=True)
    charts(f"{name}_packed", store, some, last)
    store.close()


def charts(name: str, store: Store, some: list[int], last: int) -> None:
    """CPU of charts of 600 points: an hour in the middle, and seven days."""
    middle = START + HOURS // 2 * HOUR
    for span, begin, end in (("1h", middle, middle + HOUR), ("7d", last - 7 * DAY, last)):
        took = []
        for number in some * 10:
            begun = time.process_time()
            store.samples.buckets(number, begin, end, (end - begin) // 600)
            took.append(1000 * (time.process_time() - begun))
        report(f"{name}_chart_{span}_ms_p50", statistics.median(took), 5.0, 5.0, at_most=True)


def size(store: Store, table: str) -> int:
    """Bytes on disk of a table with its indexes."""
    with store._engines.reading() as connection:
        if store.dialect == "sqlite":
            names = f"SELECT name FROM sqlite_master WHERE tbl_name = '{table}'"
            return int(connection.execute(text(f"SELECT sum(pgsize) FROM dbstat WHERE name IN ({names})")).scalar_one())
        parts = "SELECT inhrelid FROM pg_inherits WHERE inhparent = 'samples'::regclass" if table == "samples" else ""
        of = f"IN ({parts})" if parts else f"= '{table}'::regclass"
        sql = f"SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE oid {of}"
        return int(connection.execute(text(sql)).scalar_one())


def bench_prometheus(promtool: str, folder: Path) -> None:
    """The same samples in Prometheus' blocks."""
    keys, pages = recorded()
    by_key: dict[int, list[tuple[int, float]]] = {}
    for ts, rows in day(keys, pages):
        for place, value in rows:
            by_key.setdefault(place, []).append((ts, value))
    text_file = folder / "samples.txt"
    with text_file.open("w") as file:
        names = sorted({key.metric for key in keys})
        for metric in names:
            file.write(f"# TYPE {metric} unknown\n")
            for place, key in enumerate(keys):
                for n in range(ENGINES if key.metric == metric else 0):
                    labels = ",".join(f'{k}="{v}"' for k, v in (*key.labels, ("instance", f"engine-{n}")))
                    file.writelines(f"{metric}{{{labels}}} {v!r} {ts / 1000}\n" for ts, v in by_key[place])
        file.write("# EOF\n")
    blocks = folder / "blocks"
    subprocess.run(
        [promtool, "tsdb", "create-blocks-from", "openmetrics", str(text_file), str(blocks)],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    total = ENGINES * sum(map(len, by_key.values()))
    whole = sum(file.stat().st_size for file in blocks.rglob("*") if file.is_file())
    report("prometheus_bytes_a_sample", whole / total, whole / total, 1000.0, at_most=True)


def main() -> None:
    """Runs the requested databases; both by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backends", nargs="*", choices=["sqlite", "postgres", []])
    wanted = parser.parse_args().backends or ["sqlite", "postgres"]
    promtool = shutil.which("promtool")
    with tempfile.TemporaryDirectory() as folder:
        if promtool is not None:
            bench_prometheus(promtool, Path(folder))
        if "sqlite" in wanted:
            bench_packing("sqlite", f"sqlite:///{folder}/store.db")
    if "postgres" in wanted:
        with support_postgres.server() as server, support_postgres.database(server) as url:
            bench_packing("postgres", url)


if __name__ == "__main__":
    main()
