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
    "*.jsonl", "*.ndjson", "*.json", "*.log", "*.out", "*.txt", "console*", "*.db", "*.wandb", "events.out.tfevents.*",
)  # fmt: skip
# The first few entries show what to do; the number of files, and of databases, that are opened for a check.
SHOWN, TRIED, TRIED_DATABASES = 5, 2_000, 20
# Bytes. A larger database is not checked for damage.
CHECKED_BYTES = 16 << 20
MAGIC = b"SQLite format 3\0"
GIVE = "give the log itself as the path"


def words(path: Path) -> str:
    """A suffix for an error: ``; not read: a.jsonl: no permission``, or "" if all was read."""
    found = look(path)
    return f"; not read: {'; '.join(found)}" if found else ""


def look(path: Path) -> list[str]:
    """One line for each log or folder at ``path`` that could not be read, with the reason: `SHOWN` and a count."""
    try:
        found = list(_file(path, path.name) if not path.is_dir() else _below(path))
    except OSError as error:
        return [f"{path.name}: {reason(error)}"]
    more = [f"and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
    return [*found[:SHOWN], *more]


def _below(folder: Path) -> Iterator[str]:
    """Bounded like `rows.walk`, which looks for the logs."""
    queue, folders, files, databases = [(folder, 0)], 0, 0, 0
    while queue and folders < rows.MAX_FOLDERS:
        here, level = queue.pop(0)
        folders += 1
        name = str(here.relative_to(folder)) if here != folder else folder.name
        try:
            below, others, left = rows.entries(here)
        except OSError as error:
            yield f"{name}: {reason(error)}"
            continue
        if left:
            yield f"{name}: {left} of its files, for only the first {len(others)} by name are looked at: {GIVE}"
        queue += [(here / one, level + 1) for one in below if level < rows.MAX_DEPTH and one not in rows.SKIPPED]
        logs = [here / one for one in others if any(fnmatch(one, pattern) for pattern in LOGS)]
        for path in logs[: max(0, TRIED - files)]:
            databases += path.suffix == ".db"
            yield from _file(path, str(path.relative_to(folder)), open_database=databases <= TRIED_DATABASES)
        files += len(logs)


def _file(path: Path, name: str, open_database: bool = True) -> Iterator[str]:
    try:
        if not path.is_file():
            return  # a pipe would be waited on for ever; what is gone meanwhile is nobody's
        os.close(os.open(path, os.O_RDONLY))
        if path.suffix == ".db" and open_database and path.stat().st_size:
            yield from _database(path, name)
    except OSError as error:
        yield f"{name}: {reason(error)}"


def _database(path: Path, name: str) -> Iterator[str]:
    """The error of a damaged database. Readers report a locked one themselves."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            yield f"{name}: no SQLite database: damaged, or another program's"
            return
    check = "PRAGMA quick_check(1)" if path.stat().st_size <= CHECKED_BYTES else "SELECT count(*) FROM sqlite_master"
    try:
        (answer,) = sqlite.reading(path, lambda database: database.execute(check).fetchone(), "SQLite")
    except ScrapeError as error:
        answer = "ok" if error.kind == "locked" else str(error)
    if isinstance(answer, str) and answer != "ok":
        yield f"{name}: the database is damaged: copy it back, or restore it with sqlite3's .recover"


def reason(error: OSError) -> str:
    """The reason of the operating system, with the fix if there is one."""
    if isinstance(error, PermissionError):
        return "no permission to read it: allow the user that runs Rollscope to"
    return f"the system says {type(error).__name__}"
