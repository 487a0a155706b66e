"""Stores for `bench.ui`: a demo's hour, continued by a feed; and a month compared with half an hour."""

import math
import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace

from bench.dashboard import Served, demo, installed
from dashboard.charts.panels import names_by_slot
from server.lib.clock import WallClock
from server.query import Reader
from server.query.types import format_name
from server.store import Store, migrate
from server.store.types import Batch, LatestRow, PointState, SeriesKey

DAY, SHORT_SECONDS = 86_400, 1_800
# History is derived once a minute, recent data every 5 s (`server.derive.driver`): a month is 43,200 points a signal.
LONG_GRID, SHORT_GRID = 60, 5
ROWS = 50_000


@contextmanager
def web(store: str) -> Iterator[Served]:
    """Runs the web role over a store that another process writes."""
    with installed("up", "--role", "web", "--store", store) as served:
        yield served


def hour(folder: str) -> tuple[str, str]:
    """Returns (store, run): a demo's first hour as it was collected, after its server ended."""
    with demo(folder, 1.0) as served:
        (run,) = served.runs()
    return f"sqlite:///{folder}/demo.db", run


@dataclass
class Feed:
    """Writes a point of every signal that has a value, like the run's own tick.

    ``written``: seq -> when it was passed to the store (epoch seconds), before the commit.
    """

    store: Store
    run: str
    written: dict[int, float] = field(default_factory=dict)
    _rows: list[LatestRow] = field(default_factory=list)
    _rng: random.Random = field(default_factory=lambda: random.Random(1))

    def __post_init__(self) -> None:
        self._rows = [row for _, row in self.store.runs.latest(self.run) if row.value is not None]

    def beat(self) -> int:
        """Writes one tick now; returns its seq."""
        now = time.time()
        ms = round(now * 1000)
        rows = [replace(row, ts=ms, value=self._moved(row.value or 0.0)) for row in self._rows]
        points = [(row.series, ms, row.value, int(PointState.VALUE)) for row in rows]
        seq = self.store.write(Batch(self.run, points=points, latest=rows, run_fields={"watermark": ms}))
        self.written[seq] = now
        return seq

    def _moved(self, value: float) -> float:
        return value * self._rng.uniform(0.98, 1.02)


@contextmanager
def feed(store: str, run: str, every: float) -> Iterator[Feed]:
    """Continues a demo's run with a tick every ``every`` seconds until the block ends."""
    over = threading.Event()
    with closing(Store.open(store)) as opened:
        found = Feed(opened, run)

        def beats() -> None:
            due = time.monotonic()
            while not over.wait(max(0.0, due - time.monotonic())):
                found.beat()
                due += every

        thread = threading.Thread(target=beats)
        thread.start()
        try:
            yield found
        finally:
            over.set()
            thread.join()


def lengths(folder: str, like: str, run: str, days: float) -> str:
    """Makes a store with two runs that end now, ``short`` of half an hour and ``long`` of so many days.

    Both have the signals that the overview draws of ``run`` in the store ``like``, in values that wander with the hour,
    rolled up.
    """
    url = f"sqlite:///{folder}/lengths.db"
    migrate(url)
    with closing(Store.open(like)) as old, closing(Store.open(url)) as store:
        shown, rows = old.runs.get(run), drawn(old, run)
        assert shown is not None
        end = time.time() // 60 * 60
        for name, seconds, grid in (("short", SHORT_SECONDS, SHORT_GRID), ("long", days * DAY, LONG_GRID)):
            store.ensure_run(name)
            fields: dict[str, str | int | None] = {
                "framework": shown.framework, "mode": shown.mode, "lifecycle": "running",
            }  # fmt: skip
            store.write(Batch(name, run_fields=fields, facts=dict(shown.facts)))
            history(store, name, rows, end, seconds, grid)
    return url


def drawn(store: Store, run: str) -> list[tuple[SeriesKey, LatestRow]]:
    """Returns the signals of the overview's charts and cards for a run."""
    signals = Reader(store, WallClock()).status(run).signals.values()
    names = {name for wanted in names_by_slot(signals).values() for name in wanted}
    rows = ((key, row) for key, row in store.runs.latest(run) if row.value is not None)
    return [(key, row) for key, row in rows if format_name(key.metric, key.labels) in names]


def history(
    store: Store, run: str, rows: list[tuple[SeriesKey, LatestRow]], end: float, seconds: float, grid: int
) -> None:
    """Writes points of every signal on a grid, a day of rows per transaction, rolled up as in the loop."""
    ids = store.series.intern(run, [key for key, _ in rows])
    usual = [row.value or 0.0 for _, row in rows]
    ticks = [int(end - seconds + grid * n) for n in range(int(seconds / grid) + 1)]
    size = max(1, ROWS // max(1, len(ids)))
    for first in range(0, len(ticks), size):
        part = ticks[first : first + size]
        points = [
            (number, ts * 1000, value * (1 + 0.2 * math.sin(ts / 3600 + number)), int(PointState.VALUE))
            for ts in part
            for number, value in zip(ids, usual, strict=True)
        ]
        newest = [replace(row, series=n, ts=part[-1] * 1000) for n, (_, row) in zip(ids, rows, strict=True)]
        store.write(Batch(run, points=points, latest=newest, run_fields={"watermark": part[-1] * 1000}))
        store.rollup(run, part[-1] * 1000)
