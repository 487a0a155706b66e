"""Histograms: resets, new edges and late readings, each counted exactly once."""

from itertools import accumulate, count, pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.exc import DBAPIError

from collectors.model import Histogram
from server.store import Store
from server.store.histograms import merge
from server.store.types import Batch, HistogramDelta, SeriesKey
from tests.store.helpers import FOREVER, MINUTE, T0

KEY = SeriesKey("engine-0", "latency_seconds")
EDGES = {"old": (1.0, 2.0, 4.0), "new": (0.5, 8.0)}
RUNS = count()
PROPERTY = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def reading(per_bucket: tuple[int, ...], edges: tuple[float, ...], total: float = 0.0) -> Histogram:
    return Histogram(KEY.metric, edges, tuple(float(n) for n in accumulate(per_bucket)), total)


# One scrape: what was observed since the one before, and whether the process was restarted in between.
SCRAPE = st.tuples(
    st.lists(st.integers(0, 5), min_size=4, max_size=4), st.sampled_from(["same", "same", "same", "reset", "edges"])
)


def live(scrapes: list[tuple[list[int], str]]) -> tuple[list[Histogram], dict[tuple[float, ...], list[int]]]:
    """A process (and its successors) as scraped, and what was truly observed after the first scrape, per layout."""
    edges, counts = EDGES["old"], [0] * 4
    readings: list[Histogram] = []
    truth: dict[tuple[float, ...], list[int]] = {}
    for seen, what in scrapes:
        grown = seen[: len(edges) + 1]
        if what == "edges":
            edges = EDGES["new"] if edges == EDGES["old"] else EDGES["old"]
            grown = seen[: len(edges) + 1]
            counts = [0] * len(grown)
        # A reset shows only when a count falls; a restart that is already further on cannot be told from growth.
        if what == "reset" and any(a < b for a, b in zip(accumulate(grown), accumulate(counts), strict=True)):
            counts = [0] * len(grown)
        counts = [a + b for a, b in zip(counts, grown, strict=True)]
        if readings:
            old = truth.get(edges, [0] * len(grown))
            truth[edges] = [a + b for a, b in zip(old, grown, strict=True)]
        readings.append(reading(tuple(counts), edges))
    return readings, truth


@PROPERTY
@given(scrapes=st.lists(SCRAPE, min_size=1, max_size=12), split=st.integers(1, 4), again=st.booleans())
def test_what_was_observed_is_what_is_stored(
    store: Store, scrapes: list[tuple[list[int], str]], split: int, again: bool
) -> None:
    run = f"run-{next(RUNS)}"
    (series,) = store.series.intern(run, [KEY])
    readings, truth = live(scrapes)
    rows = [(series, T0 + n * 20_000, h) for n, h in enumerate(readings)]
    for at in range(0, len(rows), split):
        batch = Batch(run, histograms=rows[at : at + split][::-1])  # within a batch any order
        store.write(batch)
        if again:
            store.write(batch)
    found = {delta.edges: delta for delta in store.histograms.merged(run, KEY, 0, FOREVER)}
    want = {edges: [float(n) for n in counts] for edges, counts in truth.items() if sum(counts)}
    assert {edges: list(delta.counts) for edges, delta in found.items()} == want
    assert all(delta.n == sum(delta.counts) for delta in found.values())


def test_expected_numbers_by_minute(store: Store) -> None:
    (series,) = store.series.intern("run", [KEY])
    edges = (1.0, 2.0)
    told = [
        (0, reading((5, 0, 0), edges, 2.0)),  # base line
        (30_000, reading((6, 1, 0), edges, 4.0)),  # minute 0: +1, +1
        (MINUTE, reading((6, 1, 2), edges, 14.0)),  # minute 1: two beyond the last edge
        (MINUTE + 1, reading((1, 0, 0), edges, 0.5)),  # minute 1: restarted, one observation since
        (2 * MINUTE, reading((1, 0, 0), edges, 0.5)),  # minute 2: nothing
    ]
    for at, histogram in told:
        store.write(Batch("run", histograms=[(series, T0 + at, histogram)]))
    assert store.histograms.merged("run", KEY, T0, T0 + MINUTE) == [HistogramDelta(edges, (1.0, 1.0, 0.0), 2.0, 2.0)]
    assert store.histograms.merged("run", KEY, T0 + MINUTE, FOREVER) == [
        HistogramDelta(edges, (1.0, 0.0, 2.0), 10.5, 3.0)
    ]
    assert store.histograms.merged("run", KEY, T0 + 2 * MINUTE, FOREVER) == []


def test_a_late_reading_is_already_in_the_later_one(store: Store) -> None:
    (series,) = store.series.intern("run", [KEY])
    edges = (1.0,)
    for at, n in ((0, 1), (40_000, 9), (20_000, 4), (60_000, 10)):
        store.write(Batch("run", histograms=[(series, T0 + at, reading((n, 0), edges))]))
    (whole,) = store.histograms.merged("run", KEY, 0, FOREVER)
    assert whole.n == 9.0


def test_the_layout_cache_survives_a_new_process_and_a_failure(store: Store) -> None:
    (series,) = store.series.intern("run", [KEY])
    bad = Batch("run", histograms=[(series, T0, reading((1, 0), (1.0,)))], cursors={"t": None})  # type: ignore[dict-item]
    with pytest.raises(DBAPIError, match="cursors"):
        store.write(bad)
    other = Store.open(store.url)
    (else_,) = other.series.intern("run", [SeriesKey("t", "else")])
    other.write(Batch("run", histograms=[(else_, T0, reading((1, 0), (7.0,)))]))  # takes the id that was given back
    store.write(Batch("run", histograms=[(series, T0, reading((1, 0), (1.0,)))]))
    other.write(Batch("run", histograms=[(series, T0 + 1, reading((2, 0), (1.0,)))]))
    other.write(Batch("run", histograms=[(series, T0, reading((2, 0), (1.0,)))]))
    assert store.histograms.merged("run", KEY, 0, FOREVER) == [HistogramDelta((1.0,), (1.0, 0.0), 0.0, 1.0)]
    other.close()


def test_a_malformed_histogram_does_not_stop_its_batch(store: Store) -> None:
    (series,) = store.series.intern("run", [KEY])
    wrong = [Histogram("h", (1.0,), (1.0,), 0.0), Histogram("h", (1.0,), (1.0, float("nan")), 0.0)]
    store.write(Batch("run", histograms=[(series, T0 + n, h) for n, h in enumerate(wrong)], cursors={"t": "{}"}))
    assert store.runs.cursors("run") == {"t": "{}"}


DELTAS = st.builds(
    lambda counts: HistogramDelta((1.0, 2.0), tuple(map(float, counts)), float(sum(counts)), float(sum(counts))),
    st.lists(st.integers(0, 9), min_size=3, max_size=3),
)


@given(st.lists(DELTAS, min_size=2, max_size=8), st.randoms(use_true_random=False))
def test_merging_is_free_of_order_and_grouping(deltas: list[HistogramDelta], order: object) -> None:
    whole = merge(deltas)
    shuffled = list(deltas)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    assert merge(shuffled) == whole
    assert merge([*merge(deltas[:1]), *merge(deltas[1:])]) == whole
    assert all(a.edges == b.edges for a, b in pairwise(deltas))
