"""MLflow's stores: the recorded database, the real writer live, late and renumbered rows, set-up, locks, files."""

import json
import lzma
import math
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.formats import mlflow, sqlite
from collectors.formats.rows import Logs
from collectors.model import Limits, ScrapeError
from tests.collectors._reading import TESTDATA
from tests.support_writers import live_writer, run_writer

RUN = "21f3a7b2604e4865bbf6e97bc25c94ca"

LIVE = """
import math, sys, mlflow
mlflow.set_tracking_uri(sys.argv[1])
run = mlflow.start_run(run_name="live")
mlflow.log_params({"num_generations": 8, "trainer": {"lr": 0.5}, "algo/name": "grpo", "use_vllm": True})
print("ready", flush=True)
for line in sys.stdin:
    step = int(line)
    if step < 0:
        mlflow.end_run({-1: "FINISHED", -2: "FAILED"}[step])
    else:
        bad = math.nan if step == 2 else math.inf if step == 3 else 0.5
        mlflow.log_metrics({"reward": step / 10, "grad_norm": bad, "a/b": 1.0}, step=step)
    print(step, flush=True)
"""

TABLES = """
CREATE TABLE runs (run_uuid TEXT PRIMARY KEY, name TEXT, status TEXT, start_time BIGINT, lifecycle_stage TEXT);
CREATE TABLE params (key TEXT, value TEXT, run_uuid TEXT);
CREATE TABLE metrics (key VARCHAR(250) NOT NULL, value FLOAT NOT NULL, timestamp BIGINT NOT NULL,
  run_uuid VARCHAR(32) NOT NULL, step BIGINT NOT NULL, is_nan BOOLEAN NOT NULL,
  PRIMARY KEY (key, timestamp, step, run_uuid, value, is_nan));
"""


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    path.write_bytes(lzma.decompress((TESTDATA / "trl_sinks" / "mlflow.db.xz").read_bytes()))
    return path


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A database with the columns that are read and one run; for what the real writer does not do on demand."""
    with closing(sqlite3.connect(tmp_path / "mlflow.db", isolation_level=None)) as connection:
        connection.executescript(TABLES)
        start(connection, "a", 1000)
        yield connection


def start(connection: sqlite3.Connection, run: str, at: int, status: str = "RUNNING") -> None:
    connection.execute("INSERT INTO runs VALUES (?, ?, ?, ?, 'active')", (run, run.upper(), status, at))


def log(connection: sqlite3.Connection, step: int, ts: int = 0, run: str = "a", **values: float) -> None:
    rows = [(key, value, ts or 5_000 + step, run, step, 0) for key, value in values.items()]
    connection.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", rows)


def read(path: Path, cursor: dict | None = None, **limits: int) -> Logs:
    return mlflow.read(path, json.loads(json.dumps(cursor or {})), Limits(**limits))


def steps(logs: Logs) -> list[int | None]:
    return [row.step for row in logs.rows]


def test_the_recorded_database(recorded: Path) -> None:
    """90 steps of one row, 8 profiling rows and one more of the loss pass each; then the closing row."""
    logs = read(recorded)
    assert len(logs.rows) == 901 and not logs.more
    assert (logs.run_name, logs.finished, logs.failed) == ("grpo-tiny-cpu", "MLflow's run finished", False)
    first = logs.rows[9]
    assert (first.step, first.ts, first.values["reward"]) == (1, 1795246937.553, 0.171875)
    assert logs.config["num_generations"] == 4 and logs.config["use_vllm"] is False
    assert read(recorded, logs.cursor).rows == []


def test_in_parts_it_is_the_same(recorded: Path) -> None:
    rows, cursor, calls = [], {}, 0
    while True:
        logs = read(recorded, cursor, tail_rows=97)
        rows += logs.rows
        cursor, calls = logs.cursor, calls + 1
        if not logs.more:
            break
        assert not logs.finished  # the status is true of the end only
    assert rows == read(recorded).rows and calls == 10


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_the_real_writer_while_it_writes(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "mlruns"
    uri = f"sqlite:///{tmp_path}/mlflow.db" if kind == "sqlite" else folder.as_uri()
    script = "import os; os.environ['MLFLOW_ALLOW_FILE_STORE'] = 'true'\n" + LIVE
    with live_writer(script, uri) as writer:
        assert writer.process.stdout is not None and writer.process.stdout.readline() == "ready\n"
        writer.say(1)
        (path,) = mlflow.find(tmp_path)[:1]
        first = read(path)
        for step in (2, 3):
            writer.say(step)
        second = read(path, first.cursor)
        assert (steps(first), steps(second), second.finished) == ([1], [2, 3], "")
        writer.say(-2)
        last = read(path, second.cursor)
    assert first.rows[0].values == {"reward": 0.1, "grad_norm": 0.5, "a/b": 1.0}
    norms = [row.values["grad_norm"] for row in second.rows]
    assert math.isnan(norms[0]) and norms[1] == math.inf
    assert first.run_name == "live"
    config = {"num_generations": 8, "trainer": {"lr": 0.5}, "algo.name": "grpo", "use_vllm": True}
    assert {key: first.config.get(key) for key in config} == config
    assert (last.rows, last.finished, last.failed) == ([], "MLflow's run failed", True)


def test_a_database_of_the_real_writer_is_found_among_others(tmp_path: Path) -> None:
    run_writer("import sys, mlflow; mlflow.set_tracking_uri(sys.argv[1]); mlflow.start_run()",
               f"sqlite:///{tmp_path}/tracking.db")  # fmt: skip
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE metrics (id INTEGER, run_id TEXT, timestamp TEXT)")
    (tmp_path / "text.db").write_text("not a database\n" * 100)
    assert mlflow.find(tmp_path) == [tmp_path / "tracking.db"]
    assert read(tmp_path / "tracking.db").rows == []


def test_rows_that_are_written_late_are_read_once(database: sqlite3.Connection, tmp_path: Path) -> None:
    """HF logs steps from a thread of its own, profiling at once: times and steps do not rise with the rows."""
    log(database, 1, profiling=0.5)
    first = read(tmp_path / "mlflow.db")
    log(database, 2, profiling=0.6)
    log(database, 1, reward=0.1, loss=0.2)
    second = read(tmp_path / "mlflow.db", first.cursor)
    assert (steps(first), steps(second)) == ([1], [2, 1])
    assert second.rows[1].values == {"reward": 0.1, "loss": 0.2}


def test_numbers_given_out_anew_are_noticed(database: sqlite3.Connection, tmp_path: Path) -> None:
    for step in (1, 2, 3):
        log(database, step, reward=1.0)
    first = read(tmp_path / "mlflow.db")
    database.execute("DELETE FROM metrics WHERE step = 3")
    log(database, 4, reward=1.0)  # takes the number of the deleted row
    again = read(tmp_path / "mlflow.db", first.cursor)
    assert again.restarted and steps(again) == [1, 2, 4]


def test_the_run_started_last_that_logged_is_read(database: sqlite3.Connection, tmp_path: Path) -> None:
    log(database, 1, reward=1.0)
    first = read(tmp_path / "mlflow.db")
    start(database, "b", 2000)
    assert not read(tmp_path / "mlflow.db", first.cursor).restarted  # b has said nothing yet
    log(database, 1, run="b", reward=2.0)
    log(database, 2, run="a", reward=1.0)
    second = read(tmp_path / "mlflow.db", first.cursor)
    assert (second.run_name, second.restarted, [row.values for row in second.rows]) == ("B", True, [{"reward": 2.0}])
    database.execute("UPDATE runs SET lifecycle_stage = 'deleted' WHERE run_uuid = 'b'")
    assert read(tmp_path / "mlflow.db", second.cursor).run_name == "A"


def test_one_call_twice_in_a_millisecond_is_two_rows(database: sqlite3.Connection, tmp_path: Path) -> None:
    log(database, 1, ts=9, seconds=0.5)
    log(database, 1, ts=9, seconds=0.6)
    assert [row.values for row in read(tmp_path / "mlflow.db").rows] == [{"seconds": 0.5}, {"seconds": 0.6}]


def test_a_database_that_is_being_set_up_is_waited_for(tmp_path: Path) -> None:
    """Seen at the start of a run: migrations add the column `step` to a table that is there already."""
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(TABLES.replace(" step BIGINT NOT NULL, is_nan BOOLEAN NOT NULL,", "").replace(
            "timestamp, step, run_uuid, value, is_nan", "timestamp, run_uuid, value"))  # fmt: skip
    assert mlflow.find(tmp_path) == [path]
    with pytest.raises(ScrapeError) as caught:
        read(path)
    assert caught.value.kind == "locked" and "set up" in str(caught.value)


def test_a_locked_database_says_so(
    database: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite.reading, "__defaults__", (0.05,))
    database.execute("BEGIN EXCLUSIVE")
    assert mlflow.find(tmp_path) == [tmp_path / "mlflow.db"]
    with pytest.raises(ScrapeError) as caught:
        read(tmp_path / "mlflow.db")
    assert caught.value.kind == "locked"


def test_other_databases_are_garbage(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "x.db")) as other:
        other.execute("CREATE TABLE metrics (key TEXT)")
    with pytest.raises(ScrapeError) as caught:
        read(tmp_path / "x.db")
    assert caught.value.kind == "garbage"
    with pytest.raises(ScrapeError) as caught:
        read(tmp_path / "absent.db")
    assert caught.value.kind == "missing"


def metric(folder: Path, key: str, *lines: str) -> None:
    path = folder / key
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write("".join(lines))


def test_files_that_were_read_in_part_stay_together(tmp_path: Path) -> None:
    """One key's file is ten times as long as the others': its steps must not run away from theirs, or fall behind."""
    folder = tmp_path / "0" / "run" / "metrics"
    metric(folder, "a/long", *(f"{1000 + step} {step}.000000000000001 {step}\n" for step in range(60)))
    metric(folder, "short", *(f"{1000 + step} {step} {step}\n" for step in range(60)))
    found, cursor = [], {}
    while True:
        logs = read(folder, cursor, tail_bytes=400)
        found += logs.rows
        cursor = logs.cursor
        if not logs.more:
            break
    assert [row.step for row in found] == list(range(60))
    assert all(set(row.values) == {"a/long", "short"} for row in found)


def test_files_bounds_of_rows_and_broken_lines(tmp_path: Path) -> None:
    folder = tmp_path / "0" / "run" / "metrics"
    metric(folder, "x", "1000 0.5 0\n", "hello\n", "2000 nan 1\n", "3000 0.7 2\n", "4000 0.")
    first = read(folder, tail_rows=2)
    assert (steps(first), first.more, first.dropped) == ([0, 1], True, 1)
    second = read(folder, first.cursor)
    assert (steps(second), second.more) == ([2], False)
    metric(folder, "x", "25 3\n")  # the rest of the line
    assert [row.values for row in read(folder, second.cursor).rows] == [{"x": 0.25}]


@given(st.binary(max_size=300))
def test_files_of_any_bytes_end(data: bytes) -> None:
    lines = [mlflow._parsed(line) for line in data.splitlines(keepends=True)]
    assert sum(length for _, _, length in lines) == len(data)


@pytest.mark.parametrize("text", ["(" * 5000, "[1, 2", "__import__('os')", "9" * 5000, "\0"])
def test_settings_are_never_run(text: str) -> None:
    assert mlflow.settings([("a/b", text)]) == {"a.b": text}
