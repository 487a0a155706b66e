"""MLflow's file store (mlruns/<experiment>/<run>/), which MLflow 3.17 still supports as an option.

Every metric is a file with lines ``milliseconds value step``. Params are files with one value each; the run's name and
status are in meta.yaml. Slashes of a key are folders.
"""

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from collectors.formats.rows import Logged, Logs, newest, walk
from collectors.model import Cursor, Limits, ScrapeError

# A run has some hundred keys; a folder with more files is not a run.
MAX_FILES = 2_000
META_BYTES = 64 << 10
SETTING_BYTES = 8_000

_LINE = re.compile(rb"(\d{1,15}) (\S{1,40}) (-?\d{1,18})\r?\n")
_META = re.compile(r"^(status|run_name): *(.*?) *$", re.M)
# mlflow.entities.RunStatus; 1 is running, 2 scheduled.
_ENDS = {"3": "finished", "4": "failed", "5": "was killed"}

At = tuple[float, int]
"""(epoch seconds, step) of a call of the logger."""


@dataclass(slots=True)
class _File:
    """Whole lines of one metric since the cursor. ``at`` is None for a line that is not in MLflow's format."""

    key: str
    offset: int
    lines: list[tuple[At | None, float, int]]
    cut: bool


def find(path: Path) -> list[Path]:
    """The ``metrics`` folders of the runs below a folder, the newest first."""
    metas = [meta for meta in walk(path, lambda file: file.name == "meta.yaml") if (meta.parent / "metrics").is_dir()]
    return newest(meta.parent / "metrics" for meta in metas)


def read(path: Path, cursor: Cursor, limits: Limits) -> Logs:
    """Rows since ``cursor``, those of one time and step together; ``path`` is a run's ``metrics`` folder.

    The cursor is ``{run, at: {key: offset}}``. A file that shrank is read again from its start.

    Raises:
        ScrapeError: ``missing``.
    """
    same = cursor.get("run") == path.parent.name
    before: dict[str, int] = dict(cursor.get("at", {})) if same else {}
    logs = Logs(restarted=bool(cursor) and not same)
    paths = sorted(walk(path, lambda _: True)[:MAX_FILES])
    share = max(1, limits.tail_bytes // max(1, len(paths)))
    files = [_lines(file, file.relative_to(path).as_posix(), before, share) for file in paths]
    _merge(files, limits, logs)
    logs.cursor = {"run": path.parent.name, "at": before | {file.key: file.offset for file in files}}
    meta = dict(_META.findall(_text(path.parent / "meta.yaml", META_BYTES)))
    logs.run_name = meta.get("run_name", "").strip("'\"")
    logs.config = _params(path.parent / "params")
    if not logs.more and (end := _ENDS.get(meta.get("status", ""))):
        logs.finished, logs.failed = f"MLflow's run {end}", end != "finished"
    return logs


def _lines(path: Path, key: str, before: dict[str, int], max_bytes: int) -> _File:
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            offset = before.get(key, 0) if before.get(key, 0) <= size else 0
            file.seek(offset)
            data = file.read(max_bytes)
    except OSError as error:
        raise ScrapeError("missing", f"{path.name} cannot be read: {type(error).__name__}") from None
    whole = [line for line in data.splitlines(keepends=True) if line.endswith(b"\n")]
    file_lines = _File(key, offset, [_parsed(line) for line in whole], offset + len(data) < size)
    if file_lines.cut and not whole:
        # One line longer than the bytes read of a file: no metric has that.
        file_lines.lines = [(None, 0.0, len(data))]
    return file_lines


def _parsed(line: bytes) -> tuple[At | None, float, int]:
    match = _LINE.fullmatch(line)
    try:
        value = float(match.group(2)) if match is not None else 0.0
    except ValueError:
        match, value = None, 0.0
    at = (int(match.group(1)) / 1000.0, int(match.group(3))) if match is not None else None
    return at, value, len(line)


def _merge(files: list[_File], limits: Limits, logs: Logs) -> None:
    """Takes from every file the values up to the time up to which all files have been read.

    Otherwise a file that was read in part would fall behind, and its steps would look like a rewind.
    """
    ends = [max((at for at, _, _ in file.lines if at is not None), default=None) for file in files if file.cut]
    until = min((end for end in ends if end is not None), default=None)
    times = sorted({at for file in files for at, _, _ in file.lines if at is not None and _within(at, until)})
    if len(times) > limits.tail_rows:
        until = times[limits.tail_rows - 1]
    logs.more = any(file.cut for file in files) or len(times) > limits.tail_rows
    rows: dict[At, Logged] = {}
    for file in files:
        _collect_values(file, until, rows, logs)
    logs.rows = [rows[at] for at in sorted(rows)]


def _collect_values(file: _File, until: At | None, rows: dict[At, Logged], logs: Logs) -> None:
    for at, value, length in file.lines:
        if at is None:
            logs.dropped += 1
            logs.why = logs.why or "a line of a metric's file is not 'milliseconds value step'"
        elif _within(at, until):
            rows.setdefault(at, Logged({}, at[1], at[0])).values[file.key] = value
        else:
            logs.more = True
            return
        file.offset += length


def _within(at: At, until: At | None) -> bool:
    return until is None or at <= until


def settings(params: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Parameters as a configuration: MLflow keeps them in Python's notation, nested keys with slashes."""
    return {str(key).replace("/", "."): _setting(str(value)) for key, value in params}


def _setting(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _params(folder: Path) -> dict[str, Any]:
    files = walk(folder, lambda _: True)[:MAX_FILES]
    return settings((file.relative_to(folder).as_posix(), _text(file, SETTING_BYTES)) for file in files)


def _text(path: Path, max_bytes: int) -> str:
    try:
        with path.open("rb") as file:
            return file.read(max_bytes).decode(errors="replace")
    except OSError:
        return ""
