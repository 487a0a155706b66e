"""Packed samples: nothing is lost, every reader returns the same as before, late samples are added."""

import math
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sqlalchemy import text

from server.store import Store, chunks
from server.store.chunks import BLOCK
from server.store.retention import Retention
from server.store.transfer import copy
from server.store.types import Bucket, SeriesKey
from tests.store.helpers import DAY, HOUR, MINUTE, T0, put
from tests.store.test_retention import NOW, RAW_ONLY, attached, count, expire

STEP = 15_000
KEPT = Retention(raw=None, signals=None, rollups=None, records=None)


def bits(samples: list[tuple[int, float]]) -> list[tuple[int, bytes]]:
    return [(ts, struct.pack("<d", value)) for ts, value in samples]


VALUES = st.one_of(
    st.floats(), st.integers(-(1 << 60), 1 << 60).map(float), st.sampled_from([0.0, -0.0, 0.1, 1e6 + 0.25, math.inf]),
    st.decimals(-1000, 1000, places=3).map(float),
)  # fmt: skip


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(-(1 << 40), 1 << 42), min_size=1, max_size=9, unique=True),
            st.lists(VALUES, min_size=9),
        ),
        max_size=6,
    )
)
@example([([1], [0.0] * 9), ([1, 2, 3], [5.0] * 9), ([1, 2, 3], [float(n) for n in range(9)])])
def test_every_sample_comes_back_bit_by_bit(columns: list[tuple[list[int], list[float]]]) -> None:
    series = {n: list(zip(sorted(times), values, strict=False)) for n, (times, values) in enumerate(columns)}
    body = chunks.encode(series)
    assert {n: bits(found) for n, found in chunks.decode(body).items()} == {n: bits(s) for n, s in series.items()}
    for n, samples in series.items():
        assert bits(chunks.decode(body, n)[n]) == bits(samples)


def test_a_page_of_counters_and_gauges_takes_less_than_a_byte_a_sample() -> None:
    """32 series, 240 times with a jitter of 4 ms: half count by 0 to 6, half are ratios in thousandths."""
    times = [T0 + n * STEP + n * 7 % 5 for n in range(240)]
    series = {
        n: [
            (ts, float(place * 3 + n * place % 7) if n % 2 else (n * place * 37 % 1000) / 1000)
            for place, ts in enumerate(times)
        ]
        for n in range(32)
    }
    assert len(chunks.encode(series)) / (32 * 240) < 1.0


def test_another_version_is_refused() -> None:
    import zlib  # noqa: PLC0415

    body = bytearray(zlib.decompress(chunks.encode({1: [(T0, 1.0)]})))
    body[0] = 9
    with pytest.raises(ValueError, match="version 9"):
        chunks.decode(zlib.compress(bytes(body)))


# ---- the store


def filled(store: Store, hours: float = 6, run: str = "run", series: int = 3) -> list[int]:
    """A sample every 15 s of each series: its place, plus a thousand per series. Rolled up as a live run is."""
    ids = sorted(store.series.intern(run, [SeriesKey("engine-0", "m", (("n", str(n)),)) for n in range(series)]))
    for place, number in enumerate(ids):
        put(store, number, [(T0 + n * STEP, 1000.0 * place + n) for n in range(round(hours * 240))], run)
    store.rollup(run, T0 + round(hours * HOUR))
    return ids


def pack(store: Store) -> int:
    """All that is due; the number of steps."""
    steps = 0
    while store.chunks.step():
        steps += 1
        assert steps < 1000, "packing does not end"
    return steps


def everything(store: Store, ids: list[int], run: str = "run") -> dict[str, Any]:
    """What every reader returns, within and across hours."""
    spans = ((0, HOUR), (50 * MINUTE, 70 * MINUTE), (3 * HOUR + 1, 5 * HOUR), (0, DAY))
    return {
        "raw": [store.samples.buckets(n, T0 + a, T0 + b, w) for n in ids for a, b in spans for w in (1, STEP, MINUTE)],
        "rolled": {(n, w): store.samples.buckets(n, T0, T0 + DAY, w) for n in ids for w in (120_000, 2 * HOUR)},
        "window": [sorted(store.samples.window(run, None, T0 + a, T0 + b)) for a, b in spans],
        "newest": sorted(store.samples.newest(run, None)),
        "after": [store.samples.after(run, T0 + at) for at in (-1, HOUR // 2, 4 * HOUR + 7)],
    }  # fmt: skip


def test_every_reader_returns_the_same(store: Store) -> None:
    """Of six hours the first five are packed: 20 minutes after the fifth have not passed the sixth's end at 5:40."""
    ids = filled(store)
    other = filled(store, run="other", series=2)
    before = everything(store, ids), everything(store, other, "other")
    assert before[0]["window"][0][0][2][:2] == [(T0, 0.0), (T0 + STEP, 1.0)]
    pack(store)
    assert count(store, "samples") == (3 + 2) * 240
    assert count(store, "chunks") == 2 * 5
    assert (everything(store, ids), everything(store, other, "other")) == before
    assert pack(store) == 0


def test_series_are_packed_by_blocks_of_32(store: Store) -> None:
    ids = filled(store, 2.5, series=2 * BLOCK)
    before = everything(store, ids[:2] + ids[-2:])
    pack(store)
    assert count(store, "chunks") == 2 * len({number // BLOCK for number in ids})
    assert everything(store, ids[:2] + ids[-2:]) == before


def test_a_late_sample_is_added(store: Store) -> None:
    """One at 1:00:07 into a packed hour: seen at once, in its minute's rollup after the recomputation, packed again."""
    first, second, _ = filled(store)
    pack(store)
    at = T0 + HOUR + 7_000
    put(store, second, [(at, 5.0), (T0 + HOUR, -1.0)])
    minute = [1240.0, 5.0, 1241.0, 1242.0, 1243.0]

    def check() -> None:
        raw = store.samples.window("run", None, T0 + HOUR, T0 + HOUR + MINUTE)
        assert {n: [v for _, v in rows] for n, _, rows in raw}[second] == minute
        (bucket,) = store.samples.buckets(second, T0 + HOUR, T0 + HOUR + MINUTE, MINUTE)
        assert bucket == Bucket(T0 + HOUR, 5, 5.0, 1243.0, sum(minute), 1243.0)

    check()
    store.rollup("run", T0 + 6 * HOUR)
    check()
    wide = store.samples.buckets(second, T0 + HOUR, T0 + 2 * HOUR, 2 * MINUTE)[0]
    assert wide == Bucket(T0 + HOUR, 9, 5.0, 1247.0, sum(minute) + 1244 + 1245 + 1246 + 1247, 1247.0)
    assert count(store, "samples") == 3 * 240 + 3 * 240 + 1
    pack(store)
    check()
    assert count(store, "samples") == 3 * 240
    assert store.samples.buckets(first, T0, T0 + DAY, 2 * HOUR)[0].n == 480


def test_a_sample_that_comes_while_its_hour_is_packed_is_not_lost(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    (number,) = filled(store, series=1)
    encode: Callable[..., bytes] = chunks.encode
    late = [(T0 + 7_000, 5.0)]

    def slow(rows: Any) -> bytes:
        if late:
            put(store, number, [late.pop()])
        return encode(rows)

    monkeypatch.setattr(chunks, "encode", slow)
    assert store.chunks.step()
    assert (count(store, "chunks"), count(store, "samples")) == (0, 6 * 240 + 1)
    store.rollup("run", T0 + 6 * HOUR)
    pack(store)
    assert count(store, "samples") == 240
    assert store.samples.buckets(number, T0, T0 + MINUTE, MINUTE) == [Bucket(T0, 5, 0.0, 5.0, 11.0, 3.0)]


def test_an_interrupted_step_changes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = filled(store)
    before = everything(store, ids)
    with monkeypatch.context() as patch:
        patch.setattr("server.store.chunks.upsert", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            store.chunks.step()
    assert (count(store, "chunks"), count(store, "samples")) == (0, 3 * 6 * 240)
    pack(store)
    assert everything(store, ids) == before


def test_the_backlog_is_the_hours_that_are_due(store: Store) -> None:
    """Of six hours five are due; a late sample in the second makes the second to the fifth due again."""
    _, second, _ = filled(store)
    filled(store, 3, run="other", series=1)
    assert store.chunks.backlog() == 5 + 2
    assert store.chunks.step()
    assert store.chunks.backlog() == 5 + 2  # of the first hour the series are packed, and the next hour is not begun
    pack(store)
    assert store.chunks.backlog() == 0
    put(store, second, [(T0 + HOUR + 7_000, 5.0)])
    store.rollup("run", T0 + 6 * HOUR)
    assert store.chunks.backlog() == 4


def test_deleted_hours_are_no_backlog(store: Store) -> None:
    """Of 5 days 2 are kept: 48 hours, of which the last is open."""
    filled(store, 5 * 24, series=1)
    attached(store, T0)
    expire(store, RAW_ONLY)
    assert store.chunks.backlog() == 47


def test_the_open_hour_after_the_deleted_ones_is_not_packed(store: Store) -> None:
    """Of 25 hours the last is kept: 240 rows, which are packed when 20 minutes have passed after their hour."""
    filled(store, 25, series=1)
    attached(store, T0)
    expire(store, Retention(raw=HOUR, signals=None, rollups=None, records=None), T0 + 25 * HOUR)
    assert count(store, "samples") == 240
    pack(store)
    assert (count(store, "samples"), count(store, "chunks")) == (240, 0)


def test_an_open_hour_and_one_with_late_samples_stay(store: Store) -> None:
    (number,) = filled(store, 1.25, series=1)
    assert pack(store) == 0  # closed up to 1:14, and the hour is packed at 1:20
    put(store, number, [(T0 + n * STEP, float(n)) for n in range(300, 340)])
    store.rollup("run", T0 + 85 * MINUTE)
    put(store, number, [(T0 + 7_000, 5.0)])
    assert pack(store) == 0
    store.rollup("run", T0 + 85 * MINUTE)
    assert pack(store) > 0
    assert count(store, "samples") == 340 + 1 - 241


def test_a_hole_of_a_year_is_jumped_over(store: Store) -> None:
    (number,) = filled(store, 2, series=1)
    put(store, number, [(T0 + 365 * DAY + n * STEP, 1.0) for n in range(480)])
    store.rollup("run", T0 + 365 * DAY + 2 * HOUR)
    assert pack(store) < 60  # a step for the day of the hole's end and for each hour in it, on PostgreSQL
    assert count(store, "samples") == 240


def test_retention_deletes_packed_samples(store: Store) -> None:
    """Of 5 days 2 are kept: 48 hours of chunks and rows; each hour is deleted as a whole."""
    ids = filled(store, 5 * 24, series=1)
    pack(store)
    wide = store.samples.buckets(ids[0], T0, NOW, 2 * HOUR)
    attached(store, T0)
    expire(store, RAW_ONLY)
    assert (count(store, "chunks"), count(store, "samples")) == (47, 240)
    assert store.retention.size().oldest_raw == T0 + 3 * DAY
    assert store.samples.buckets(ids[0], T0, NOW, 2 * HOUR) == wide


def test_the_size_limit_deletes_the_oldest_hours_only(store: Store) -> None:
    """Each step deletes an hour (PostgreSQL: a day); the limit is met long before all is gone."""
    filled(store, 3 * 24, series=1)
    pack(store)
    attached(store, T0)
    before = count(store, "chunks")
    limit = Retention(raw=None, signals=None, rollups=None, records=None, max_bytes=1)
    while count(store, "chunks") == before:
        assert store.retention.step(limit, T0 + 3 * DAY)
    assert before - count(store, "chunks") == 1


def test_a_run_is_deleted_with_its_chunks(store: Store) -> None:
    filled(store)
    filled(store, run="other")
    pack(store)
    assert store.remove("run", T0 + 30 * DAY)
    with store._engines.reading() as connection:
        assert connection.execute(
            text("SELECT DISTINCT r.name FROM chunks c JOIN runs r ON r.id = c.run")
        ).scalars().all() == ["other"]


def test_a_copy_holds_the_chunks(store: Store, tmp_path: Any) -> None:
    ids = filled(store)
    pack(store)
    copied = {table.table: table.rows for table in copy(store.url, f"sqlite:///{tmp_path}/copy.db")}
    assert copied["chunks"] == 5
    with_copy = Store.open(f"sqlite:///{tmp_path}/copy.db")
    try:
        assert everything(with_copy, ids) == everything(store, ids)
    finally:
        with_copy.close()


def test_a_state_an_hour_ago_is_read_from_closed_minutes(store: Store) -> None:
    """At 1:30:10 of packed hours: the last sample of the minute before it, 15 s old."""
    ids = filled(store)
    pack(store)
    found = store.generators.told("run", ["m"], T0 + 90 * MINUTE + 10_000)
    assert [(row.series, row.last, row.last_ts) for row in found] == [
        (number, 1000.0 * place + 359, T0 + 90 * MINUTE - STEP) for place, number in enumerate(ids)
    ]
