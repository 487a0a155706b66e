"""Histograms written by the minute: to the store the same as writing each reading."""

import random

from collectors.model import Histogram
from server.ingest.readings import HistogramThrottle
from server.store import Store
from server.store.types import Batch, SeriesKey

T0 = 1_800_000_000_000
KEY = SeriesKey("engine", "time_to_first_token_seconds")
FOREVER = 1 << 60


def reading(*counts: float, edges: tuple[float, ...] = (1.0,)) -> Histogram:
    return Histogram(KEY.metric, edges, counts, counts[-1] * 2.0)


def written(readings: list[tuple[int, Histogram]]) -> list[tuple[int, tuple[float, ...]]]:
    """(seconds, counts) of what is handed over, and of the rest."""
    minutes = HistogramThrottle()
    rows = [row for at, item in readings for row in minutes.take("engine", 1, T0 + at * 1000, item)]
    return [((ts - T0) // 1000, item.counts) for _, ts, item in [*rows, *minutes.rest("engine")]]


def test_the_first_reading_and_the_last_of_each_minute_are_written() -> None:
    readings = [(at, reading(at, at)) for at in range(0, 130, 5)]
    assert written(readings) == [(0, (0, 0)), (55, (55, 55)), (115, (115, 115)), (125, (125, 125))]


def test_both_sides_of_a_restart_are_written() -> None:
    assert written([(0, reading(5, 5)), (5, reading(7, 9)), (10, reading(1, 9)), (15, reading(2, 9))]) == [
        (0, (5, 5)), (5, (7, 9)), (10, (1, 9)), (15, (2, 9)),
    ]  # fmt: skip
    other = reading(1, 1, 1, edges=(1.0, 2.0))
    assert written([(0, reading(5, 5)), (5, reading(7, 9)), (10, other)])[1] == (5, (7, 9))


def test_nothing_is_handed_over_twice() -> None:
    minutes = HistogramThrottle()
    assert len(list(minutes.take("engine", 1, T0, reading(1, 1)))) == 1
    assert minutes.rest("engine") == [] and minutes.targets == []


def test_the_store_holds_the_same_as_of_every_reading(store: Store) -> None:
    """Restarts, idle stretches and gaps, by chance."""
    chance, minutes = random.Random(5), HistogramThrottle()
    held = {}
    for run in ("each", "minutes"):
        store.ensure_run(run)
        held[run] = store.series.intern(run, [KEY])[0]
    low = high = 0.0
    for n in range(300):
        at = T0 + n * 5000
        if chance.random() < 0.03:
            low = high = 0.0  # another process
        low, high = low + chance.randrange(3), high + chance.randrange(2)
        item = reading(low, low + high)
        rows = list(minutes.take("engine", held["minutes"], at, item))
        store.write(Batch("each", histograms=[(held["each"], at, item)]))
        store.write(Batch("minutes", histograms=rows))
    store.write(Batch("minutes", histograms=minutes.rest("engine")))
    found = {
        run: [store.histograms.merged(run, KEY, T0 + m * 60_000, T0 + (m + 1) * 60_000) for m in range(25)]
        for run in held
    }
    assert found["minutes"] == found["each"] and sum(delta.n for (delta,) in found["each"]) > 300
