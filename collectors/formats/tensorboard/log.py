"""TensorBoard event files as a sink: the scalars of one step together, from all writers of a directory.

Checked with tensorboard 2.21.0 (whose writer torch.utils.tensorboard uses: on disk at once) and tensorboardX 2.6.5,
which writes every `flush_secs`, 120 by default. A resumed run begins a new file in the same directory; some trainers
have several processes that write one each. Rows of all files come in the order of their times.
"""

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from operator import itemgetter
from pathlib import Path
from stat import S_ISREG
from typing import Any

from collectors.formats.rows import Logged, Logs, Sink, newest, walk
from collectors.formats.tensorboard import events as tensorboard_events
from collectors.formats.tensorboard import records as tensorboard_records
from collectors.model import Cursor, Limits, ScrapeError
from collectors.transport import bytetail

# The oldest are left out: a directory with more resumed runs is a directory of run directories.
MAX_FILES = 256
# Bytes. A window is a share of one call's bytes; smaller windows would open files for a few records.
MIN_WINDOW = 256 << 10
MAX_SHARES = 8

# Bytes read at the start and at the end to compare logs.
END_BYTES = 256 << 10

_NAME = re.compile(r".*\btfevents\.(\d{9,11})\b.*")
# add_hparams of torch and tensorboardX opens a separate writer in a folder named by the time.
_HPARAMS = re.compile(r"\d{9,11}\.\d+")


@dataclass(slots=True)
class _Row:
    """A row, the file offset before which it is not yet emitted, and its order in time within the file."""

    start: int
    order: float
    logged: Logged


@dataclass(slots=True)
class _Part:
    """The part of one file read by one call."""

    name: str
    new: bytetail.Appended
    rows: list[_Row] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    end: int = 0
    ended: bool = True
    lost: bool = False
    bad: list[tuple[int, str]] = field(default_factory=list)
    emitted: int = 0

    def cursor(self, before: float) -> dict[str, Any]:
        """``before``: the time of the last row emitted by an earlier call."""
        done = self.emitted == len(self.rows)
        offset = self.end if done else self.rows[self.emitted].start
        ts = self.rows[self.emitted - 1].order if self.emitted else before
        return {**self.new.cursor(offset, whole=done and self.ended), "ts": ts, "lost": done and self.lost}


def find(path: Path) -> list[Path]:
    """Directories with event files below a run directory, the last written one first; a file is itself."""
    if path.is_file():
        return [path] if _is_log(path) else []
    folders = dict.fromkeys(file.parent for file in walk(path, _is_log))
    return [folder for folder in folders if not (_HPARAMS.fullmatch(folder.name) and folder.parent in folders)]


def _is_log(path: Path) -> bool:
    return "tfevents." in path.name


def read(path: Path, cursor: Cursor, limits: Limits) -> Logs:
    """Rows since ``cursor``; `Logged.origin` is the name of the file.

    Raises:
        ScrapeError: ``missing``; ``garbage`` when the only file is not a TensorBoard file.
    """
    files = _files(path)
    cursors: Mapping[str, Any] = cursor.get("files", {})
    logs = Logs(cursor={"files": {file.name: cursors[file.name] for file, _ in files if file.name in cursors}})
    logs.modified = max(status.st_mtime for _, status in files)
    changed = [file for file, status in files if not bytetail.unchanged(status, cursors.get(file.name, {}))]
    if not changed:
        return logs
    with ExitStack() as stack:
        parts, until = _parts(changed, cursors, limits, stack)
        logs.more = _emit(parts, until, limits, logs) or len(parts) < len(changed)
        for part in parts:
            _report(part, logs)
            logs.cursor["files"][part.name] = part.cursor(_floor(part.name, cursors))
    if not cursor and path.is_dir():
        logs.config = {**_hparams(path, limits), **logs.config}
    if len(files) == 1 and parts[0].new.offset == 0 and parts[0].lost and not (logs.rows or logs.config):
        raise ScrapeError("garbage", f"{parts[0].name} is not a TensorBoard event file")
    return logs


def _files(path: Path) -> list[tuple[Path, os.stat_result]]:
    """The newest event files of a directory, the oldest of them first.

    Raises:
        ScrapeError: ``missing``.
    """
    try:
        inside = [path] if path.is_file() else [file for file in path.iterdir() if _is_log(file)]
        files = [(file, status) for file in inside if S_ISREG((status := file.stat()).st_mode)]
    except OSError as error:
        raise ScrapeError("missing", f"{path.name} cannot be read: {type(error).__name__}") from None
    if not files:
        raise ScrapeError("missing", f"no event file (events.out.tfevents.*) in {path.name}")
    return sorted(files, key=lambda item: (_begun(item[0].name), item[0].name))[-MAX_FILES:]


def _begun(name: str) -> float:
    """The time in the file's name: when the file was begun."""
    match = _NAME.fullmatch(name)
    return float(match[1]) if match is not None else 0.0


def _floor(name: str, cursors: Mapping[str, Any]) -> float:
    """The lower bound of the times of all rows still to come from a file."""
    return float(cursors.get(name, {}).get("ts", _begun(name)))


def _parts(
    changed: list[Path], cursors: Mapping[str, Any], limits: Limits, stack: ExitStack
) -> tuple[list[_Part], float]:
    """A window of every file that may have the next rows, and the time up to which no row is missing."""
    parts, until = [], float("inf")
    size = max(limits.tail_bytes // min(len(changed), MAX_SHARES), min(MIN_WINDOW, limits.tail_bytes))
    size = max(size, tensorboard_records.HEADER_BYTES)
    for file in sorted(changed, key=lambda path: _floor(path.name, cursors)):
        floor, before = _floor(file.name, cursors), cursors.get(file.name, {})
        if floor > until:
            break
        part = _window(file.name, stack.enter_context(bytetail.appended(file, before)), before, size, limits)
        if not part.ended:
            until = min(until, part.rows[-1].order if part.rows else floor)
        parts.append(part)
    return parts, until


def _window(name: str, new: bytetail.Appended, before: Cursor, size: int, limits: Limits) -> _Part:
    left = new.status.st_size - new.offset
    lost = not new.restarted and bool(before.get("lost"))
    window = new.window(size)
    frames = tensorboard_records.split(window, left, limits.line_bytes, lost=lost)
    if not frames.used and len(window) < frames.needs <= left:
        # The next record is longer than the window, and not too long.
        frames = tensorboard_records.split(new.window(frames.needs), left, limits.line_bytes, lost=lost)
    part = _Part(name, new, end=new.offset + frames.used, lost=frames.lost)
    part.bad = [(new.offset + at, why) for at, why in frames.bad]
    # A file that waits for the rest of its last record is read to its end, too.
    part.ended = part.end >= new.status.st_size or size >= left or frames.needs > left - frames.used
    _rows(part, frames.records)
    return part


def _rows(part: _Part, records: Iterable[tuple[int, bytes, int]]) -> None:
    """Joins the scalars of consecutive events of one step to one row; a repeated key begins another row."""
    order = 0.0
    for start, payload, crc in records:
        at = part.new.offset + start
        try:
            event = tensorboard_events.event(payload)
        except ValueError:
            part.bad.append((at, "is not an event"))
            continue
        if not event.scalars and not event.config:
            continue
        if tensorboard_records.masked_crc(payload) != crc:
            part.bad.append((at, "has a wrong checksum"))
            continue
        part.config |= event.config
        row = part.rows[-1].logged if part.rows else None
        if row is not None and row.step == event.step and row.values.keys().isdisjoint(event.scalars):
            row.values.update(event.scalars)
        elif event.scalars:
            # A clock that was set back must not change the order within a file.
            order = max(order, event.ts or 0.0)
            part.rows.append(_Row(at, order, Logged({**event.scalars}, event.step, event.ts, part.name)))


def _emit(parts: list[_Part], until: float, limits: Limits, logs: Logs) -> bool:
    """Moves rows of all files, by time, into the result; returns whether rows are left."""
    ready = ((row.order, index, row) for index, part in enumerate(parts) for row in part.rows if row.order <= until)
    for _, index, row in islice(sorted(ready, key=itemgetter(0)), limits.tail_rows):
        logs.rows.append(row.logged)
        parts[index].emitted += 1
    return any(not part.ended or part.emitted < len(part.rows) for part in parts)


def _report(part: _Part, logs: Logs) -> None:
    logs.config |= part.config
    logs.restarted = logs.restarted or part.new.restarted
    passed = [(at, why) for at, why in part.bad if part.emitted == len(part.rows) or at < part.rows[part.emitted].start]
    logs.dropped += len(passed)
    if passed and not logs.why:
        logs.why = f"the record at byte {passed[0][0]} of {part.name} {passed[0][1]}"


def _hparams(path: Path, limits: Limits) -> dict[str, Any]:
    """The configuration that add_hparams wrote into a folder of the run; empty if there is none."""
    config: dict[str, Any] = {}
    try:
        folders = [entry for entry in path.iterdir() if _HPARAMS.fullmatch(entry.name) and entry.is_dir()]
        with ExitStack() as stack:
            for folder in newest(folders)[:1]:
                parts, _ = _parts([file for file, _ in _files(folder)], {}, limits, stack)
                for part in parts:
                    config |= part.config
    except (OSError, ScrapeError):
        # Removed or not readable: the run itself is read without it.
        return {}
    return config


def parent(path: Path) -> str:
    """The folder around a directory with event files: HF's trainer makes a directory in it at each start."""
    return str(path.parent)


def ends(path: Path) -> tuple[list[Logged], list[Logged]]:
    """The first rows of the oldest file and the last rows of the newest. Raises `OSError`, `ScrapeError`."""
    files = [file for file, _ in _files(path)]
    return _at(files[0], 0), _at(files[-1], max(0, files[-1].stat().st_size - END_BYTES))


def _at(file: Path, offset: int) -> list[Logged]:
    """The rows of a window of a file, which may begin within a record."""
    with file.open("rb") as opened:
        opened.seek(offset)
        data = opened.read(END_BYTES)
        frames = tensorboard_records.split(data, len(data), END_BYTES, lost=bool(offset))
        part = _Part(file.name, bytetail.Appended(opened, file.stat(), offset, restarted=False))
        _rows(part, frames.records)
    return [row.logged for row in part.rows]


SINK = Sink(
    "tensorboard",
    "events.out.tfevents.*",
    find,
    read,
    writers=True,
    lag_seconds=120.0,
    run_of=parent,
    ends=ends,
    by_steps=True,
)
