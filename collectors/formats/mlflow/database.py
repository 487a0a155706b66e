"""MLflow's local stores as a sink: the SQLite backend (mlflow.db) and the old folder of files (mlruns/).

Checked with MLflow 3.17 and 3.18. Table `metrics` has one row per key and value; the rows of one call share time and
step. It is followed by rowid, which rises with every commit of SQLite's one writer, so late rows of an asynchronous
logger (HF's callback) are neither lost nor read twice. The reader selects the run that started last and has logged.
NaN is a flag next to a zero; infinities are the largest float.
"""

import sqlite3
from collections.abc import Mapping
from math import copysign, inf, nan
from pathlib import Path
from sys import float_info
from typing import Any

from collectors.formats import sqlite as files
from collectors.formats.mlflow import files as mlflow_files
from collectors.formats.rows import Logged, Logs, Sink, walk
from collectors.model import Cursor, Limits, ScrapeError

CANDIDATES = 20
# Bytes of a value without its key, for the bound on bytes read.
VALUE_BYTES = 40
# Characters of a parameter; longer values are not scalars.
SETTING_CHARS = 8_000

# Selected by name, so that a table in migration is an error and is not taken for another format's.
_FIRST_COLUMNS = {"key", "value", "timestamp", "run_uuid"}
_ALL_COLUMNS = _FIRST_COLUMNS | {"step", "is_nan"}

_RUN = (
    "SELECT run_uuid, name, status FROM runs WHERE lifecycle_stage = 'active'"
    " ORDER BY EXISTS (SELECT 1 FROM metrics WHERE metrics.run_uuid = runs.run_uuid) DESC, start_time DESC LIMIT 1"
)
_VALUES = (
    "SELECT rowid, key, value, timestamp, step, is_nan FROM metrics WHERE run_uuid = ? AND rowid > ? ORDER BY rowid"
)
_MARK = "SELECT key, timestamp, step, run_uuid FROM metrics WHERE rowid = ?"

ENDS: Mapping[str, str] = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "was killed"}
"""Statuses of a finished run -> text; any but ``FINISHED`` is a failure."""


def find(path: Path) -> list[Path]:
    """MLflow databases and metrics folders of its file store, the newest first. A locked database counts."""
    if path.is_file():
        return [path] if path.suffix == ".db" and _is_mlflow(path) else []
    if not path.is_dir():
        return []
    databases = [file for file in walk(path, lambda file: file.suffix == ".db")[:CANDIDATES] if _is_mlflow(file)]
    return databases or mlflow_files.find(path)


def _is_mlflow(path: Path) -> bool:
    try:
        columns = files.reading(path, lambda database: files.columns(database, "metrics"), "MLflow")
    except ScrapeError as error:
        return error.kind == "locked"
    return columns >= _FIRST_COLUMNS


def read(path: Path, cursor: Cursor, limits: Limits) -> Logs:
    """Rows of the newest run since ``cursor``.

    Raises:
        ScrapeError: ``missing``; ``locked``, also while MLflow sets the database up; ``garbage``.
    """
    if path.is_dir():
        return mlflow_files.read(path, cursor, limits)
    return files.reading(path, lambda database: _read(database, path, cursor, limits), "MLflow")


def _read(database: sqlite3.Connection, path: Path, cursor: Cursor, limits: Limits) -> Logs:
    columns = files.columns(database, "metrics")
    if not columns >= _FIRST_COLUMNS or not files.columns(database, "runs"):
        raise ScrapeError("garbage", f"{path.name} is not an MLflow database")
    if not columns >= _ALL_COLUMNS:
        raise ScrapeError("locked", f"{path.name} is being set up by MLflow")
    run = database.execute(_RUN).fetchone()
    if run is None:
        return Logs(cursor={})
    run_id, name, status = map(str, run)
    same = bool(cursor) and cursor.get("run") == run_id and _continued(database, path, cursor)
    logs = Logs(restarted=bool(cursor) and not same, run_name=name, config=_config(database, run_id))
    logs.cursor = dict(cursor) if same else {"inode": path.stat().st_ino, "run": run_id, "id": 0, "mark": []}
    _collect(database, run_id, limits, logs)
    logs.modified = path.stat().st_mtime
    if not logs.more and status in ENDS:
        logs.finished, logs.failed = f"MLflow's run {ENDS[status]}", status != "FINISHED"
    return logs


def _continued(database: sqlite3.Connection, path: Path, cursor: Cursor) -> bool:
    """Returns whether the last row read is unchanged. rowids change after a VACUUM or when a run is deleted."""
    if cursor.get("inode") != path.stat().st_ino:
        return False
    return cursor.get("id", 0) == 0 or _mark(database, int(cursor["id"])) == cursor.get("mark")


def _mark(database: sqlite3.Connection, row_id: int) -> list[Any]:
    return list(database.execute(_MARK, (row_id,)).fetchone() or ())


def _collect(database: sqlite3.Connection, run_id: str, limits: Limits, logs: Logs) -> None:
    size, last = 0, logs.cursor["id"]
    for row_id, key, value, stamp, step, is_nan in database.execute(_VALUES, (run_id, last)):
        ts = stamp / 1000.0
        row = logs.rows[-1] if logs.rows else None
        if row is None or (row.ts, row.step) != (ts, step) or key in row.values:
            if len(logs.rows) >= limits.tail_rows or size > limits.tail_bytes:
                logs.more = True
                break
            row = Logged({}, step, ts)
            logs.rows.append(row)
        row.values[key] = nan if is_nan else _value(value)
        size += len(key) + VALUE_BYTES
        last = row_id
    if last != logs.cursor["id"]:
        logs.cursor |= {"id": last, "mark": _mark(database, last)}


def _value(value: float) -> float:
    return value if abs(value) < float_info.max else copysign(inf, value)


def _config(database: sqlite3.Connection, run_id: str) -> dict[str, Any]:
    rows = database.execute(
        "SELECT key, value FROM params WHERE run_uuid = ? AND length(value) <= ?", (run_id, SETTING_CHARS)
    )
    return mlflow_files.settings(rows)


SINK = Sink("mlflow", "an MLflow *.db or mlruns/", find, read, writers=True)
