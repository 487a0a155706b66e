"""Tail of a trackio project database (SQLite; checked with trackio 0.43.0), read-only, while trackio writes.

Table `metrics` is followed by id. trackio's own `step` column is not the training step, and several rows share one
flush time; both are returned unchanged. Large rows with a trackio table or trace are skipped without parsing. Never
writes (`collectors.formats.sqlite`).
"""

import sqlite3
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from collectors.formats import jsonl, sqlite
from collectors.formats.rows import Logged, Logs, Sink, walk
from collectors.model import Cursor, Limits, ScrapeError

# Bytes. A row of scalars has 2 kB; a completions table begins at 9 kB and reaches megabytes.
SMALL_ROW_BYTES = 64 << 10
# trackio's writer holds its lock for milliseconds; a longer wait would block a scraper thread.
BUSY_SECONDS = 1.0

# Runs of a database whose last row is cached: few are resumed, at most a sweep's agents.
KEPT_RUNS = 20

_MARKS = (b'"trackio.table"', b'"trackio.trace"', b'"trackio.image"', b'"trackio.histogram"')


@dataclass(frozen=True, slots=True)
class TrackedRow:
    """One row. ``step``: trackio's counter, or the step passed to `trackio.log`; ``ts``: the flush time."""

    id: int
    ts: float | None
    step: int
    metrics: dict[str, Any]


@dataclass(slots=True)
class Rows:
    """Rows of the newest run since the cursor; other fields as in `collectors.model.Reading`."""

    rows: list[TrackedRow] = field(default_factory=list)
    cursor: dict[str, Any] = field(default_factory=dict)
    run_name: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    more: bool = False
    restarted: bool = False
    dropped: int = 0
    why: str = ""


def is_trackio(path: Path) -> bool:
    """Returns whether it is a trackio database. MLflow has a table `metrics` too, with other columns.

    Raises:
        ScrapeError: ``locked``: it may be one; False would hide the run.
    """
    try:
        columns = sqlite.reading(path, lambda database: sqlite.columns(database, "metrics"), "trackio", BUSY_SECONDS)
    except ScrapeError as error:
        if error.kind == "locked":
            raise
        return False
    return {"id", "run_id", "run_name", "timestamp", "step", "metrics"} <= columns


def read_database(path: Path, cursor: Cursor, limits: Limits) -> Rows:
    """Rows of the newest run logged since ``cursor``; another file starts over, another run continues at its last row.

    Raises:
        ScrapeError: ``missing``, ``locked``, ``garbage`` (not a SQLite file, or not trackio's).
    """
    return sqlite.reading(path, lambda database: _read(database, path, cursor, limits), "trackio", BUSY_SECONDS)


def newest_run(database: sqlite3.Connection, limits: Limits) -> tuple[str, dict[str, Any]]:
    """Id and configuration of the run that was configured or logged last; ``""`` if there is none yet."""
    run_id, _ = _newest_run(database)
    return run_id, _config(database, run_id, limits)


def _read(database: sqlite3.Connection, path: Path, cursor: Cursor, limits: Limits) -> Rows:
    result = Rows()
    run_id, result.run_name = _newest_run(database)
    if not run_id:
        return result
    inode = path.stat().st_ino
    last = int(cursor.get("id", 0))
    same_file = cursor.get("inode") == inode and last <= _last_id(database)
    result.restarted = bool(cursor) and not (same_file and cursor.get("run_id") == run_id)
    result.config = _config(database, run_id, limits)
    positions = _positions(cursor) if same_file else {}
    result.cursor = {"inode": inode, "run_id": run_id, "id": positions.pop(run_id, 0), "left": positions}
    _collect(database, run_id, limits, result)
    return result


def _positions(cursor: Cursor) -> dict[str, int]:
    """Run id -> last row read, of runs read before, the newest last; a resumed run continues after that row."""
    positions = {str(run): int(row) for run, row in cursor.get("left", {}).items()}
    if "run_id" in cursor:
        positions.pop(cursor["run_id"], None)
        positions[cursor["run_id"]] = int(cursor.get("id", 0))
    return dict(list(positions.items())[-KEPT_RUNS:])


def _collect(database: sqlite3.Connection, run_id: str, limits: Limits, result: Rows) -> None:
    rows = database.execute(
        "SELECT id, timestamp, step, length(CAST(metrics AS BLOB)),"
        " CASE WHEN length(CAST(metrics AS BLOB)) <= ? THEN CAST(metrics AS BLOB) END"
        " FROM metrics WHERE run_id = ? AND id > ? ORDER BY id",
        (limits.line_bytes, run_id, result.cursor["id"]),
    )
    size = 0
    for count, (row_id, stamp, step, length, text) in enumerate(rows):
        if count >= limits.tail_rows or size > limits.tail_bytes:
            result.more = True
            return
        size += length or 0
        result.cursor["id"] = row_id
        if text is not None and _is_table(text):
            continue
        metrics = jsonl.parse(text) if text is not None else None
        if metrics is None:
            result.dropped += 1
            result.why = result.why or f"row {row_id} is not a JSON object or is longer than {limits.line_bytes} bytes"
        else:
            result.rows.append(TrackedRow(row_id, epoch(stamp), step if isinstance(step, int) else 0, metrics))


def _is_table(text: bytes) -> bool:
    return len(text) > SMALL_ROW_BYTES and any(mark in text for mark in _MARKS)


def _newest_run(database: sqlite3.Connection) -> tuple[str, str]:
    """Run id and name: the run configured last, else (no configuration logged) the one that logged last."""
    for table in ("configs", "metrics") if _has_configs(database) else ("metrics",):
        row = database.execute(f"SELECT run_id, run_name FROM {table} ORDER BY id DESC LIMIT 1").fetchone()
        if row is not None:
            return str(row[0]), str(row[1])
    return "", ""


def _last_id(database: sqlite3.Connection) -> int:
    return int(database.execute("SELECT coalesce(max(id), 0) FROM metrics").fetchone()[0])


def _config(database: sqlite3.Connection, run_id: str, limits: Limits) -> dict[str, Any]:
    if not _has_configs(database):
        return {}
    row = database.execute(
        "SELECT config FROM configs WHERE run_id = ? AND length(config) <= ?", (run_id, limits.line_bytes)
    ).fetchone()
    return (jsonl.parse(row[0]) if row is not None and isinstance(row[0], str | bytes) else None) or {}


def _has_configs(database: sqlite3.Connection) -> bool:
    """Returns whether the table of configurations exists: trackio creates its tables one by one."""
    query = "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'configs'"
    return database.execute(query).fetchone() is not None


def epoch(stamp: object) -> float | None:
    """A time as trackio writes it, ISO-8601, in epoch seconds; without a zone it is UTC."""
    try:
        when = datetime.fromisoformat(str(stamp))
    except ValueError:
        return None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


# ---- log
# trackio project databases as a sink: a row of table `metrics` is one call of `trackio_database.log` (trackio
# 0.43.0).

# A shared trackio folder has a database per project; only the newest are candidates.
CANDIDATES = 20


def find(path: Path) -> list[Path]:
    """trackio databases, the newest first. A locked one counts, because it may be the run."""
    files = [path] if path.is_file() and path.suffix == ".db" else []
    if path.is_dir():
        files = walk(path, lambda file: file.suffix == ".db")[:CANDIDATES]
    return [file for file in files if _is_trackio(file)]


def _is_trackio(path: Path) -> bool:
    try:
        return is_trackio(path)
    except ScrapeError:
        return True


def read_log(path: Path, cursor: Cursor, limits: Limits) -> Logs:
    """Rows of the newest run in the database; see `collectors.formats.trackio.read`.

    Raises:
        ScrapeError: ``missing``, ``locked``, ``garbage``.
    """
    result = read_database(path, cursor, limits)
    rows = [Logged(row.metrics, row.step, row.ts) for row in result.rows]
    return Logs(
        rows, result.cursor, result.more, result.restarted, result.dropped, result.why, result.config, result.run_name
    )


SINK = Sink("trackio", "a trackio *.db", find, read_log, lag_seconds=0.6)
