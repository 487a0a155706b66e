"""Speed of the store. JSON lines: bench, value, reference, ratio, target, ok.

    python bench/store.py [sqlite] [postgres] [--quick]

Writes are compared with the driver's own fastest way in the same run: the ratio holds on any machine, the rates only on
this one. Queries are charts of 600 points over 1 h, 24 h and 7 d; their target is absolute: 20 ms at p95.
PostgreSQL comes from the tests' wheel, or from ROLLSCOPE_TEST_POSTGRES.
"""

import argparse
import json
import random
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).parent.parent))

from server.store import Store, migrate
from server.store.types import Batch, SeriesKey
from tests import support_postgres

SERIES = 6_000
STEP_MS = 5_000
START = 1_700_006_400_000  # a midnight, so that a day is one partition
BATCH = 12_000
HOUR, DAY = 3_600_000, 86_400_000

Row = tuple[int, int, float]


def report(bench: str, value: float, reference: float, target: float, *, at_most: bool = False) -> None:
    """Prints one line. ``at_most``: the value itself is bounded; otherwise its ratio to the reference is."""
    ratio = value / reference
    ok = value <= target if at_most else ratio >= target
    line = {"bench": bench, "value": round(value, 2), "reference": round(reference, 2), "ratio": round(ratio, 3)}
    print(json.dumps({**line, "target": target, "ok": ok}), flush=True)


def scrapes(ids: list[int], batches: int) -> Iterator[list[Row]]:
    """Yields rows in live order: all series at one time, then all at the next."""
    rng = random.Random(1)
    ts, rows = START, []
    while batches:
        rows += [(series, ts + rng.randrange(500), rng.random()) for series in ids]
        ts += STEP_MS
        while len(rows) >= BATCH and batches:
            yield rows[:BATCH]
            rows, batches = rows[BATCH:], batches - 1


def seconds(work: Callable[[], object]) -> float:
    """Returns the duration of ``work``."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def bench_writes(name: str, store: Store, raw: Callable[[list[Row]], object], batches: int) -> None:
    """Alternates our way and the raw way, batch by batch, so that a busy machine slows both."""
    ids = store.series.intern("write", [SeriesKey("t", "m", (("n", str(n)),)) for n in range(SERIES)])
    ours, theirs = [], []
    for rows in scrapes(ids, batches):
        theirs.append(seconds(partial(raw, rows)))
        ours.append(seconds(partial(store.write, Batch("write", samples=rows))))
    total = batches * BATCH
    report(f"{name}_write_rows_per_second", total / sum(ours), total / sum(theirs), 0.5)


def raw_sqlite(path: Path) -> Callable[[list[Row]], object]:
    """`executemany` into an equal table, a transaction per batch, the same pragmas."""
    connection = sqlite3.connect(path, isolation_level=None)
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "cache_size=-131072", "wal_autocheckpoint=8000"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute(
        "CREATE TABLE s (slot BIGINT NOT NULL, series BIGINT NOT NULL, ts BIGINT NOT NULL, v DOUBLE NOT NULL, "
        "PRIMARY KEY (slot, series, ts)) WITHOUT ROWID"
    )

    def write(rows: list[Row]) -> None:
        keyed = [(ts // 600_000, series, ts, v) for series, ts, v in rows]
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany("INSERT INTO s VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", keyed)
        connection.execute("COMMIT")

    return write


def raw_postgres(url: str) -> Callable[[list[Row]], object]:
    """COPY to a temporary table, then INSERT ... ON CONFLICT, into an equal partitioned table."""
    connection = psycopg.connect(url)
    connection.execute(
        "CREATE TABLE raw_s (series int8, ts int8, v float8, PRIMARY KEY (series, ts)) PARTITION BY RANGE (ts)"
    )
    connection.execute(f"CREATE TABLE raw_s1 PARTITION OF raw_s FOR VALUES FROM ({START}) TO ({START + DAY})".encode())
    connection.execute("CREATE TEMP TABLE load (series int8, ts int8, v float8) ON COMMIT DELETE ROWS")
    connection.commit()

    def write(rows: list[Row]) -> None:
        with connection.cursor() as cursor:
            with cursor.copy("COPY load FROM STDIN (FORMAT BINARY)") as copy:
                copy.set_types(["int8", "int8", "float8"])
                for row in rows:
                    copy.write_row(row)
            cursor.execute("INSERT INTO raw_s SELECT * FROM load ON CONFLICT DO NOTHING")
        connection.commit()

    return write


def fill_week(store: Store) -> list[int]:
    """Stores seven days of twelve series at 5 s, half raw samples and half signals, rolled up as live."""
    keys = [SeriesKey("t", f"m{n}") for n in range(6)] + [SeriesKey("", f"s{n}") for n in range(6)]
    ids = store.series.intern("read", keys)
    rng = random.Random(2)
    for begin in range(START, START + 7 * DAY, DAY // 4):
        times = range(begin, begin + DAY // 4, STEP_MS)
        samples = [(series, ts, rng.random()) for ts in times for series in ids[:6]]
        points = [(series, ts, rng.random(), 0) for ts in times for series in ids[6:]]
        store.write(Batch("read", samples=samples, points=points))
        store.rollup("read", begin + DAY // 4)
    return ids


def bench_reads(name: str, store: Store, rounds: int) -> None:
    """Queries one chart: 600 points of one series that end now."""
    ids = fill_week(store)
    end = START + 7 * DAY
    for span_name, span in (("1h", HOUR), ("24h", DAY), ("7d", 7 * DAY)):
        for kind, some in (("samples", ids[:6]), ("points", ids[6:])):
            took = [
                1000 * seconds(partial(store.samples.buckets, i, end - span, end, span // 600)) for i in some * rounds
            ]
            took.sort()
            p50, p95 = statistics.median(took), took[int(len(took) * 0.95)]
            report(f"{name}_chart_{span_name}_{kind}_ms_p50", p50, 20.0, 20.0, at_most=True)
            report(f"{name}_chart_{span_name}_{kind}_ms_p95", p95, 20.0, 20.0, at_most=True)


def run(name: str, url: str, raw: Callable[[list[Row]], object], quick: bool) -> None:
    """Runs everything for one database."""
    migrate(url)
    store = Store.open(url)
    bench_writes(name, store, raw, 20 if quick else 360)  # 360 batches are one hour
    bench_rollup(name, store)
    bench_crowd(name, store)
    bench_reads(name, store, 5 if quick else 20)
    store.close()


def bench_rollup(name: str, store: Store) -> None:
    """Rolls up one minute of 6,000 series, which must take far less than a minute."""
    store.rollup("write", START + 60_000, 0)
    took = 1000 * seconds(lambda: store.rollup("write", START + 120_000, 0))
    report(f"{name}_rollup_minute_ms", took, 60_000.0, 3_000.0, at_most=True)


def bench_crowd(name: str, store: Store) -> None:
    """Queries a raw chart of one series among 6,000, which must read only its own pages."""
    ids = [number for number, _ in store.series.listed("write")]
    some = random.Random(3).sample(ids, 100)
    took = sorted(1000 * seconds(partial(store.samples.buckets, i, START, START + HOUR, 6_000)) for i in some)
    report(f"{name}_chart_1h_of_{SERIES}_series_ms_p95", took[95], 20.0, 20.0, at_most=True)


def main() -> None:
    """Runs the requested databases; both by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("backends", nargs="*", choices=["sqlite", "postgres", []])
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    asked = parser.parse_args()
    wanted = asked.backends or ["sqlite", "postgres"]
    if "sqlite" in wanted:
        with tempfile.TemporaryDirectory() as folder:
            run("sqlite", f"sqlite:///{folder}/store.db", raw_sqlite(Path(folder, "raw.db")), asked.quick)
    if "postgres" in wanted:
        with support_postgres.server() as server, support_postgres.database(server) as url:
            run("postgres", url, raw_postgres(url), asked.quick)


if __name__ == "__main__":
    main()
