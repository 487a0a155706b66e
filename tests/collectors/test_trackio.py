"""The trackio reader against the real writer, and against databases that are locked, foreign or broken."""

import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from collectors.formats import trackio
from collectors.model import Limits, ScrapeError
from tests.collectors._reading import TESTDATA

RECORDED = TESTDATA / "trl" / "sync" / "grpo-tiny.db"

WRITER = """
import sys, trackio
run = trackio.init(project="live", name="first", config={"num_generations": 4})
for step in range(1, 6):
    trackio.log({"train/global_step": step, "train/reward": step / 10})
print("logged", flush=True)
sys.stdin.readline()
for step in range(6, 11):
    trackio.log({"train/global_step": step, "train/reward": step / 10})
trackio.finish()
"""


def make(path: Path, *, wal: bool = False) -> sqlite3.Connection:
    database = sqlite3.connect(path, isolation_level=None)
    if wal:
        database.execute("PRAGMA journal_mode=WAL")
    database.execute(
        "CREATE TABLE metrics (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT, timestamp TEXT, run_name TEXT,"
        " step INTEGER, metrics TEXT, log_id TEXT, space_id TEXT)"
    )
    database.execute(
        "CREATE TABLE configs (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT UNIQUE, run_name TEXT, config TEXT,"
        " created_at TEXT)"
    )
    return database


def log(database: sqlite3.Connection, run: str, metrics: object, stamp: str = "2026-11-21T07:42:17+00:00") -> None:
    text = metrics if isinstance(metrics, str) else json.dumps(metrics)
    database.execute(
        "INSERT INTO metrics (run_id, timestamp, run_name, step, metrics) VALUES (?, ?, ?, 0, ?)",
        (run, stamp, run.upper(), text),
    )


def test_the_recorded_database() -> None:
    read = trackio.read_database(RECORDED, {}, Limits())
    assert (len(read.rows), read.run_name, read.more, read.dropped) == (992, "grpo-tiny-cpu", False, 0)
    assert read.rows[9].ts == pytest.approx(1795246937.626297)
    assert read.config["num_generations"] == 4
    assert trackio.read_database(RECORDED, read.cursor, Limits()).rows == []


def test_in_parts_it_is_the_same() -> None:
    cursor, ids, calls = {}, [], 0
    while True:
        read = trackio.read_database(RECORDED, cursor, Limits(tail_rows=97))
        ids += [row.id for row in read.rows]
        cursor, calls = json.loads(json.dumps(read.cursor)), calls + 1
        if not read.more:
            break
    assert (ids, calls) == (list(range(1, 993)), 11)


def test_the_real_writer_while_it_writes(tmp_path: Path) -> None:
    environment = {**os.environ, "TRACKIO_DIR": str(tmp_path), "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    path, cursor, steps = tmp_path / "live.db", {}, []
    try:
        deadline, released = time.monotonic() + 60, False
        while len(steps) < 10 and time.monotonic() < deadline:
            if not path.exists() or not trackio.is_trackio(path):
                continue
            read = trackio.read_database(path, cursor, Limits())
            cursor = read.cursor or cursor
            steps += [row.metrics["train/global_step"] for row in read.rows]
            if len(steps) == 5 and not released:
                writer.stdin.write("go\n")
                writer.stdin.flush()
                released = True
    finally:
        writer.stdin.close()
        writer.wait(30)
        writer.stdout.close()
    assert steps == list(range(1, 11))
    assert read.run_name == "first"


def test_a_database_whose_tables_are_still_being_made_is_one_without_configuration(tmp_path: Path) -> None:
    with closing(make(tmp_path / "new.db")) as writer:
        log(writer, "a", {"x": 1})
        writer.execute("DROP TABLE configs")
        writer.commit()
    read = trackio.read_database(tmp_path / "new.db", {}, Limits())
    assert ([row.metrics for row in read.rows], read.config) == ([{"x": 1}], {})


def test_a_live_wal_database_is_read_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "live.db"
    with closing(make(path, wal=True)) as writer:
        log(writer, "a", {"x": 1})  # in the -wal, not in the file
        read = trackio.read_database(path, {}, Limits())
        assert [row.metrics for row in read.rows] == [{"x": 1}]
        log(writer, "a", {"x": 2})
        assert [row.metrics for row in trackio.read_database(path, read.cursor, Limits()).rows] == [{"x": 2}]


def test_a_wal_database_nobody_writes_gets_no_sidecars(tmp_path: Path) -> None:
    path = tmp_path / "done.db"
    with closing(make(path, wal=True)) as writer:
        log(writer, "a", {"x": 1})
    before = (os.listdir(tmp_path), path.stat().st_mtime_ns)
    assert len(trackio.read_database(path, {}, Limits()).rows) == 1
    assert (os.listdir(tmp_path), path.stat().st_mtime_ns) == before == (["done.db"], before[1])


def test_a_locked_database_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Journal mode DELETE with an exclusive lock is what trackio uses on network file systems."""
    monkeypatch.setattr(trackio, "BUSY_SECONDS", 0.05)
    path = tmp_path / "x.db"
    with closing(make(path)) as writer:
        writer.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ScrapeError) as caught:
            trackio.read_database(path, {}, Limits())
        assert caught.value.kind == "locked"
        with pytest.raises(ScrapeError):
            trackio.is_trackio(path)


def test_a_foreign_database_and_no_database_are_garbage(tmp_path: Path) -> None:
    foreign = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(foreign)) as database:
        database.execute("CREATE TABLE metrics (key TEXT, value REAL)")
    text = tmp_path / "text.db"
    text.write_text("not a database\n" * 100)
    cut = tmp_path / "cut.db"
    cut.write_bytes(RECORDED.read_bytes()[:50_000])
    for path in (foreign, text, cut):
        with pytest.raises(ScrapeError) as caught:
            trackio.read_database(path, {}, Limits())
        assert caught.value.kind == "garbage", path.name
    assert not trackio.is_trackio(foreign) and not trackio.is_trackio(text)


def test_missing(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.db", tmp_path):
        with pytest.raises(ScrapeError) as caught:
            trackio.read_database(path, {}, Limits())
        assert caught.value.kind == "missing"


def test_odd_file_names_are_no_uri_syntax(tmp_path: Path) -> None:
    path = tmp_path / "a?mode=rwc#100%.db"
    with closing(make(path)) as writer:
        log(writer, "a", {"x": 1})
    assert len(trackio.read_database(path, {}, Limits()).rows) == 1


def test_the_newest_of_two_runs(tmp_path: Path) -> None:
    path = tmp_path / "two.db"
    with closing(make(path)) as writer:
        writer.execute("INSERT INTO configs (run_id, run_name, config) VALUES ('a', 'A', '{}')")
        log(writer, "a", {"x": 1})
        first = trackio.read_database(path, {}, Limits())
        writer.execute("INSERT INTO configs (run_id, run_name, config) VALUES ('b', 'B', '{\"k\": 1}')")
        log(writer, "b", {"x": 2})
        log(writer, "a", {"x": 3})  # the older run still writes
        read = trackio.read_database(path, first.cursor, Limits())
    assert (first.run_name, read.run_name, read.config, read.restarted) == ("A", "B", {"k": 1}, True)
    assert [row.metrics for row in read.rows] == [{"x": 2}]


def test_a_run_taken_up_again_goes_on_behind_its_last_row(tmp_path: Path) -> None:
    """Without configurations the run that logged last is read: two that take turns are never read twice."""
    path, cursor, said = tmp_path / "turns.db", {}, []
    with closing(make(path)) as writer:
        for run, x in (("a", 1), ("b", 2), ("a", 3), ("b", 4), ("b", 5), ("a", 6)):
            log(writer, run, {"x": x})
            read = trackio.read_database(path, cursor, Limits())
            cursor = json.loads(json.dumps(read.cursor))
            said.append((read.run_name, [row.metrics["x"] for row in read.rows], read.restarted))
    assert said == [
        ("A", [1], False), ("B", [2], True), ("A", [3], True), ("B", [4], True), ("B", [5], False), ("A", [6], True),
    ]  # fmt: skip


def test_of_the_runs_left_the_newest_twenty_are_kept(tmp_path: Path) -> None:
    path, cursor = tmp_path / "sweep.db", {}
    with closing(make(path)) as writer:
        for run in range(25):
            log(writer, f"r{run}", {"x": run})
            cursor = trackio.read_database(path, cursor, Limits()).cursor
    assert list(cursor["left"].items()) == [(f"r{run}", run + 1) for run in range(4, 24)]


def test_tables_are_passed_over_and_broken_rows_counted(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    table = {"completions": {"_type": "trackio.table", "_value": [{"text": "x" * 100_000}]}}
    with closing(make(path)) as writer:
        for metrics in ({"x": 1}, table, "{broken", {"text": "y" * 200_000}, {"x": 2}):
            log(writer, "a", metrics, stamp="2026-11-21T07:42:17")
    read = trackio.read_database(path, {}, Limits(line_bytes=150_000))
    assert [row.metrics for row in read.rows] == [{"x": 1}, {"x": 2}]
    assert (read.dropped, read.cursor["id"]) == (2, 5)
    assert read.rows[0].ts == 1795246937.0  # no zone: UTC


def test_a_database_without_a_run_yet(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    make(path).close()
    assert trackio.read_database(path, {}, Limits()).rows == []
