"""Tail of a trackio project database (SQLite; checked with trackio 0.43.0), read-only, while trackio writes.

Table `metrics` is followed by id. trackio's own `step` column is not the training step, and several rows share one
flush time, so both are handed on as they are. Rows whose text is large and holds a trackio table or trace are
skipped unparsed. Never writes: a WAL database nobody has open is read with ``immutable`` (a plain read-only
connection would leave `-wal` and `-shm` behind), any other one with ``mode=ro``.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from collectors.model import Cursor, Limits, ScrapeError
from collectors.readers import jsonl

# A row of scalars is 2 kB; a completions table begins at 9 kB and reaches megabytes.
SMALL_ROW_BYTES = 64 << 10
# trackio's writer holds its lock for milliseconds; waiting longer would hold a scraper thread.
BUSY_SECONDS = 1.0
# trackio opens and closes the database every 0.5 s; three tries in a row that each meet a write are bad luck enough.
QUIET_TRIES = 3

_MARKS = (b'"trackio.table"', b'"trackio.trace"', b'"trackio.image"', b'"trackio.histogram"')


@dataclass(frozen=True, slots=True)
class Logged:
    """One row. ``step`` is trackio's counter or what the caller of `trackio.log` gave; ``ts`` the flush time."""

    id: int
    ts: float | None
    step: int
    metrics: dict[str, Any]


@dataclass(slots=True)
class Rows:
    """Rows of the newest run since the cursor; other fields as in `collectors.model.Reading`."""

    rows: list[Logged] = field(default_factory=list)
    cursor: dict[str, Any] = field(default_factory=dict)
    run_name: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    more: bool = False
    restarted: bool = False
    dropped: int = 0
    why: str = ""


def is_trackio(path: Path) -> bool:
    """Is it a trackio database? MLflow keeps a table `metrics` too, with other columns.

    Raises:
        ScrapeError: ``locked``: it may be one, and saying no would hide the run.
    """
    try:
        with _open(path, "mode=ro" if _quiet(path) is None else "mode=ro&immutable=1") as database:
            columns = {row[1] for row in database.execute("PRAGMA table_info(metrics)")}
    except ScrapeError as error:
        if error.kind == "locked":
            raise
        return False
    return {"id", "run_id", "run_name", "timestamp", "step", "metrics"} <= columns


def read(path: Path, cursor: Cursor, limits: Limits) -> Rows:
    """Rows of the newest run logged since ``cursor``; another run or another file starts over.

    Raises:
        ScrapeError: ``missing``, ``locked``, ``garbage`` (no SQLite file, or not trackio's).
    """
    for _ in range(QUIET_TRIES):
        before = _quiet(path)
        if before is None:
            break
        try:
            found = _read(path, "mode=ro&immutable=1", cursor, limits)
        except ScrapeError as error:
            if error.kind != "garbage" or _quiet(path) == before:
                raise
            continue
        # Immutable takes no lock: what was read counts only if nobody wrote meanwhile.
        if _quiet(path) == before:
            return found
    return _read(path, "mode=ro", cursor, limits)


def _read(path: Path, mode: str, cursor: Cursor, limits: Limits) -> Rows:
    with _open(path, mode) as database:
        found = Rows()
        run_id, found.run_name = _newest_run(database)
        if not run_id:
            return found
        inode = path.stat().st_ino
        last = int(cursor.get("id", 0))
        same = (cursor.get("inode"), cursor.get("run_id")) == (inode, run_id) and last <= _last_id(database)
        found.restarted = bool(cursor) and not same
        found.config = _config(database, run_id, limits)
        found.cursor = {"inode": inode, "run_id": run_id, "id": last if same else 0}
        _collect(database, run_id, limits, found)
        return found


def _collect(database: sqlite3.Connection, run_id: str, limits: Limits, found: Rows) -> None:
    rows = database.execute(
        "SELECT id, timestamp, step, length(CAST(metrics AS BLOB)),"
        " CASE WHEN length(CAST(metrics AS BLOB)) <= ? THEN CAST(metrics AS BLOB) END"
        " FROM metrics WHERE run_id = ? AND id > ? ORDER BY id",
        (limits.line_bytes, run_id, found.cursor["id"]),
    )
    size = 0
    for count, (row_id, stamp, step, length, text) in enumerate(rows):
        if count >= limits.tail_rows or size > limits.tail_bytes:
            found.more = True
            return
        size += length or 0
        found.cursor["id"] = row_id
        if text is not None and _is_table(text):
            continue
        metrics = jsonl.parse(text) if text is not None else None
        if metrics is None:
            found.dropped += 1
            found.why = found.why or f"row {row_id} is no JSON object or longer than {limits.line_bytes} bytes"
        else:
            found.rows.append(Logged(row_id, _epoch(stamp), step if isinstance(step, int) else 0, metrics))


def _is_table(text: bytes) -> bool:
    return len(text) > SMALL_ROW_BYTES and any(mark in text for mark in _MARKS)


def _newest_run(database: sqlite3.Connection) -> tuple[str, str]:
    """Run id and name: the run configured last, else (no config logged) the one that logged last."""
    for table in ("configs", "metrics"):
        row = database.execute(f"SELECT run_id, run_name FROM {table} ORDER BY id DESC LIMIT 1").fetchone()
        if row is not None:
            return str(row[0]), str(row[1])
    return "", ""


def _last_id(database: sqlite3.Connection) -> int:
    return int(database.execute("SELECT coalesce(max(id), 0) FROM metrics").fetchone()[0])


def _config(database: sqlite3.Connection, run_id: str, limits: Limits) -> dict[str, Any]:
    row = database.execute(
        "SELECT config FROM configs WHERE run_id = ? AND length(config) <= ?", (run_id, limits.line_bytes)
    ).fetchone()
    return (jsonl.parse(row[0]) if row is not None and isinstance(row[0], str | bytes) else None) or {}


def _epoch(stamp: object) -> float | None:
    """ISO-8601 as trackio writes it; without a zone it is UTC."""
    try:
        when = datetime.fromisoformat(str(stamp))
    except ValueError:
        return None
    return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()


@contextmanager
def _open(path: Path, mode: str) -> Iterator[sqlite3.Connection]:
    """A read-only connection inside one read transaction.

    Raises:
        ScrapeError: also for what goes wrong inside the block.
    """
    try:
        uri = f"file:{quote(str(path.absolute()))}?{mode}"
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)) as database:
            database.execute("BEGIN")  # rows, config and last id of one moment
            yield database
    except OSError as error:
        raise ScrapeError("missing", f"{path.name} cannot be read: {type(error).__name__}") from None
    except sqlite3.Error as error:
        raise _translate(path, error) from None


def _quiet(path: Path) -> tuple[int, int] | None:
    """Size and age of a WAL database that nobody has open; None for any other, which is read with locks.

    Raises:
        ScrapeError: ``missing``.
    """
    try:
        with path.open("rb") as file:
            header = file.read(20)
        status = path.stat()
    except OSError as error:
        raise ScrapeError("missing", f"{path.name} cannot be read: {type(error).__name__}") from None
    if len(header) < 20 or header[18] != 2 or path.with_name(path.name + "-wal").exists():
        return None
    return status.st_size, status.st_mtime_ns


def _translate(path: Path, error: sqlite3.Error) -> ScrapeError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return ScrapeError("locked", f"{path.name} is locked by another process")
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR):
        return ScrapeError("missing", f"{path.name} cannot be opened")
    return ScrapeError("garbage", f"{path.name} is no trackio database")
