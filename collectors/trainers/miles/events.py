"""miles' event log as a sink: one JSONL file per process of the run, read together in the order of their times.

`--dump-details DIR` implies it (`DIR/events/`, 31f1ca961: miles/utils/audit_utils/event_logger). Only ``metric`` events
are read: every payload of the trackers, with the time it was logged.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from collectors.formats import jsonl
from collectors.formats.rows import Logged, Logs, Sink, walk
from collectors.model import Cursor, Limits, ScrapeError
from collectors.transport import bytetail

# A process of every node writes one; two or three of them have metrics.
MAX_FILES = 64


@dataclass(slots=True)
class _Part:
    """The part of one file read by one call: per line a row (None: another event, or a broken line) and its time."""

    path: Path
    chunk: bytetail.Lines
    lines: list[tuple[float, Logged | None]]
    broken: int = 0


def find(path: Path) -> list[Path]:
    """Folders with event files below a run directory: those called `events` first, then the last written ones."""
    if path.is_file():
        return [path] if path.suffix == ".jsonl" else []
    folders = dict.fromkeys(file.parent for file in walk(path, lambda file: file.suffix == ".jsonl"))
    # The dashboard's streams are JSON lines, too, in their own folders.
    return sorted(folders, key=lambda folder: folder.name != "events")


def read(path: Path, cursor: Cursor, limits: Limits) -> Logs:
    """Rows of all files since ``cursor``, by time; an unread rest of one file delays later rows of the others.

    Raises:
        ScrapeError: ``missing``.
    """
    files = [path] if path.is_file() else sorted(path.glob("*.jsonl"))[:MAX_FILES]
    if not files:
        raise ScrapeError("missing", f"no event file (*.jsonl) in {path.name}")
    file_cursors: Mapping[str, Any] = cursor.get("files", {})
    share = replace(
        limits, tail_bytes=limits.tail_bytes // len(files), tail_rows=max(1, limits.tail_rows // len(files))
    )
    parts = [_part(file, file_cursors, share) for file in files]
    until = min((part.lines[-1][0] for part in parts if part.chunk.more and part.lines), default=float("inf"))
    parts = [_until(part, file_cursors, share, until) for part in parts]
    logs = Logs(more=any(part.chunk.more for part in parts), restarted=any(part.chunk.restarted for part in parts))
    logs.cursor = {"files": {part.path.name: part.chunk.cursor for part in parts}}
    rows = [(ts, row) for part in parts for ts, row in part.lines if row is not None]
    logs.rows = [row for _, row in sorted(rows, key=lambda dated_row: dated_row[0])]
    logs.dropped = sum(part.chunk.dropped + part.broken for part in parts)
    logs.why = next(
        (part.chunk.why for part in parts if part.chunk.why), "a line is not an event" if logs.dropped else ""
    )
    return logs


def _part(file: Path, file_cursors: Mapping[str, Any], limits: Limits) -> _Part:
    part = _Part(file, bytetail.read(file, file_cursors.get(file.name, {}), limits), [])
    last = 0.0
    for _, line in part.chunk.lines:
        event = jsonl.parse(line)
        ts = _seconds(event.get("timestamp")) if event is not None else None
        part.broken += ts is None
        last = ts if ts is not None else last
        part.lines.append((last, _row(event, last, file.stem) if event is not None and ts is not None else None))
    return part


def _until(part: _Part, file_cursors: Mapping[str, Any], limits: Limits, until: float) -> _Part:
    """The same part, read again up to a time if it reaches beyond it."""
    count = next((index for index, (ts, _) in enumerate(part.lines) if ts > until), len(part.lines))
    if count == len(part.lines):
        return part
    return _part(part.path, file_cursors, replace(limits, tail_rows=count))


def _row(event: dict[str, Any], ts: float, origin: str) -> Logged | None:
    metrics = event.get("metrics")
    if event.get("type") != "metric" or not isinstance(metrics, dict):
        return None
    return Logged(metrics, None, ts, origin)


def _seconds(value: object) -> float | None:
    """Epoch seconds of a time in pydantic's form: UTC, with a Z."""
    try:
        return datetime.fromisoformat(str(value)).timestamp() if isinstance(value, str) else None
    except (ValueError, OverflowError):
        return None


SINK = Sink("events", "events/*.jsonl", find, read, writers=True)
