"""One collector per store: a file lock next to a SQLite database, an advisory lock in PostgreSQL."""

import fcntl
import json
import os
import re
import socket
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import NullPool

from server.store.engine import StoreError, parse_url, sqlite_path

_KEY = 0x526F6C6C73636F70  # "Rollscop"; advisory locks are per database, so one key is enough

NETWORK_TYPES = frozenset(
    (
        *("nfs", "nfs4", "lustre", "cifs", "smb3", "smbfs", "gpfs", "ceph"),
        *("beegfs", "afs", "glusterfs", "panfs", "orangefs", "pvfs2", "wekafs"),
    )
)
"""Where SQLite's WAL cannot work: its index is memory shared by the processes of one machine."""

# FUSE, but on a local disk: the root of rootless containers, and NTFS.
_LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs", "fuseblk"})


class Locked(StoreError):
    """Another process collects into this store. The message names it."""


class UnsafeFileSystem(StoreError):
    """The database would lie on a network file system. The message says where to put it instead."""


class Lease:
    """Held until `release` or the end of the process, however it ends.

    Attributes:
        descriptors: open files that hold it; a child that inherits them holds it too.
    """

    descriptors: tuple[int, ...] = ()

    def held(self) -> bool:
        """Whether this process still holds the lock; it is lost with the connection to PostgreSQL."""
        raise NotImplementedError

    def release(self) -> None:
        """Give it up. May be called twice."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def acquire(url: str, *, serving: str = "", mountinfo: str | None = None) -> Lease:
    """Takes the collector lock of the store at ``url``.

    Args:
        serving: the address of this process; shown to a process that is refused.
        mountinfo: text of /proc/self/mountinfo; None reads it (SQLite only).

    Raises:
        Locked: another process holds it; the message names it.
        UnsafeFileSystem: SQLite on a network file system.
        StoreError: PostgreSQL could not be reached.
    """
    parsed = parse_url(url)
    if parsed.drivername != "sqlite":
        return _AdvisoryLease(create_engine(parsed, poolclass=NullPool, isolation_level="AUTOCOMMIT"), serving)
    path = sqlite_path(parsed)
    check_file_system(path, _read_mountinfo() if mountinfo is None else mountinfo)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    return _FileLease(path.with_name(path.name + ".lock"), serving)


def check_file_system(path: Path, mountinfo: str) -> None:
    """Refuse a place where SQLite would corrupt or hang.

    Raises:
        UnsafeFileSystem: by the type of the mount that holds ``path``.
    """
    mount = mount_of(path.resolve(), mountinfo)
    if mount is None:
        return
    where, kind = mount
    if kind in NETWORK_TYPES or (kind.startswith("fuse") and kind not in _LOCAL_FUSE):
        raise UnsafeFileSystem(
            f"{path} is on {kind} (mounted at {where}): SQLite cannot be used there safely. "
            "Put the store on a local disk, for example --store sqlite:////var/tmp/rollscope/store.db, "
            "or use PostgreSQL."
        )


def mount_of(path: Path, mountinfo: str) -> tuple[str, str] | None:
    """(mount point, file system type) that holds an absolute path; None if the text does not list it."""
    best: tuple[str, str] | None = None
    for line in mountinfo.splitlines():
        left, separator, right = line.partition(" - ")
        fields = left.split(" ")
        if not separator or len(fields) < 5:
            continue
        where = _unescape(fields[4])
        # Not shorter, rather than longer: of two mounts on one point the later hides the earlier.
        if path.is_relative_to(where) and (best is None or len(where) >= len(best[0])):
            best = (where, right.split(" ")[0])
    return best


def _unescape(field: str) -> str:
    """The kernel writes blanks, tabs, newlines and backslashes in a path as octal."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _read_mountinfo() -> str:
    try:
        return Path("/proc/self/mountinfo").read_text(errors="surrogateescape")
    except OSError:
        return ""  # not Linux: nothing to go by


def _holder(serving: str) -> str:
    return json.dumps({"pid": os.getpid(), "host": socket.gethostname(), "url": serving})


def _locked(store: str, holder: str) -> Locked:
    try:
        who: dict[str, Any] = json.loads(holder)
        name = f"pid {who['pid']} on {who['host']}" + (f", serving {who['url']}" if who["url"] else "")
        push = f"add a source to it with rollscope watch SOURCE --push {who['url']}, " if who["url"] else ""
    except (ValueError, KeyError, TypeError):
        name, push = "another process", ""  # it has the lock but has not written its name yet
    return Locked(f"the store {store} is held by {name}: {push}stop it, or use another --store")


class _FileLease(Lease):
    # flock and not a pid file: the kernel gives it back when the holder is killed, and pids are reused.
    def __init__(self, path: Path, serving: str) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._file, 4096, 0).decode(errors="replace")
            self.release()
            raise _locked(str(path.with_suffix("")), holder) from None
        self.descriptors = (self._file,)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, _holder(serving).encode(), 0)

    def held(self) -> bool:
        return self._file >= 0

    def release(self) -> None:
        # The file stays: removing it would let two processes lock two files of one name.
        if self._file >= 0:
            os.close(self._file)
            self._file, self.descriptors = -1, ()


class _AdvisoryLease(Lease):
    # A separate connection outside every pool: the lock is released when its session ends.
    def __init__(self, engine: Engine, serving: str) -> None:
        self._connection: Connection | None = None
        try:
            connection = engine.connect()
        except DBAPIError as error:
            raise StoreError(f"PostgreSQL at {engine.url.host or 'the local socket'}: {error.orig}") from None
        if not connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": _KEY}).scalar():
            holder = _advisory_holder(connection)
            connection.close()
            raise _locked(f"database {engine.url.database}", holder)
        connection.execute(text("SELECT set_config('application_name', :name, false)"), {"name": _short(serving)})
        self._connection = connection

    def held(self) -> bool:
        if self._connection is None:
            return False
        try:
            self._connection.execute(text("SELECT 1"))
        except DBAPIError:
            return False
        return True

    def release(self) -> None:
        if self._connection is not None:
            # Closing the session is what frees the lock; a session the server has ended is free already.
            self._connection.invalidate()
            self._connection.close()
            self._connection = None


def _short(serving: str) -> str:
    """The name of this process in 63 bytes, PostgreSQL's limit for a name."""
    return f"rollscope {os.getpid()} {socket.gethostname()[:20]} {serving}"[:63]


def _advisory_holder(connection: Connection) -> str:
    """The holder's description of itself, as `_holder` writes it; empty if it released the lock meanwhile."""
    sql = text(
        "SELECT a.application_name FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE l.locktype = 'advisory' "
        "AND l.granted AND l.database = a.datid AND a.datname = current_database() "
        "AND l.classid = CAST(:high AS oid) AND l.objid = CAST(:low AS oid)"
    )
    name = connection.execute(sql, {"high": _KEY >> 32, "low": _KEY & 0xFFFFFFFF}).scalar()
    fields = str(name or "").split(" ", 3)
    if len(fields) < 3:
        return ""
    return json.dumps({"pid": fields[1], "host": fields[2], "url": fields[3] if len(fields) > 3 else ""})
