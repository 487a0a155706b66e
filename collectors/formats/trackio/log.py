"""trackio project databases as a sink: a row of table `metrics` is one call of `trackio_database.log` (trackio 0.43.0).

trackio's own `step` counts its rows, tables and traces included, unless the caller passed a step: the framework
decides whether it is the trainer's. A row is visible about 0.6 s after the call; several share one flush time.
"""

from pathlib import Path

from collectors.formats.rows import Logged, Logs, Sink, walk
from collectors.formats.trackio import database as trackio_database
from collectors.model import Cursor, Limits, ScrapeError

# A shared trackio folder has a database per project; only the newest are candidates.
CANDIDATES = 20


def find(path: Path) -> list[Path]:
    """trackio databases, the newest first. A locked one counts, because it may be the run."""
    files = [path] if path.is_file() and path.suffix == ".db" else []
    if path.is_dir():
        files = walk(path, lambda file: file.suffix == ".db")[:CANDIDATES]
    return [file for file in files if _is_trackio(file)]


def _is_trackio(path: Path) -> bool:
    try:
        return trackio_database.is_trackio(path)
    except ScrapeError:
        return True


def read(path: Path, cursor: Cursor, limits: Limits) -> Logs:
    """Rows of the newest run in the database; see `collectors.formats.trackio.database.read`.

    Raises:
        ScrapeError: ``missing``, ``locked``, ``garbage``.
    """
    result = trackio_database.read(path, cursor, limits)
    rows = [Logged(row.metrics, row.step, row.ts) for row in result.rows]
    return Logs(
        rows, result.cursor, result.more, result.restarted, result.dropped, result.why, result.config, result.run_name
    )


SINK = Sink("trackio", "a trackio *.db", find, read, lag_seconds=0.6)
