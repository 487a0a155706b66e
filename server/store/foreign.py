"""Recognises SQLite files of other applications before an engine opens them: its pragmas would write their header."""

import os
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from server.store.engine import StoreError, parse_url, sqlite_path

# Other applications that use Alembic have revisions of twelve hexadecimal digits.
_REVISION = re.compile(r"\d{4}")


def is_store(path: Path) -> bool | None:
    """Whether a SQLite file holds our schema, of any version; None: no file, no tables, or not readable as SQLite."""
    log = path.with_name(f"{path.name}-wal")
    # Without a log no process writes the file in WAL mode, and "immutable" creates no log.
    mode = "mode=ro" if os.path.exists(log) else "mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?{mode}", uri=True)) as connection:
            names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
            tables = {name for (name,) in names if not name.startswith("sqlite_")}
            if not {"alembic_version", "runs"} <= tables:
                # The table of the version remains after a downgrade that removed all others.
                return False if tables - {"alembic_version"} else None
            found = connection.execute("SELECT version_num FROM alembic_version").fetchone()
    except sqlite3.Error:
        return None
    return found is not None and _REVISION.fullmatch(str(found[0])) is not None


def refuse_foreign(url: str) -> None:
    """Refuse a SQLite file of another application. PostgreSQL is not checked: its databases may be shared.

    Raises:
        StoreError: the file holds tables that are not ours, or the URL is not valid.
    """
    parsed = parse_url(url)
    if parsed.drivername == "sqlite" and is_store(path := sqlite_path(parsed)) is False:
        raise StoreError(f"{path} is a database of another application, and was not changed: name another file")
