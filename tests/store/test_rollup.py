"""Rollups: whatever the order, the split and the lateness, buckets say what the raw rows say."""

from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.store import Store, fit_width
from server.store.types import Batch, Bucket, PointState
from tests.store.helpers import DAY, FOREVER, HOUR, MINUTE, SCRAPED, SIGNAL, SLOT, T0, expected, one, put

RUNS = count()
"""Hypothesis reuses the fixture: each example gets a run of its own."""

# Whole numbers, so that sums are exact in any order; five hours, so that every tier has closed and open buckets.
ROWS = st.dictionaries(st.integers(0, 5 * HOUR // 1000), st.integers(-1000, 1000) | st.none(), max_size=60)
WIDTHS = st.sampled_from([1_000, 6_000, 90_000, 2 * MINUTE, SLOT, 2 * SLOT, HOUR, 2 * HOUR])
PROPERTY = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@PROPERTY
@given(
    rows=ROWS,
    order=st.randoms(use_true_random=False),
    ticks=st.lists(st.integers(0, 5 * HOUR), max_size=4),
    width=WIDTHS,
)
def test_any_split_and_order_gives_the_same(
    store: Store, rows: dict[int, int | None], order: object, ticks: list[int], width: int
) -> None:
    """Rows arrive shuffled, in as many batches as there are ticks, with a rollup after each."""
    run = f"run-{next(RUNS)}"
    series = one(store, run, SIGNAL)
    told = [(T0 + 1000 * at, None if v is None else float(v)) for at, v in rows.items()]
    shuffled = list(told)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    parts = len(ticks) + 1
    for n, tick in enumerate([*sorted(ticks), 5 * HOUR + MINUTE]):
        points = [
            (series, ts, v, PointState.VALUE if v is not None else PointState.UNKNOWN) for ts, v in shuffled[n::parts]
        ]
        store.write(Batch(run, points=points))
        store.rollup(run, T0 + tick)
    assert store.samples.buckets(series, T0, T0 + 5 * HOUR + 1, width) == expected(told, width)


@PROPERTY
@given(rows=ROWS, cut=st.integers(0, 5 * HOUR), width=WIDTHS)
def test_samples_too(store: Store, rows: dict[int, int | None], cut: int, width: int) -> None:
    """The same for raw samples, half of them late."""
    run = f"run-{next(RUNS)}"
    series = one(store, run, SCRAPED)
    told = [(T0 + 1000 * at, float(v)) for at, v in rows.items() if v is not None]
    put(store, series, told[::2], run)
    store.rollup(run, T0 + cut)
    put(store, series, told[1::2], run)
    store.rollup(run, T0 + cut)
    assert store.samples.buckets(series, T0, T0 + 5 * HOUR + 1, width) == expected(told, width)


def test_expected_numbers(store: Store) -> None:
    """Two hours at 5 s: 0, 1, 2 ... 1439. Hour 0 has 0..719, whose sum is 719 * 720 / 2."""
    series = one(store)
    put(store, series, [(T0 + n * 5_000, float(n)) for n in range(1440)])
    store.rollup("run", T0 + 3 * HOUR)
    assert store.samples.buckets(series, T0, T0 + 2 * HOUR, 20 * MINUTE)[0] == Bucket(
        T0, 240, 0.0, 239.0, 28_680.0, 239.0
    )
    (whole,) = store.samples.buckets(series, T0, T0 + 2 * HOUR, 2 * HOUR)
    assert whole == Bucket(T0, 1440, 0.0, 1439.0, 1_036_080.0, 1439.0)
    minute = store.samples.buckets(series, T0, T0 + 2 * MINUTE, 2 * MINUTE)
    assert minute == [Bucket(T0, 24, 0.0, 23.0, 276.0, 23.0)]


@pytest.mark.parametrize("closed", [1, 9, 10, 11, 59, 60, 61, 125, 150, 299, 300, 301])
def test_what_no_coarse_bucket_holds_yet_is_read_finer(store: Store, closed: int) -> None:
    """One row a minute for five hours, closed up to a minute that may lie anywhere in a coarse bucket."""
    series = one(store)
    told = [(T0 + n * MINUTE, float(n)) for n in range(300)]
    put(store, series, told)
    store.rollup("run", T0 + closed * MINUTE, lateness_ms=0)
    for width in (2 * MINUTE, SLOT, 2 * SLOT, HOUR, 2 * HOUR):
        assert store.samples.buckets(series, T0, T0 + 5 * HOUR, width) == expected(told, width)


def test_a_spike_survives_every_zoom(store: Store) -> None:
    series = one(store)
    put(store, series, [(T0 + n * 5_000, 1e6 if n == 777 else 1.0) for n in range(3000)])
    store.rollup("run", T0 + DAY)
    for width in (5_000, 2 * MINUTE, 20 * MINUTE, 2 * HOUR):
        assert max(b.high or 0 for b in store.samples.buckets(series, T0, T0 + 5 * HOUR, width)) == 1e6


def test_gaps_break_the_line_and_do_not_count(store: Store) -> None:
    series = one(store, key=SIGNAL)
    points = [(series, T0, 2.0, 0), (series, T0 + 5_000, None, 1), (series, T0 + MINUTE * 2, None, 2)]
    store.write(Batch("run", points=points))
    want = [Bucket(T0, 1, 2.0, 2.0, 2.0, 2.0), Bucket(T0 + 2 * MINUTE, 0, None, None, 0.0, None)]
    assert store.samples.buckets(series, T0, T0 + HOUR, 2 * MINUTE) == want
    store.rollup("run", T0 + HOUR)
    assert store.samples.buckets(series, T0, T0 + HOUR, 2 * MINUTE) == want
    assert list(store.samples.window("run", None, 0)) == [(series, SIGNAL, [(T0, 2.0)])]


def test_a_late_row_reaches_every_tier(store: Store) -> None:
    series = one(store)
    put(store, series, [(T0 + n * MINUTE, 1.0) for n in range(300)])
    store.rollup("run", T0 + 5 * HOUR)
    put(store, series, [(T0 + 90_000, 50.0)])
    store.rollup("run", T0 + 5 * HOUR)  # the same watermark: only the dirty slot is due
    for width in (2 * MINUTE, 20 * MINUTE, 2 * HOUR):
        assert store.samples.buckets(series, T0, T0 + 1, width)[0].high == 50.0


def test_a_bucket_stays_open_for_the_lateness(store: Store) -> None:
    """Read from the rows, so late ones show at once; only what is closed waits for the next rollup."""
    series = one(store)
    put(store, series, [(T0, 1.0), (T0 + MINUTE, 1.0)])
    store.rollup("run", T0 + 2 * MINUTE + 9_999, lateness_ms=10_000)
    put(store, series, [(T0 + 1, 5.0), (T0 + MINUTE + 1, 5.0)])
    both = store.samples.buckets(series, T0, T0 + 2 * MINUTE, 2 * MINUTE)
    assert [(b.n, b.total) for b in both] == [(3, 7.0)]
    store.rollup("run", T0 + 2 * MINUTE + 10_000, lateness_ms=10_000)
    assert [(b.n, b.total) for b in store.samples.buckets(series, T0, T0 + 2 * MINUTE, 2 * MINUTE)] == [(4, 12.0)]


def test_a_hole_of_a_year_is_jumped_over(store: Store) -> None:
    """Two points a year apart: a loop over its 52,560 slots would take minutes."""
    series = one(store, key=SIGNAL)
    store.write(Batch("run", points=[(series, T0, 1.0, 0), (series, T0 + 365 * DAY, 2.0, 0)]))
    store.rollup("run", T0 + 366 * DAY)
    assert [b.total for b in store.samples.buckets(series, 0, T0 + 366 * DAY, 2 * HOUR)] == [1.0, 2.0]


def test_runs_do_not_mix(store: Store) -> None:
    mine, other = one(store, "a"), one(store, "b")
    put(store, mine, [(T0, 1.0)], "a")
    put(store, other, [(T0, 2.0)], "b")
    store.rollup("a", T0 + HOUR)
    put(store, other, [(T0 + 1, 3.0)], "b")
    store.rollup("b", T0 + HOUR)
    assert [b.total for b in store.samples.buckets(mine, T0, T0 + 1, 2 * MINUTE)] == [1.0]
    assert [b.total for b in store.samples.buckets(other, T0, T0 + 1, 2 * MINUTE)] == [5.0]


def test_edges_are_whole_buckets(store: Store) -> None:
    series = one(store)
    put(store, series, [(T0 + n * 1_000, 1.0) for n in range(60)])
    found = store.samples.buckets(series, T0 + 15_000, T0 + 25_000, 10_000)
    assert [(b.ts - T0, b.n) for b in found] == [(10_000, 10), (20_000, 10)]
    assert store.samples.buckets(series, T0 + HOUR, FOREVER, 10_000) == []


@pytest.mark.parametrize(
    ("asked", "used"),
    [(0, 1), (6_000, 6_000), (119_999, 119_999), (120_000, 120_000), (144_000, 180_000), (1_008_000, 1_020_000),
     (1_200_000, 1_200_000), (1_200_001, 1_800_000), (7_200_001, 10_800_000)],
)  # fmt: skip
def test_widths_are_rounded_up_to_the_tier(asked: int, used: int) -> None:
    assert fit_width(asked) == used
