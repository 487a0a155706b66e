"""Deleting a run: none of its rows is left in any table, other runs keep all of theirs."""

import pytest
from sqlalchemy import func, select

from collectors.model import Event, Rollout
from server.store import Store
from server.store.removal import COLLECTED_MS, RunInUse
from server.store.tables import metadata
from server.store.types import Batch, PointState, SeriesKey
from tests.store.helpers import DAY, HOUR, MINUTE, SCRAPED, SIGNAL, T0, put, rollout_row

NOW = T0 + 10 * DAY


def fill(store: Store, run: str) -> tuple[int, int]:
    """Rows of several kinds; (ids of a sample's and a signal's series)."""
    scraped, signal = store.series.intern(run, [SCRAPED, SIGNAL])
    put(store, scraped, [(T0 + n * MINUTE, float(n)) for n in range(3 * 60)], run)
    points = [(signal, T0 + n * MINUTE, 1.0, PointState.VALUE) for n in range(120)]
    batch = Batch(
        run, points=points, events=[(T0, Event("restart", "k", "d"))], cursors={"t": "{}"}, facts={"gpus": 8.0}
    )
    batch.counters[signal] = 4.0
    batch.rollouts = [
        rollout_row("t", Rollout(f"r{n}", environment="swe", response_tokens=900), 0, T0 + n, T0 + n, "trained", T0 + n)
        for n in range(3)
    ]
    store.write(batch)
    store.rollup(run, T0 + 3 * HOUR)
    store.write(Batch(run, incarnations=[(1, T0)]))
    return scraped, signal


def rows(store: Store) -> dict[str, int]:
    tables = [table for part in metadata(store.dialect) for table in part.sorted_tables]
    with store._engines.reading() as connection:
        return {t.name: connection.execute(select(func.count()).select_from(t)).scalar_one() for t in tables}


def test_nothing_of_the_run_is_left(store: Store) -> None:
    fill(store, "other")
    before = rows(store)
    fill(store, "run")
    assert rows(store)["samples"] == 360
    assert store.remove("run", NOW)
    left = rows(store)
    # The highest ids stay as one hidden row each, so that they are not given out again.
    assert left == before | {"runs": 2, "series": 3}
    assert [row.name for row in store.runs.all()] == ["other"]
    assert store.runs.get("run") is None


def test_a_run_of_the_same_name_begins_empty(store: Store) -> None:
    """With new ids: neither this process nor a reader may take the old rows' ids for the new ones."""
    old = fill(store, "run")
    store.remove("run", NOW)
    new = fill(store, "run")
    assert not set(old) & set(new)
    assert sorted(len(found) for _, _, found in store.samples.window("run", None, 0)) == [120, 180]
    assert store.runs.get("run").facts == {"gpus": 8.0}  # type: ignore[union-attr]


def test_another_process_deletes_the_run(store: Store) -> None:
    """The ids that this process cached are void when the run is made again."""
    store.ensure_run("run")
    fill(store, "run")
    other = Store.open(store.url)
    assert other.remove("run", NOW)
    other.close()
    store.ensure_run("run")
    fill(store, "run")
    assert {key for _, key in store.series.listed("run")} == {SCRAPED, SIGNAL}


def test_a_run_in_use_is_refused(store: Store) -> None:
    fill(store, "run")
    store.write(Batch("run", run_fields={"collected_at": NOW}))
    with pytest.raises(RunInUse, match="run is being collected: remove it from the configuration"):
        store.remove("run", NOW + COLLECTED_MS - 1)
    assert store.remove("run", NOW + COLLECTED_MS)
    assert not store.remove("run", NOW + COLLECTED_MS)


def test_many_series(store: Store) -> None:
    """More than one transaction takes; the highest id is not given out again."""
    ids = store.series.intern("run", [SeriesKey("e", f"m{n}") for n in range(120)])
    store.write(Batch("run", samples=[(n, T0, 1.0) for n in ids]))
    store.remove("run", NOW)
    assert rows(store)["samples"] == 0
    assert store.series.intern("next", [SIGNAL])[0] > max(ids)
