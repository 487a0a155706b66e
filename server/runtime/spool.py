"""Queue of readings that the server has not acknowledged, on local disk, with the cursor of each source.

A reading and its cursor are committed together before anything is sent. So after a crash the next start continues
without reading anything twice or skipping anything. Thread-safe.
"""

import fcntl
import json
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from collectors.model import Cursor, Target
from server.lib.errors import ConfigError
from server.store.lock import UnsafeFileSystem, check_file_system

# Default size limit, bytes: days of a run of common size.
SPOOL_BYTES = 512 << 20
# A full spool accepts data again at this share of its limit, so that it does not toggle with every body sent.
RESUME = 0.9
# Overhead of a row in addition to its body, bytes.
_ROW_BYTES = 200

_SCHEMA = """
CREATE TABLE IF NOT EXISTS agent (id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS cursors (source TEXT PRIMARY KEY, cursor TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS queue (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, target TEXT NOT NULL, kind TEXT NOT NULL, actor TEXT NOT NULL,
    interval_seconds REAL NOT NULL, body BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS ix_queue_target ON queue (target, seq);
"""


@dataclass(frozen=True, slots=True)
class Queued:
    """A queued body. ``behind``: number of later bodies of the same target."""

    seq: int
    target: str
    kind: str
    actor: str
    interval_seconds: float
    body: bytes
    behind: int


class Spool:
    """One run's queue, used by one process at a time.

    Args:
        limit: bytes after which it is `full`.

    Raises:
        ConfigError: not creatable, on a network file system, used by another process, or damaged.
    """

    def __init__(self, path: Path, limit: int = SPOOL_BYTES, mountinfo: str | None = None) -> None:
        self.path, self._limit, self._lock = path, limit, threading.Lock()
        try:
            # Cluster homes are NFS, where SQLite may lose committed data.
            check_file_system(path, _mounts() if mountinfo is None else mountinfo)
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._file = _held(path)
            self._connection = self._open()
        except UnsafeFileSystem:
            raise ConfigError(
                [f"--spool: {path.parent} is on a network file system: name a local --spool DIR"]
            ) from None
        except OSError as error:
            raise ConfigError([f"--spool: {path}: {error.strerror}"]) from None
        except sqlite3.Error as error:
            raise ConfigError([f"--spool: {path}: {error}"]) from None
        self._stopped = False

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False)
        os.chmod(self.path, 0o600)
        connection.execute("PRAGMA journal_mode=WAL").close()
        # FULL: after a power failure the number of a sent body must not be used again, because the server
        # would ignore the second body as a repeat.
        connection.execute("PRAGMA synchronous=FULL").close()
        connection.executescript(_SCHEMA).close()
        row = connection.execute("SELECT id FROM agent").fetchone()
        if row is None:
            row = (secrets.token_hex(16),)
            connection.execute("INSERT INTO agent VALUES (?)", row).close()
        self.agent: str = row[0]
        held = connection.execute("SELECT count(*), coalesce(sum(length(body)), 0) FROM queue").fetchone()
        self.rows, self._bytes = int(held[0]), int(held[1])
        return connection

    def close(self) -> None:
        """Closes the spool; its contents remain."""
        with self._lock:
            self._connection.close()
            os.close(self._file)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                # SQLite has rolled back by itself if the disk is full.
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    # ---- reading

    @property
    def full(self) -> bool:
        """Must reading stop because the limit is reached? True until a tenth was sent."""
        size = self._bytes + self.rows * _ROW_BYTES
        self._stopped = size >= (self._limit * RESUME if self._stopped else self._limit)
        return self._stopped

    def cursor(self, target: Target) -> Cursor:
        """Returns the cursor of a source; ``{}`` if it was never read."""
        with self._lock:
            row = self._connection.execute("SELECT cursor FROM cursors WHERE source = ?", (_source(target),)).fetchone()
        found: Cursor = json.loads(row[0]) if row else {}
        return found

    def put(self, target: Target, bodies: Sequence[bytes], cursor: Cursor | None) -> None:
        """Stores the bodies of one reading and the cursor after it, all or nothing.

        Raises:
            sqlite3.Error: disk full or another error; nothing was stored.
        """
        cursor_text = json.dumps(cursor) if cursor is not None else None
        head = (target.name, target.collector, target.actor, target.interval_seconds)
        with self._writing() as connection:
            sql = "INSERT INTO queue (target, kind, actor, interval_seconds, body) VALUES (?, ?, ?, ?, ?)"
            connection.executemany(sql, [(*head, body) for body in bodies]).close()
            if cursor_text is not None:
                row = (_source(target), cursor_text)
                connection.execute("INSERT OR REPLACE INTO cursors VALUES (?, ?)", row).close()
        self._count(len(bodies), sum(map(len, bodies)))

    # ---- sending

    def targets(self) -> list[str]:
        """Returns the names of targets with queued bodies."""
        with self._lock:
            return [row[0] for row in self._connection.execute("SELECT DISTINCT target FROM queue ORDER BY target")]

    def first(self, target: str) -> Queued | None:
        """Returns the oldest body of a target."""
        columns = "seq, target, kind, actor, interval_seconds, body"
        of = "FROM queue WHERE target = ?"
        with self._lock:
            row = self._connection.execute(f"SELECT {columns} {of} ORDER BY seq LIMIT 1", (target,)).fetchone()
            (waiting,) = self._connection.execute(f"SELECT count(*) {of}", (target,)).fetchone()
        return Queued(*(*row, waiting - 1)) if row is not None else None

    def done(self, sent: Queued) -> None:
        """Removes an acknowledged body."""
        with self._writing() as connection:
            gone = connection.execute("DELETE FROM queue WHERE seq = ?", (sent.seq,)).rowcount
        if gone:
            self._count(-1, -len(sent.body))

    def _count(self, rows: int, size: int) -> None:
        with self._lock:
            self.rows, self._bytes = self.rows + rows, self._bytes + size


def _source(target: Target) -> str:
    """Returns the key of a source. A name is not enough: `out` of another directory is another file."""
    return json.dumps([target.name, target.collector, str(Path(target.path).resolve()) if target.path else target.url])


def _mounts() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return ""  # not Linux: no information


def _held(path: Path) -> int:
    """Locks the spool, because two processes would read the same rows twice."""
    file = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        raise ConfigError(
            [f"--spool: {path} is in use: another process forwards this run; give one of them another --run or --spool"]
        ) from None
    return file
