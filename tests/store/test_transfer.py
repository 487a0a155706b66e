"""Back-up, restore and move: the copy holds what the source holds, on either database."""

import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url

from server.store import Store, StoreError
from server.store.transfer import backup, copy, restore
from server.store.types import Batch
from tests.store.helpers import HOUR, SCRAPED, SIGNAL, T0, one, put
from tests.store.test_removal import fill, rows


@pytest.fixture
def target_url(store: Store, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """A migrated store of the other kind of database."""
    if store.dialect == "postgresql":
        return f"sqlite:///{tmp_path}/target.db"
    opened: Store = request.getfixturevalue("postgres_store")
    return opened.url


@pytest.mark.postgres
def test_move_to_the_other_database(store: Store, target_url: str) -> None:
    """Every table has the same rows, the same checksum and the same answers; new ids follow the old ones."""
    scraped, signal = fill(store, "run")
    fill(store, "other")
    copied = copy(store.url, target_url)
    assert {c.table: c.rows for c in copied} == rows(store)
    moved = Store.open(target_url)
    try:
        assert rows(moved) == rows(store)
        minutes = [one_store.samples.buckets(signal, T0, T0 + HOUR, 60_000) for one_store in (moved, store)]
        assert minutes[0] == minutes[1]
        assert list(moved.samples.window("run", None, 0)) == list(store.samples.window("run", None, 0))
        assert one(moved, "third") > max(number for number, _ in store.series.listed("other"))
        assert one(moved, "run", SCRAPED) == scraped
    finally:
        moved.close()


def test_backup_and_restore(store: Store, tmp_path: Path) -> None:
    """A back-up is a SQLite store; its rows come back into an empty store, and never into one with runs."""
    fill(store, "run")
    copied = backup(store.url, tmp_path / "backup.db")
    assert {c.table: c.rows for c in copied} == rows(store)
    assert stat.S_IMODE((tmp_path / "backup.db").stat().st_mode) == 0o600
    restored = f"sqlite:///{tmp_path}/restored.db"
    assert {c.table: c.rows for c in restore(tmp_path / "backup.db", restored)} == rows(store)
    opened = Store.open(restored)
    assert list(opened.samples.window("run", None, 0)) == list(store.samples.window("run", None, 0))
    opened.close()
    with pytest.raises(StoreError, match="the target store holds runs already"):
        restore(tmp_path / "backup.db", restored)
    with pytest.raises(StoreError, match="exists: choose another name"):
        backup(store.url, tmp_path / "backup.db")


def test_the_command_restores_every_table(store: Store, tmp_path: Path) -> None:
    """In a process that has imported nothing but the command: a table that it does not know would be left out."""
    fill(store, "run")
    kept = {name: count for name, count in rows(store).items() if count}
    assert (kept["rollouts"], kept["samples"]) == (3, 180)
    for command in (
        ("backup", str(tmp_path / "backup.db"), "--store", store.url),
        ("restore", str(tmp_path / "backup.db"), "--store", f"sqlite:///{tmp_path}/restored.db"),
    ):
        subprocess.run([sys.executable, "-m", "server.main", *command], check=True, capture_output=True)
    with closing(sqlite3.connect(tmp_path / "restored.db")) as restored:
        names = [name for (name,) in restored.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {name: restored.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in names}
    assert {name: found.get(name) for name in kept} == kept


def test_backup_of_one_moment(store: Store, tmp_path: Path) -> None:
    """While a thread commits pairs of rows, each back-up holds whole pairs only."""
    a, b = store.series.intern("run", [SCRAPED, SIGNAL])
    stop = threading.Event()
    written = threading.Event()

    def write() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            store.write(Batch("run", samples=[(a, T0 + n, 1.0), (b, T0 + n, 1.0)]))
            written.set()

    thread = threading.Thread(target=write)
    thread.start()
    try:
        written.wait()
        for n in range(3):
            counts = {c.table: c.rows for c in backup(store.url, tmp_path / f"{n}.db")}
            assert counts["samples"] > 0
            assert counts["samples"] % 2 == 0
    finally:
        stop.set()
        thread.join()


def test_refused(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="source and target are the same store"):
        copy(store.url, store.url)
    with pytest.raises(StoreError, match="there is no file"):
        restore(tmp_path / "none.db", f"sqlite:///{tmp_path}/x.db")
    with pytest.raises(StoreError, match="there is no store at"):
        backup(f"sqlite:///{tmp_path}/none.db", tmp_path / "b.db")
    (tmp_path / "text.db").write_text("not a database, but long enough to have a header of its own " * 20)
    with pytest.raises(StoreError, match="not a database"):
        backup(f"sqlite:///{tmp_path}/text.db", tmp_path / "b.db")
    assert not list(tmp_path.glob("*.partial*"))
    assert make_url(store.url)
    put(store, one(store), [(T0, 1.0)])
