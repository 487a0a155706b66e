"""Reads that belong together are of one state; and what moves when anybody writes."""

import os
import threading
import time

import pytest

from server.store import Store
from tests.store.helpers import T0, one, put
from tests.store.test_write import everything


def samples(store: Store) -> list[float]:
    return [value for _, _, value in store.samples.after("run", 0)]


def test_reads_of_a_block_see_nothing_that_comes_meanwhile(store: Store) -> None:
    series = one(store)
    put(store, series, [(T0, 1.0)])
    with store.one_state():
        assert samples(store) == [1.0]
        put(store, series, [(T0 + 1, 2.0)])
        assert samples(store) == [1.0]
        with store.one_state():
            assert samples(store) == [1.0]
        # The alerts' part of the store reads through a door of its own.
        assert store.alerts.list("run", ("firing",), 10) == [] == store.alerts.silences(T0)
    assert samples(store) == [1.0, 2.0]


def test_other_threads_and_other_stores_are_not_in_the_block(store: Store) -> None:
    series, found = one(store), []
    put(store, series, [(T0, 1.0)])
    other = Store.open(store.url)
    with store.one_state():
        assert samples(store) == [1.0]
        put(store, series, [(T0 + 1, 2.0)])
        thread = threading.Thread(target=lambda: found.append(samples(store)))
        thread.start()
        thread.join()
        assert samples(other) == [1.0, 2.0]
    other.close()
    assert found == [[1.0, 2.0]]


def test_a_block_that_fails_leaves_nothing_behind(store: Store) -> None:
    series = one(store)
    with pytest.raises(ValueError, match="mine"), store.one_state():
        raise ValueError("mine")
    put(store, series, [(T0, 1.0)])
    assert samples(store) == [1.0]


def test_the_mark_moves_with_every_commit_of_anybody_and_not_without(store: Store) -> None:
    series = one(store)
    before = store.mark()
    if store.dialect == "postgresql":
        assert before is None
        return
    # The next commit could have the same time.
    assert before is None
    assert settled(store, 3.0) == settled(store, 3.0) != settled(store, 2.0)
    other = Store.open(store.url)
    for at, tell in enumerate((store, other)):
        settled(store, 3.0)
        put(tell, series, [(T0 + at, 1.0)])
        assert store.mark() is None
    other.close()
    assert settled(store, 0.051) is not None


def settled(store: Store, age: float) -> int | None:
    """The mark when the last commit was so many seconds ago."""
    at = time.time() - age if age < 1 else 1_700_000_000 - age
    os.utime(f"{store.url.removeprefix('sqlite:///')}-wal", (at, at))
    return store.mark()


def test_the_cursor_is_the_runs_own(store: Store) -> None:
    assert store.runs.cursor("run") is None
    one(store)
    run = store.runs.get("run")
    assert run is not None
    assert store.runs.cursor("run") == (run.generation, run.seq)


def test_the_newest_without_their_keys_are_the_newest(store: Store) -> None:
    store.write(everything(store))
    assert store.runs.newest("run") == [row for _, row in store.runs.latest("run")] != []
    assert store.runs.newest("nobody") == []
