"""JSON lines as a sink: one line is one call of the logger. The framework supplies the function that unpacks it."""

from collections.abc import Callable
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

from collectors.formats import jsonl
from collectors.formats.rows import Logged, Logs, Sink, walk
from collectors.model import Cursor, Limits
from collectors.transport.bytetail import near_end

# Bytes read at the start and at the end to compare logs: some rows.
END_BYTES = 256 << 10

Unpack = Callable[[jsonl.Row], Logged | None]


def sink(
    patterns: tuple[str, ...], unpack: Unpack, *, name: str = "jsonl", max_depth: int = 4, starts: bool = False
) -> Sink:
    """A sink for files whose names match one of ``patterns`` (as in a shell, names only).

    Args:
        unpack: a line's object -> a row, or None for an object of another shape (counted as dropped).
        starts: each start of the trainer makes a folder next to the others with a file of the same name.
    """
    looks_for = " or ".join(patterns)
    find, read = partial(_find, patterns, max_depth), partial(_read, unpack)
    if not starts:
        return Sink(name, looks_for, find, read, near_end=near_end)
    ends = partial(_ends, unpack)
    return Sink(name, looks_for, find, read, near_end=near_end, run_of=_siblings, ends=ends, by_steps=True)


def _siblings(path: Path) -> str:
    return str(path.parent.parent / "*" / path.name)


def _ends(unpack: Unpack, path: Path) -> tuple[list[Logged], list[Logged]]:
    """The first and the last rows. Raises `ScrapeError`."""
    limits = Limits(tail_bytes=END_BYTES)
    return _read(unpack, path, {}, limits).rows, _read(unpack, path, near_end(path, END_BYTES), limits).rows


def _find(patterns: tuple[str, ...], depth: int, path: Path) -> list[Path]:
    if path.is_file():
        return [path] if path.suffix in (".jsonl", ".json", ".ndjson") else []
    return walk(path, lambda file: any(fnmatch(file.name, pattern) for pattern in patterns), depth)


def _read(unpack: Unpack, path: Path, cursor: Cursor, limits: Limits) -> Logs:
    read = jsonl.read(path, cursor, limits)
    logs = Logs([], read.cursor, read.more, read.restarted, read.dropped, read.why)
    for row in read.rows:
        logged = unpack(row)
        if logged is not None:
            logs.rows.append(logged)
        else:
            logs.dropped += 1
            logs.why = logs.why or f"a line of {path.name} has another shape"
    status = path.stat()
    before = 0 if read.restarted else int(cursor.get("offset", 0))
    took = max(int(read.cursor["offset"]) - before, 1)
    logs.modified, logs.ahead = status.st_mtime, max(0, status.st_size - int(read.cursor["offset"])) / took
    return logs
