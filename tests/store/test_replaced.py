"""A SQLite file that is removed or replaced beneath a running store."""

import os
import shutil
from pathlib import Path

import pytest

from server.store import Store, StoreError, migrate
from tests.store.helpers import T0, one, put


@pytest.fixture
def path(tmp_path: Path) -> Path:
    migrate(f"sqlite:///{tmp_path / 'a.db'}")
    return tmp_path / "a.db"


@pytest.fixture
def open_store(path: Path):  # type: ignore[no-untyped-def]
    store = Store.open(f"sqlite:///{path}")
    put(store, one(store), [(T0, 1.0)])
    assert store.runs.all() != []
    yield store
    store.close()


def refused(store: Store, word: str) -> None:
    with pytest.raises(StoreError, match=f"a.db was {word} while it was in use: restart the server"):
        store.runs.all()
    with pytest.raises(StoreError, match=word):
        put(store, 1, [(T0 + 1, 2.0)])
    with pytest.raises(StoreError, match=word):
        store.alerts.silences(T0)


def test_nothing_is_written_into_a_file_that_nobody_sees(open_store: Store, path: Path) -> None:
    for name in ("a.db", "a.db-wal", "a.db-shm"):
        path.with_name(name).unlink(missing_ok=True)
    refused(open_store, "removed")


def test_nor_is_another_file_taken_for_it(open_store: Store, path: Path) -> None:
    shutil.copy(path, path.with_name("b.db"))
    os.replace(path.with_name("b.db"), path)
    refused(open_store, "replaced")


def test_a_file_that_was_moved_away_and_back_goes_on(open_store: Store, path: Path) -> None:
    path.rename(path.with_name("b.db"))
    refused(open_store, "removed")
    path.with_name("b.db").rename(path)
    put(open_store, 1, [(T0 + 1, 2.0)])
    assert [value for _, _, value in open_store.samples.after("run", 0)] == [1.0, 2.0]
