"""Reads SQLite databases that another process writes, read-only, for all readers of such databases.

Never writes and never waits long. A WAL database that no process has open is read with ``immutable`` (a plain read-only
connection would leave `-wal` and `-shm` behind), any other one with ``mode=ro`` inside one short transaction.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from collectors.model import ScrapeError
from collectors.transport import bytetail

# Writers hold their lock for milliseconds; a longer wait would block a scraper thread.
BUSY_SECONDS = 1.0
# trackio opens and closes its database every 0.5 s; three tries that each meet a write are enough.
QUIET_TRIES = 3

Result = TypeVar("Result")

_locked_paths: ContextVar[set[Path] | None] = ContextVar("_held", default=None)


@contextmanager
def single_lock_wait() -> Iterator[None]:
    """Within the block, a locked database is waited for once, however many readers open it."""
    token = _locked_paths.set(set())
    try:
        yield
    finally:
        _locked_paths.reset(token)


def reading(
    path: Path, read: Callable[[sqlite3.Connection], Result], what: str, busy_seconds: float = BUSY_SECONDS
) -> Result:
    """Calls `read` with a connection to one state of the database and returns its result; see also `single_lock_wait`.

    Args:
        what: the expected kind of database, for the message when it is another.

    Raises:
        ScrapeError: ``missing``, ``locked``, ``garbage`` (not a SQLite file, or not of this kind).
    """
    locked_paths = _locked_paths.get()
    if locked_paths is not None and path in locked_paths:
        raise _locked(path)
    try:
        return _reading(path, read, what, busy_seconds)
    except ScrapeError as error:
        if locked_paths is not None and error.kind == "locked":
            locked_paths.add(path)
        raise


def _reading(path: Path, read: Callable[[sqlite3.Connection], Result], what: str, busy_seconds: float) -> Result:
    for _ in range(QUIET_TRIES):
        before = quiet(path)
        if before is None:
            break
        try:
            with connection(path, "mode=ro&immutable=1", what, busy_seconds) as database:
                result = read(database)
        except ScrapeError as error:
            if error.kind != "garbage" or quiet(path) == before:
                raise
            continue
        # Immutable takes no lock: the result is valid only if no process wrote during the read.
        if quiet(path) == before:
            return result
    with connection(path, "mode=ro", what, busy_seconds) as database:
        return read(database)


def columns(database: sqlite3.Connection, table: str) -> set[str]:
    """Names of a table's columns; empty if there is no such table. ``table`` is a constant of ours."""
    return {row[1] for row in database.execute(f"PRAGMA table_info({table})")}


@contextmanager
def connection(path: Path, mode: str, what: str, busy_seconds: float = BUSY_SECONDS) -> Iterator[sqlite3.Connection]:
    """A read-only connection inside one read transaction.

    Raises:
        ScrapeError: also for errors inside the block.
    """
    try:
        uri = f"file:{quote(str(path.absolute()))}?{mode}"
        with closing(sqlite3.connect(uri, uri=True, timeout=busy_seconds, isolation_level=None)) as database:
            database.execute("BEGIN")  # rows, config and last id of one moment
            yield database
    except OSError as error:
        raise ScrapeError("missing", f"{path.name} cannot be read: {type(error).__name__}") from None
    except sqlite3.Error as error:
        raise _translate(path, error, what) from None


def quiet(path: Path) -> tuple[int, int] | None:
    """Size and age of a WAL database that no process has open; None for any other, which is read with locks.

    Raises:
        ScrapeError: ``missing``.
    """
    with bytetail.readable(path.name):
        with path.open("rb") as file:
            header = file.read(20)
        status = path.stat()
    if len(header) < 20 or header[18] != 2 or path.with_name(path.name + "-wal").exists():
        return None
    return status.st_size, status.st_mtime_ns


def _locked(path: Path) -> ScrapeError:
    return ScrapeError("locked", f"{path.name} is locked by another process")


def _translate(path: Path, error: sqlite3.Error, what: str) -> ScrapeError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return _locked(path)
    if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR):
        return ScrapeError("missing", f"{path.name} cannot be opened")
    return ScrapeError("garbage", f"{path.name} is not a {what} database")
