"""Tails append-only JSON lines such as metrics.jsonl.

A line that is not a JSON object is skipped and counted: one incomplete write must not hide the rest of a run.
"""

import json
import math
import re
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from collectors.formats.rows import Logged, Logs, Sink, walk
from collectors.model import Cursor, Limits
from collectors.transport import bytetail
from collectors.transport.bytetail import near_end

Row = dict[str, Any]


@dataclass(slots=True)
class Rows:
    """Rows appended since the cursor, oldest first; the other fields as in `collectors.model.Reading`."""

    rows: list[Row] = field(default_factory=list)
    cursor: dict[str, Any] = field(default_factory=dict)
    more: bool = False
    restarted: bool = False
    dropped: int = 0
    why: str = ""


def read_jsonl(path: Path, cursor: Cursor, limits: Limits) -> Rows:
    """Rows appended since ``cursor``.

    Raises:
        ScrapeError: ``missing``.
    """
    chunk = bytetail.read(path, cursor, limits)
    result = Rows([], chunk.cursor, chunk.more, chunk.restarted, chunk.dropped, chunk.why)
    for offset, line in chunk.lines:
        row = parse(line)
        if row is None:
            result.dropped += 1
            result.why = result.why or f"the line at byte {offset} of {path.name} is not a JSON object"
        else:
            result.rows.append(row)
    return result


def parse(text: bytes | str) -> Row | None:
    """A JSON object, or None. Text nested too deeply (RecursionError) counts as broken."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def number(value: object) -> float | None:
    """A finite number, or None: loggers write NaN as null, as "NaN", or as an object."""
    # bool is an int in Python, but a flag is no measurement.
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    # JSON integers have no bound, floats have.
    try:
        result = float(value)
    except OverflowError:
        return None
    return result if math.isfinite(result) else None


def merge(rows: Iterable[Row], key: Callable[[Row], Hashable]) -> list[Row]:
    """Rows of one key as one row, in the order the keys first came; a later value of a field replaces an earlier one.

    Trainers write several rows per step (prime-rl five): a row is not a step.
    """
    merged: dict[Hashable, Row] = {}
    for row in rows:
        merged.setdefault(key(row), {}).update(row)
    return list(merged.values())


# ---- jsonl log
# JSON lines as a sink: one line is one call of the logger.

# Bytes read at the start and at the end to compare logs: some rows.
END_BYTES = 256 << 10

Unpack = Callable[[Row], Logged | None]


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
    read = read_jsonl(path, cursor, limits)
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


# ---- textlog
# Tails text logs and removes terminal colours and what launchers put before lines.

# CSI sequences (colours, cursor moves), and OSC sequences that some loggers use for links.
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
# The time of a container's runtime (`docker logs --timestamps`, `kubectl logs --timestamps`, CRI files), with a zone.
_CONTAINER = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6,9}(?:Z|[+-]\d\d:\d\d)) (?:std(?:out|err) [FP] )?", re.ASCII
)
# torchrun's `[default0]:`, and the task number of `srun --label`, which is padded from the tenth task on. Torch itself
# prints `[rank0]:`, which is part of its message.
_LABEL = re.compile(r"\[(?!rank)[a-z]+\d{1,5}\]:|\d{1,5}: | {1,3}\d{1,4}: (?=\{['\"].*\}$)", re.ASCII)


class Text(NamedTuple):
    """Lines appended since the cursor; the other fields as in `bytetail.Lines`."""

    lines: list[str]
    cursor: dict[str, Any]
    more: bool
    restarted: bool
    dropped: int
    why: str


def read_text(path: Path, cursor: Cursor, limits: Limits) -> Text:
    """Lines appended since ``cursor``; invalid UTF-8 becomes replacement characters.

    Raises:
        ScrapeError: ``missing``.
    """
    chunk = bytetail.read(path, cursor, limits)
    lines = [strip(line.decode(errors="replace")) for _, line in chunk.lines]
    return Text(lines, chunk.cursor, chunk.more, chunk.restarted, chunk.dropped, chunk.why)


def strip(line: str) -> str:
    """The line without colours and trailing white space."""
    return _ANSI.sub("", line).rstrip()


def unlabelled(line: str) -> tuple[str, str, float | None]:
    """(label of a launcher, the line without it, epoch seconds of a container's runtime) of a line without colours."""
    ts = None
    if (stamp := _CONTAINER.match(line)) is not None:
        try:
            ts = datetime.fromisoformat(stamp[1]).timestamp()
        except (ValueError, OverflowError):
            return "", line, None
        line = line[stamp.end() :]
    label = _LABEL.match(line)
    return (label.group().strip(), line[label.end() :], ts) if label is not None else ("", line, ts)
