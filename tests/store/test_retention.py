"""Retention: rows go when they are due, rollups stay, late rows are added, nothing is born expired."""

from dataclasses import replace

import pytest
from sqlalchemy import text

from server.store import Store
from server.store.retention import Retention
from server.store.types import Batch, Bucket, PointState
from tests.store.helpers import DAY, HOUR, MINUTE, SCRAPED, SIGNAL, SLOT, T0, one, put

RAW_ONLY = Retention(raw=2 * DAY, signals=None, rollups=None, records=None)
NOW = T0 + 5 * DAY


def attached(store: Store, at: int) -> None:
    """As if every run had been attached at this time."""
    with store._engines.writable().begin() as connection:
        connection.execute(text("UPDATE runs SET attached_at = :at"), {"at": at})


def expire(store: Store, limits: Retention, now: int = NOW) -> int:
    """All that is due; the number of steps."""
    steps = 0
    while store.retention.step(limits, now):
        steps += 1
        assert steps < 5000, "retention does not end"
    return steps


def count(store: Store, table: str) -> int:
    with store._engines.reading() as connection:
        return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())


def days_of_samples(store: Store, days: int = 5, run: str = "run") -> int:
    """One sample every ten minutes from T0 on: 0, 1, 2, ... Rolled up as a live run is."""
    series = one(store, run)
    put(store, series, [(T0 + n * SLOT, float(n)) for n in range(days * 144)], run)
    store.rollup(run, T0 + days * DAY)
    return series


def test_raw_rows_go_and_rollups_stay(store: Store) -> None:
    """Five days, two are kept: 3 x 144 of 720 rows go, and no bucket of an hour changes."""
    series = days_of_samples(store)
    before = store.samples.buckets(series, T0, NOW, 2 * HOUR)
    attached(store, T0)
    expire(store, RAW_ONLY)
    assert count(store, "samples") == 2 * 144
    assert store.samples.buckets(series, T0, NOW, 2 * HOUR) == before
    assert before[0] == Bucket(T0, 12, 0.0, 11.0, 66.0, 11.0)


def test_a_narrow_chart_of_deleted_rows_reads_rollups(store: Store) -> None:
    """Buckets of 5 s over an hour of the first day: six minutes with a value, as before."""
    series = days_of_samples(store)
    attached(store, T0)
    expire(store, RAW_ONLY)
    found = store.samples.buckets(series, T0, T0 + HOUR, 5_000)
    assert [(b.ts - T0, b.n, b.last) for b in found] == [(n * SLOT, 1, float(n)) for n in range(6)]


def test_a_backfilled_run_is_not_born_expired(store: Store) -> None:
    """History of years ago, attached now, stays for the whole retention."""
    series = days_of_samples(store)
    years = NOW + 1000 * DAY
    expire(store, RAW_ONLY, years)  # stamps the run as attached now
    assert count(store, "samples") == 720
    expire(store, RAW_ONLY, years + 2 * DAY - 1)
    assert count(store, "samples") == 720
    expire(store, RAW_ONLY, years + 2 * DAY)
    assert count(store, "samples") == 0
    assert len(store.samples.buckets(series, T0, NOW, HOUR * 2)) == 60


def test_what_was_never_rolled_up_is_rolled_up_first(store: Store) -> None:
    """A run that ended: no later watermark closes its last minute."""
    series = one(store)
    put(store, series, [(T0 + n, float(n)) for n in range(3)])
    attached(store, T0)
    expire(store, RAW_ONLY)
    assert count(store, "samples") == 0
    assert store.samples.buckets(series, T0, T0 + HOUR, 2 * MINUTE) == [Bucket(T0, 3, 0.0, 2.0, 3.0, 2.0)]


def test_late_rows_are_added_to_the_rollups(store: Store) -> None:
    """Two rows that come after their slot was deleted: 10 below the lowest, 99 newest of the slot."""
    series = days_of_samples(store)
    attached(store, T0)
    expire(store, RAW_ONLY)
    put(store, series, [(T0 + 1000, -10.0), (T0 + 2 * HOUR - 1, 99.0)])
    store.rollup("run", NOW)
    (bucket,) = store.samples.buckets(series, T0, T0 + 2 * HOUR, 2 * HOUR)
    assert bucket == Bucket(T0, 14, -10.0, 99.0, 66.0 - 10 + 99, 99.0)
    assert count(store, "samples") == 2 * 144
    store.rollup("run", NOW)
    assert store.samples.buckets(series, T0, T0 + 2 * HOUR, 2 * HOUR) == [bucket]


def test_late_rows_before_the_deletion_count_once(store: Store) -> None:
    series = days_of_samples(store)
    put(store, series, [(T0 + 1000, -10.0)])
    attached(store, T0)
    expire(store, RAW_ONLY)
    (bucket,) = store.samples.buckets(series, T0, T0 + 2 * HOUR, 2 * HOUR)
    assert (bucket.n, bucket.low, bucket.total) == (13, -10.0, 56.0)


def test_many_series_go_in_pieces(store: Store) -> None:
    """250 series are more than one step takes; a restart in the middle goes on where the last one ended."""
    keys = [replace(SCRAPED, target=f"engine-{n}") for n in range(250)]
    ids = store.series.intern("run", keys)
    store.write(Batch("run", samples=[(n, T0 + 1000 * k, 1.0) for n in ids for k in range(4)]))
    attached(store, T0)
    for _ in range(2):
        store.retention.step(RAW_ONLY, NOW)
    assert 0 < 1000 - count(store, "samples") <= 1000
    put(store, ids[0], [(T0 + 500, 5.0)])
    store.rollup("run", NOW)
    expire(store, RAW_ONLY)
    assert count(store, "samples") == 0
    assert [b.n for b in store.samples.buckets(ids[0], T0, T0 + HOUR, 2 * MINUTE)] == [5]
    assert [b.n for b in store.samples.buckets(ids[249], T0, T0 + HOUR, 2 * MINUTE)] == [4]


def test_signals_expire_by_themselves(store: Store) -> None:
    """One point an hour for five days, two days are kept; the gap point stays a gap in the rollups."""
    series = one(store, "run", SIGNAL)
    points = [(series, T0 + n * HOUR, float(n), PointState.VALUE) for n in range(120)]
    points[1] = (series, T0 + HOUR, None, PointState.UNKNOWN)
    store.write(Batch("run", points=points))
    store.rollup("run", NOW)
    attached(store, T0)
    expire(store, Retention(raw=None, signals=2 * DAY, records=None))
    assert count(store, "points") == 48
    assert [(b.n, b.last) for b in store.samples.buckets(series, T0, T0 + 3 * HOUR, 2 * MINUTE)] == [
        (1, 0.0),
        (0, None),
        (1, 2.0),
    ]


def test_a_hole_of_years_costs_few_steps(store: Store) -> None:
    """Rows of one hour, eleven years ago: each kind skips to its limit."""
    series = one(store, "run", SIGNAL)
    store.write(Batch("run", points=[(series, T0 + n * 1000, 1.0, PointState.VALUE) for n in range(100)]))
    put(store, one(store), [(T0 + n * 1000, 1.0) for n in range(100)])
    attached(store, T0)
    limits = Retention(raw=DAY, signals=DAY, rollups=2 * DAY, records=DAY)
    assert expire(store, limits, T0 + 4000 * DAY) < 20
    assert count(store, "samples") + count(store, "points") + count(store, "rollups") == 0


def test_rollups_expire_where_that_is_configured(store: Store) -> None:
    series = days_of_samples(store)
    attached(store, T0)
    expire(store, Retention(raw=2 * DAY, signals=None, rollups=3 * DAY, records=None))
    assert store.samples.buckets(series, T0, T0 + 2 * DAY, 2 * HOUR) == []
    assert len(store.samples.buckets(series, T0 + 2 * DAY, NOW, 2 * HOUR)) == 36


def test_another_run_is_left_alone(store: Store) -> None:
    """PostgreSQL keeps both in one partition: the old run's rows go, those of a run attached today stay."""
    days_of_samples(store, run="old")
    attached(store, T0)
    days_of_samples(store, run="new")
    expire(store, RAW_ONLY)
    assert count(store, "samples") == 2 * 144 + 720


def test_the_size_limit_deletes_the_oldest_raw_rows(store: Store) -> None:
    """Whatever their age; the newest hour stays even where the limit cannot be met."""
    days_of_samples(store)
    expire(store, Retention(raw=None, signals=None, records=None, max_bytes=1))
    left = count(store, "samples")
    assert left < 720
    size = store.retention.size()
    assert size.oldest_raw is None or size.oldest_raw >= NOW - DAY


def test_the_size_grows_with_the_rows(store: Store) -> None:
    """100,000 samples take more than 1 MB on both databases; the oldest is known to the slot, or to the day."""
    empty = store.retention.size()
    series = one(store)
    put(store, series, [(T0 + n * 1000, float(n)) for n in range(100_000)])
    size = store.retention.size()
    assert empty.oldest_raw is None
    assert size.oldest_raw == T0
    assert size.bytes - empty.bytes > 1_000_000


@pytest.mark.sqlite
def test_sqlite_gives_space_back(store: Store) -> None:
    if store.dialect != "sqlite":
        pytest.skip("PostgreSQL reuses the space of rows by itself")
    series = one(store)
    put(store, series, [(T0 + n * 1000, float(n)) for n in range(600_000)])
    store.rollup("run", T0 + 8 * DAY)
    attached(store, T0)
    with store._engines.reading() as connection:
        before = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    expire(store, Retention(raw=0, signals=None, records=None), T0 + 9 * DAY)
    with store._engines.reading() as connection:
        after = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    assert after < before - 1000
