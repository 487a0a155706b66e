"""Opening a database: URLs, engines, pragmas.

SQLite gets two engines: one connection that writes, and a pool that only reads, so that a chart never waits
for a commit (WAL) and two threads never hold half a write each.
"""

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, ExceptionContext, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import NullPool, QueuePool

BUSY_MS = 10_000
"""How long SQLite waits for another process's write: migrations and `rollscope status` are short."""


SETTLED_NS = 50_000_000
"""Files' times move on in steps of up to 10 ms."""


class StoreError(Exception):
    """The store cannot be used as requested. The message is shown to users and contains no password."""


class StoreUnavailable(StoreError):
    """The database cannot be used now: its disk is full or broken, or the file is damaged. Nothing was written."""


# SQLSTATEs of PostgreSQL.
_POSTGRES_FULL = "53100"
_POSTGRES_DAMAGED = frozenset({"XX001", "XX002"})
_POSTGRES_READ_ONLY = "25006"
FULL = (
    "the store is full: no space is left on its disk; free some space (or set a shorter retention, see [store]). "
    "Writing resumes by itself"
)
DAMAGED = "the store is damaged ({}): stop the server, keep the file, and restore a backup with `rollscope restore`"


_RESUMES = "Writing resumes by itself when it works again"
READ_ONLY = (
    "the store is read-only: its file system was mounted read-only (mostly after a disk error), its file is "
    f"write-protected, or PostgreSQL became a standby. {_RESUMES}"
)


def unusable(error: BaseException | None) -> StoreUnavailable | None:
    """Returns what a driver's error means if the cause is the disk or the file, and not the statement."""
    state = getattr(error, "sqlstate", None)
    name = getattr(error, "sqlite_errorname", None) or ""
    if state == _POSTGRES_FULL or name == "SQLITE_FULL":
        return StoreUnavailable(FULL)
    if state in _POSTGRES_DAMAGED or name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return StoreUnavailable(DAMAGED.format(str(error).strip().splitlines()[0][:200]))
    if state == _POSTGRES_READ_ONLY or name.startswith("SQLITE_READONLY"):
        return StoreUnavailable(READ_ONLY)
    if name.startswith("SQLITE_IOERR"):
        return StoreUnavailable(f"the store's disk reports an error ({name}): it may be full or broken. {_RESUMES}")
    return None


def _explain_errors(engine: Engine) -> None:
    """Lets the engine raise `StoreUnavailable` instead of the driver's error where `unusable` names a cause."""

    @event.listens_for(engine, "handle_error")
    def handle(context: ExceptionContext) -> None:
        if (cause := unusable(context.original_exception)) is not None:
            # SQLite opens a file that it cannot write as read-only, and then never tries to write with that connection.
            # PostgreSQL may have another primary by now.
            context.is_disconnect = context.is_disconnect or str(cause) == READ_ONLY
            raise cause from context.original_exception


class _Mark:
    """When SQLite's log was last written to: no connection, no thread, a hundredth of what a query costs."""

    def __init__(self, path: Path) -> None:
        self._log = f"{path}-wal"

    def read(self) -> int | None:
        try:
            written = os.stat(self._log).st_mtime_ns
        except OSError:
            return None
        # What is written right after it may have the same time: only one that is over is known not to move.
        return written if time.time_ns() - written > SETTLED_NS else None


@dataclass(frozen=True, slots=True)
class Engines:
    """``write`` is None in a read-only store. ``dialect`` is "sqlite" or "postgresql"."""

    dialect: str
    read: Engine
    write: Engine | None
    _mark: _Mark | None = None

    def writable(self) -> Engine:
        """Returns the engine that writes; raises `StoreError` if the store was opened read-only."""
        if self.write is None:
            raise StoreError("the store was opened read-only")
        return self.write

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A connection in a transaction: the statements of one query must see one state.

        Inside of `one_state` it is that one's, and ends with it.
        """
        held = _HELD.get()
        if held is not None and held[0] is self.read:
            yield held[1]
            return
        with self.read.begin() as connection:
            yield connection

    @contextmanager
    def one_state(self) -> Iterator[None]:
        """All reads of this thread inside the block share one transaction, so that they see one state."""
        with self.reading() as connection:
            before = _HELD.set((self.read, connection))
            try:
                yield
            finally:
                _HELD.reset(before)

    def mark(self) -> int | None:
        """A number that changes with every commit; None if there is none (PostgreSQL) or it is not available now."""
        return self._mark.read() if self._mark else None

    def dispose(self) -> None:
        """Close every connection."""
        self.read.dispose()
        if self.write is not None:
            self.write.dispose()


_HELD: ContextVar[tuple[Engine, Connection] | None] = ContextVar("rollscope_one_state", default=None)


def parse_url(url: str) -> URL:
    """The URL with its driver spelled out.

    Raises:
        StoreError: not a URL, another database than SQLite and PostgreSQL, or SQLite without a file.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise StoreError("the store URL is not a URL; use sqlite:///path or postgresql://user@host/database") from None
    backend = parsed.drivername.partition("+")[0]
    if backend == "sqlite":
        if parsed.database in (None, "", ":memory:"):
            raise StoreError("the SQLite store needs a file: sqlite:///path (two engines cannot share memory)")
        return parsed.set(drivername="sqlite")
    if parsed.drivername in ("postgresql", "postgres", "postgresql+psycopg"):
        if "@" in (parsed.host or ""):  # part of the password: an error with the host would show it
            raise StoreError(
                "the user or password in the store URL holds an @: percent-encode it (@ as %40, : as %3A, / as %2F)"
            )
        return parsed.set(drivername="postgresql+psycopg")
    raise StoreError(f"the store URL begins with {parsed.drivername!r}; only sqlite and postgresql are supported")


def sqlite_path(url: URL) -> Path:
    """The database file of a SQLite URL."""
    return Path(url.database or "").expanduser().absolute()


def open_engines(url: str, *, read_only: bool) -> Engines:
    """Engines for ``url``. Nothing is connected yet, but a SQLite file must exist: opening never makes one."""
    parsed = parse_url(url)
    if parsed.drivername == "sqlite":
        path = sqlite_path(parsed)
        if not path.exists():
            raise StoreError(f"there is no store at {path}: run `rollscope migrate`")
        if not os.access(path, os.R_OK):
            raise StoreError(
                f"no permission to read {path}: use the account that it belongs to, or query its server: "
                "rollscope status --url URL"
            )
        writes = None if read_only else _sqlite(path, write=True)
        return Engines("sqlite", _sqlite(path, write=False), writes, _Mark(path))
    engine = create_engine(
        parsed,
        pool_size=8,
        max_overflow=8,
        pool_pre_ping=True,
        pool_use_lifo=True,
        # A query of some milliseconds gains nothing from JIT, whose start-up costs more than the query.
        connect_args={"options": "-c jit=off", "application_name": "rollscope", "connect_timeout": 10},
    )
    _explain_errors(engine)
    reads = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
    return Engines("postgresql", reads, None if read_only else engine)


@contextmanager
def explained() -> Iterator[None]:
    """Converts errors of opening a database (refused, no such file, not a database) to `StoreError`."""
    try:
        yield
    except StoreUnavailable as error:
        if str(error) != READ_ONLY:
            raise
        text = (
            "no permission to write: a SQLite store in use needs write permission on its file and folder; give it "
            "to the user that runs this command, or query the server: rollscope status --url URL"
        )
        raise StoreError(f"the store cannot be opened: {text}") from error
    except DBAPIError as error:
        # `orig` and not `error`: the latter shows the statement and its values.
        raise StoreError(f"the store cannot be opened: {str(error.orig).strip()}") from error


def migration_engine(url: URL) -> Engine:
    """An engine of one connection, in manual transactions, for DDL."""
    if url.drivername == "sqlite":
        path = sqlite_path(url)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not path.exists():
            # SQLite would make a file that other accounts may read; its log and index get the rights of the file.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        return _sqlite(path, write=True)
    return create_engine(url, poolclass=NullPool)


def _sqlite(path: Path, *, write: bool) -> Engine:
    same = _Same(path)

    def connect() -> sqlite3.Connection:
        same.check()  # or an empty file would be made in its place
        mode = "mode=rwc" if write else _read_mode(path)
        return sqlite3.connect(f"file:{quote(str(path))}?{mode}", uri=True, check_same_thread=False)

    # One writing connection: `intern` and the writer thread queue for it in the pool instead of in SQLite's
    # busy loop, which is unfair and polls.
    size, overflow = (1, 0) if write else (8, 8)
    engine = create_engine(
        "sqlite://",
        creator=connect,
        poolclass=QueuePool,
        pool_size=size,
        max_overflow=overflow,
        pool_timeout=300,
        # The connection used last: its cache holds pages that the next query reads; idle connections stay small.
        pool_use_lifo=True,
    )
    _explain_errors(engine)

    @event.listens_for(engine, "connect")
    def pragmas(connection: Any, _record: Any) -> None:
        # sqlite3's own transaction handling begins too late for a consistent read; we begin ourselves, below.
        connection.isolation_level = None
        for pragma in _pragmas(write):
            connection.execute(f"PRAGMA {pragma}").close()

    @event.listens_for(engine, "checkout")
    def checkout(_connection: Any, _record: Any, _proxy: Any) -> None:
        same.check()

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # IMMEDIATE: a write that starts as a read can fail with "locked" in the middle, and no wait helps it.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    return engine


def _read_mode(path: Path) -> str:
    """Returns the parameters of a SQLite URI that open the file for reading.

    SQLite creates a write-ahead log even for readers. If there is none, because the server has stopped, and the folder
    is not writable, the file can be read only as immutable.
    """
    log = path.with_name(f"{path.name}-wal")
    if log.exists() or os.access(path.parent, os.W_OK, effective_ids=True):
        return "mode=ro"
    return "mode=ro&immutable=1"


class _Same:
    """Is the database's file still the one that was opened?

    SQLite goes on with a file that was removed or replaced beneath it: what it writes there is seen by nobody, and gone
    at its end. A number that is kept of the old one (a series' own) may be another's in the new: only a start helps.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: tuple[int, int] | None = None

    def check(self) -> None:
        """Raises StoreError if it is not."""
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            if self._file is None:
                return  # a migration makes it
            raise StoreError(
                f"the store's file {self._path} was removed while it was in use: restart the server"
            ) from None
        self._file = self._file or (found.st_dev, found.st_ino)
        if self._file != (found.st_dev, found.st_ino):
            raise StoreError(f"the store's file {self._path} was replaced while it was in use: restart the server")


def _pragmas(write: bool) -> tuple[str, ...]:
    # No mmap: mapped pages count as the process's own (600 MB after seven hours of a run), and are read no faster.
    both = (f"busy_timeout={BUSY_MS}", "foreign_keys=ON", "temp_store=MEMORY")
    if not write:
        return (*both, "cache_size=-16384")
    # NORMAL loses no committed data when the process dies, only when the machine does (and then no consistency).
    # A bigger WAL before a checkpoint: the hot slot's pages are written back once, not once per second.
    # Before the first table is made: what retention deletes is given back to the file system in small steps.
    return (
        *both,
        "auto_vacuum=INCREMENTAL",
        "journal_mode=WAL",
        "synchronous=NORMAL",
        "cache_size=-32768",
        "wal_autocheckpoint=8000",
    )
