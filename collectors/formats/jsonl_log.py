"""JSON lines as a sink: one line is one call of the logger. The framework supplies the function that unpacks it."""

from collections.abc import Callable
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

from collectors.formats import jsonl
from collectors.formats.rows import Logged, Logs, Sink, walk
from collectors.model import Cursor, Limits
from collectors.transport.bytetail import near_end

Unpack = Callable[[jsonl.Row], Logged | None]


def sink(patterns: tuple[str, ...], unpack: Unpack, *, name: str = "jsonl", max_depth: int = 4) -> Sink:
    """A sink for files whose names match one of ``patterns`` (as in a shell, names only).

    Args:
        unpack: a line's object -> a row, or None for an object of another shape (counted as dropped).
    """
    looks_for = " or ".join(patterns)
    return Sink(name, looks_for, partial(_find, patterns, max_depth), partial(_read, unpack), near_end=near_end)


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
