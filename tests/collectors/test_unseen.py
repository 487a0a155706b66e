"""What lies in a run directory and cannot be read is named, with the reason."""

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from collectors.formats import rows, unreadable
from collectors.model import Limits, ScrapeError
from collectors.trainers import verl

NOBODY = 65_534


@pytest.fixture
def shut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A run directory with a log and a folder that may not be read.

    Permissions hold for everybody but root. The path is relative: nobody may not enter the folders above.
    """
    logs, log = tmp_path / "run" / "logs", tmp_path / "run" / "metrics.jsonl"
    logs.mkdir(parents=True)
    log.write_text("{}\n")
    logs.chmod(0)
    log.chmod(0)
    tmp_path.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield Path("run")
    finally:
        if root:
            os.seteuid(0)
        logs.chmod(0o755)


def test_a_log_and_a_folder_without_permission(shut: Path) -> None:
    why = "no permission to read it; give read access to the user that runs Rollscope"
    assert unreadable.problems(shut) == [f"metrics.jsonl: {why}", f"logs: {why}"]
    assert unreadable.problems(shut / "metrics.jsonl") == [f"metrics.jsonl: {why}"]
    assert verl.COLLECTOR.tail is not None
    with pytest.raises(ScrapeError, match=r"; not read: metrics\.jsonl: no permission") as caught:
        verl.COLLECTOR.tail(shut, {}, Limits(), 0.0)
    assert caught.value.kind == "not_a_run"


def test_a_damaged_database(tmp_path: Path) -> None:
    """Overwritten in its middle; one that was never a database; a whole one is not named."""
    for name in ("whole.db", "mlflow.db"):
        with sqlite3.connect(tmp_path / name) as database:
            database.execute("CREATE TABLE metrics (key TEXT)")
            database.executemany("INSERT INTO metrics VALUES (?)", [(f"{n:0500d}",) for n in range(100)])
        database.close()
    broken = tmp_path / "mlflow.db"
    bytes_ = bytearray(broken.read_bytes())
    bytes_[8192:16384] = b"\xff" * 8192
    broken.write_bytes(bytes_)
    (tmp_path / "other.db").write_bytes(b"x" * 4096)
    assert unreadable.problems(tmp_path) == [
        "mlflow.db: the database is damaged; restore a copy, or use sqlite3's .recover",
        "other.db: not an SQLite database; it is damaged or belongs to another program",
    ]


def test_a_folder_that_was_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MAX_ENTRIES", 3)
    for name in ("a.bin", "b.bin", "c.bin", "d.bin", "metrics.jsonl"):
        (tmp_path / name).touch()
    assert unreadable.suffix(tmp_path) == (
        f"; not read: {tmp_path.name}: 2 files, because only the first 3 by name are read; "
        "give the log itself as the path"
    )


def test_what_can_be_read_is_not_named(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("{}\n")
    os.mkfifo(tmp_path / "pipe.log")
    assert (unreadable.problems(tmp_path), unreadable.suffix(tmp_path / "gone")) == ([], "")
