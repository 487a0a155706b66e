"""The size limit: what goes first, what stays, that the database gets smaller on disk, and what is reported."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from collectors.model import Rollout
from server.lib.errors import ConfigError
from server.runtime.serve import _check_size
from server.store import Store, migrate
from server.store.retention import ROOM_SHARE, WAL_SHARE, Retention
from server.store.types import Batch, PointState
from tests.store.helpers import HOUR, MINUTE, SCRAPED, SIGNAL, T0, rollout_row

NOW = T0 + 30 * HOUR
# Each run: ten hours, of which the newest one stays of a run that goes on.
HOURS = 10
OLD, NEW = T0, T0 + 20 * HOUR
SAMPLES, POINTS, ROLLOUTS = 600, 120, 60
"""Of an hour."""


def fill(store: Store, run: str, start: int, lifecycle: str, times: int = 1) -> None:
    """``times`` as many series and rollouts."""
    keys = [replace(SCRAPED, target=f"engine-{n}") for n in range(times)]
    signals = [replace(SIGNAL, labels=(("n", str(n)),)) for n in range(times)]
    scraped, derived = store.series.intern(run, keys), store.series.intern(run, signals)
    for hour in range(HOURS):
        at = start + hour * HOUR
        samples = [(n, at + 6_000 * i, float(i * n % 977)) for n in scraped for i in range(SAMPLES)]
        points = [(n, at + 30_000 * i, float(i), PointState.VALUE) for n in derived for i in range(POINTS)]
        rollouts = [
            rollout_row(
                "t", Rollout(f"{run}-{hour}-{i}", group_id=f"g{i}", environment="swe", response_tokens=900), 0,
                at + MINUTE * i // times, at + MINUTE * i // times, "trained", at + MINUTE * i // times,
            )
            for i in range(ROLLOUTS * times)
        ]  # fmt: skip
        fields = {"lifecycle": lifecycle, "watermark": at + HOUR}
        store.write(Batch(run, samples=samples, points=points, rollouts=rollouts, run_fields=fields))
    store.rollup(run, start + HOURS * HOUR)
    with store._engines.writable().begin() as connection:
        connection.execute(text("UPDATE runs SET attached_at = :at, collected_at = :now"), {"at": T0, "now": NOW})


_COUNT = {
    "raw": "SELECT count(*) FROM samples WHERE series IN (SELECT id FROM series WHERE run = r.id)",
    "signals": "SELECT count(*) FROM points WHERE series IN (SELECT id FROM series WHERE run = r.id)",
    "records": "SELECT count(*) FROM rollouts WHERE rollouts.run = r.id",
}


def counts(store: Store) -> dict[str, int]:
    """``old raw`` and so on -> rows."""
    columns = ", ".join(f"({sql})" for sql in _COUNT.values())
    with store._engines.reading() as connection:
        rows = connection.execute(text(f"SELECT r.name, {columns} FROM runs r WHERE r.name IN ('old', 'new')")).all()
    return {f"{name} {kind}": int(n) for name, *numbers in rows for kind, n in zip(_COUNT, numbers, strict=True)}


def test_what_goes_first_and_what_stays(store: Store) -> None:
    """A limit that cannot be met: all of the ended run's raw rows, the other's, signals, records of the ended run, of
    the other one. First the newest hour of the run that goes on stays, in the end a quarter of it."""
    fill(store, "old", OLD, "finished")
    fill(store, "new", NEW, "running")
    whole = counts(store)
    assert whole["old raw"] == whole["new raw"] == HOURS * SAMPLES
    limits = Retention(raw=None, signals=None, records=None, max_bytes=1)
    order, before, hour = list[str](), whole, None
    for _ in range(2_000):
        if not store.retention.step(limits, NOW):
            break
        now = counts(store)
        if now["new records"] < before["new records"] == ROLLOUTS:
            hour = before
        order += [name for name in now if now[name] < before[name] and name not in order]
        before = now
    else:
        raise AssertionError("the size limit does not end")
    assert order[:2] == ["old raw", "new raw"] and set(order[2:4]) == {"old signals", "new signals"}
    assert order[4:] == ["old records", "new records"]
    assert {name: n for name, n in before.items() if name.startswith("old")} == dict.fromkeys(
        ("old raw", "old signals", "old records"), 0
    )
    assert hour is not None
    assert (hour["new raw"], hour["new signals"]) == (SAMPLES // 2, POINTS // 2)
    # Samples and signals are deleted by ten minutes: of a quarter of an hour, twenty stay.
    assert (before["new raw"], before["new signals"], before["new records"]) == (
        SAMPLES // 3,
        POINTS // 3,
        ROLLOUTS // 4,
    )
    # Rollups stay: a chart of the ended run has its numbers.
    (first, *_) = store.series.intern("old", [SCRAPED])
    (bucket,) = store.samples.buckets(first, OLD, OLD + HOUR, HOUR)
    assert bucket.n == SAMPLES
    cut = store.retention.deleted_by_size(limits, NOW)
    ten = NEW + 9 * HOUR + 40 * MINUTE
    quarter = 15 * MINUTE
    assert cut == {"raw": ten, "signals": ten, "records": ten + 5 * MINUTE}
    assert store.retention.deleted_by_size(Retention(raw=quarter, signals=quarter, records=quarter), NOW) == {}


def test_the_database_gets_smaller_on_disk(store: Store) -> None:
    fill(store, "old", OLD, "finished", 12)
    fill(store, "new", NEW, "running", 12)
    natural = store.retention.size().bytes
    least = store.retention.least_bytes(NOW)
    limit = least + (natural - least) // 2
    limits = Retention(raw=None, signals=None, records=None, max_bytes=limit)
    for _ in range(5_000):
        if not store.retention.step(limits, NOW):
            break
    size = store.retention.size()
    assert size.on_disk <= limit < natural, (size, limit, natural)
    left = counts(store)
    # No more than needed: records of the run that goes on are all there.
    assert left["new records"] == 12 * HOURS * ROLLOUTS
    assert left["old raw"] < 12 * HOURS * SAMPLES


def test_sqlites_log_stays_below_its_share_between_two_steps(tmp_path: Path) -> None:
    """A back-fill writes more between two steps than the log may take: after the first one SQLite empties it itself."""
    url = f"sqlite:///{tmp_path}/store.db"
    migrate(url)
    with closing(Store.open(url)) as store:
        fill(store, "old", OLD, "finished", 12)
        limit = 20_000_000
        assert store.retention.size().wal_bytes > WAL_SHARE * limit
        while store.retention.step(Retention(raw=None, signals=None, records=None, max_bytes=limit), NOW):
            pass
        fill(store, "new", NEW, "running", 12)
        # The newest transaction may be in it beyond the share.
        assert store.retention.size().wal_bytes < 1.5 * WAL_SHARE * limit


def test_the_least_size_can_be_met_and_hardly_less(store: Store) -> None:
    fill(store, "old", OLD, "finished", 6)
    fill(store, "new", NEW, "running", 6)
    least = store.retention.least_bytes(NOW)
    for _ in range(5_000):
        if not store.retention.step(Retention(raw=None, signals=None, records=None, max_bytes=1), NOW):
            break
    room = ROOM_SHARE[store.dialect]
    assert 0.75 * least <= store.retention.size().on_disk / (1 - room) <= 1.25 * least


def test_a_limit_below_what_stays_is_refused_with_the_smallest_possible(store: Store) -> None:
    fill(store, "new", NEW, "running")
    least = store.retention.least_bytes(NOW)
    _check_size(store, None)
    _check_size(store, 2 * least)
    with pytest.raises(ConfigError) as error:
        _check_size(store, 1_000)
    (text,) = error.value.problems
    assert text.startswith("store.max_size: 0MB is too small") and "; the smallest possible is " in text
    _check_size(store, int(text.split()[-1].removesuffix("MB")) * 1_000_000)
