"""Lists what could not be read at a path and why: no permission, damaged databases, folders beyond a limit.

The list is added to the message "nothing found" and to the report of a detected run.
"""

import os
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from collectors.formats import rows, sqlite
from collectors.model import ScrapeError

# File names of trainers' loggers; other files are not reported.
LOGS = (
    "*.jsonl", "*.ndjson", "*.json", "*.log", "*.out", "*.txt", "console*", "*.log*.gz", "*.jsonl*.gz", "*.db",
    "*.wandb", "events.out.tfevents.*",
)  # fmt: skip
# Suffixes of compressed files. A log grows, so only plain text is followed.
COMPRESSED = frozenset((".gz", ".zst", ".xz", ".bz2", ".zip"))
# Entries in the message; the first few show what to do.
SHOWN = 5
# Files that are opened for a check.
MAX_CHECKED = 2_000
# Databases that are opened for a check.
MAX_CHECKED_DATABASES = 20
# Bytes. A larger database is not checked for damage.
CHECKED_BYTES = 16 << 20
MAGIC = b"SQLite format 3\0"
FIX = "give the log itself as the path"


def suffix(path: Path) -> str:
    """A suffix for an error: ``; not read: a.jsonl: no permission``, or "" if all was read."""
    problem_lines = problems(path)
    return f"; not read: {'; '.join(problem_lines)}" if problem_lines else ""


def problems(path: Path) -> list[str]:
    """One line for each log or folder at ``path`` that could not be read, with the reason: `SHOWN` and a count."""
    try:
        problem_lines = list(_file(path, path.name) if not path.is_dir() else _below(path))
    except OSError as error:
        return [f"{path.name}: {reason(error)}"]
    more = [f"and {len(problem_lines) - SHOWN} more"] if len(problem_lines) > SHOWN else []
    return [*problem_lines[:SHOWN], *more]


def _below(folder: Path) -> Iterator[str]:
    """Bounded like `rows.walk`, which looks for the logs."""
    queue, folders, files, databases = [(folder, 0)], 0, 0, 0
    while queue and folders < rows.MAX_FOLDERS:
        current_folder, level = queue.pop(0)
        folders += 1
        name = str(current_folder.relative_to(folder)) if current_folder != folder else folder.name
        try:
            subfolders, others, left = rows.entries(current_folder)
        except OSError as error:
            yield f"{name}: {reason(error)}"
            continue
        if left:
            yield f"{name}: {left} files, because only the first {len(others)} by name are read; {FIX}"
        queue += [
            (current_folder / entry, level + 1)
            for entry in subfolders
            if level < rows.MAX_DEPTH and entry not in rows.SKIPPED
        ]
        logs = [current_folder / entry for entry in others if any(fnmatch(entry, pattern) for pattern in LOGS)]
        for path in logs[: max(0, MAX_CHECKED - files)]:
            databases += path.suffix == ".db"
            yield from _file(path, str(path.relative_to(folder)), open_database=databases <= MAX_CHECKED_DATABASES)
        files += len(logs)


def _file(path: Path, name: str, open_database: bool = True) -> Iterator[str]:
    try:
        if not path.is_file():
            return  # opening a pipe would block permanently; the file may also have been removed
        os.close(os.open(path, os.O_RDONLY))
        if path.suffix in COMPRESSED:
            yield f"{name}: it is compressed; unpack it first"
        if path.suffix == ".db" and open_database and path.stat().st_size:
            yield from _database(path, name)
    except OSError as error:
        yield f"{name}: {reason(error)}"


def _database(path: Path, name: str) -> Iterator[str]:
    """The error of a damaged database. Readers report a locked one themselves."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            yield f"{name}: not an SQLite database; it is damaged or belongs to another program"
            return
    check = "PRAGMA quick_check(1)" if path.stat().st_size <= CHECKED_BYTES else "SELECT count(*) FROM sqlite_master"
    try:
        (answer,) = sqlite.reading(path, lambda database: database.execute(check).fetchone(), "SQLite")
    except ScrapeError as error:
        answer = "ok" if error.kind == "locked" else str(error)
    if isinstance(answer, str) and answer != "ok":
        yield f"{name}: the database is damaged; restore a copy, or use sqlite3's .recover"


def reason(error: OSError) -> str:
    """The reason of the operating system, with the fix if there is one."""
    if isinstance(error, PermissionError):
        return "no permission to read it; give read access to the user that runs Rollscope"
    return f"the system reports {type(error).__name__}"
