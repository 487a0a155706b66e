"""PipelineRL's own files as one sink: streams/*/0/0/0.jsonl of actor and preprocessor, and the trainer's log.

wandb is not needed (58d393458: streams.py, actor.py:673, preprocess.py:671, finetune/logging_.py:74):

- `stats`: one object per new weight version, written by the actor. `time_since_start` counts from the actor's start.
- `preprocessor_stats`: queue sizes without time or step, so only the newest is current.
- `weight_update_request`: published versions; `timestamp` is the module's import, so it is not read.
- finetune/log/info_0.log: `Completed steps N: {...}` with every number as text with three decimals.

Not available: streams in Redis (`streams=redis`); then only the log is read.
"""

import re
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from collectors.formats import console, jsonl, textlog
from collectors.formats.jsonl import number
from collectors.formats.rows import Logged, Logs, Sink, walk
from collectors.model import Cursor, Limits, ScrapeError

STATS, PREPROCESSOR, WEIGHTS, TRAINER_LOG = "stats", "preprocessor_stats", "weights", "finetune"
_FILES: Mapping[str, tuple[str, ...]] = {
    STATS: ("streams", "stats", "0", "0", "0.jsonl"),
    PREPROCESSOR: ("streams", "preprocessor_stats", "0", "0", "0.jsonl"),
    WEIGHTS: ("streams", "weight_update_request", "0", "0", "0.jsonl"),
    TRAINER_LOG: ("finetune", "log", "info_0.log"),
}
# "[finetune]: 06/19/2026 10:00:05.250 - INFO - pipelinerl... - Completed steps 3: {'stats/lr': '1.000e-06', ...}"
_LINE_TIME = re.compile(rb"^\[finetune\]: (\d\d/\d\d/\d{4} \d\d:\d\d:\d\d)\.(\d{3}) - ", re.MULTILINE)
# Bytes at the end of the trainer's log, in which its newest time is searched.
END_BYTES = 64 << 10
# Seconds. The trainer's log was last changed this much later than its newest line: its files are copies.
COPIED_SECONDS = 300.0
_STEP = re.compile(
    r"\[finetune\]: (\d\d/\d\d/\d{4} \d\d:\d\d:\d\d)\.(\d{3}) - INFO - \S+ - Completed steps (\d{1,15}): (\{.*\})"
)


def sink() -> Sink:
    """The sink. Its path is the `stats` stream, or else the trainer's log; the other files are in the same run."""
    looks_for = "streams/stats/0/0/0.jsonl or finetune/log/info_0.log"
    return Sink("streams", looks_for, _find, _read, writers=True)


def _find(path: Path) -> list[Path]:
    if path.is_file():
        return [path] if _root(path) is not None else []
    for name in (STATS, TRAINER_LOG):
        parts = _FILES[name]
        if files := walk(path, partial(_ends_with, parts)):
            return files
    return []


def _ends_with(parts: tuple[str, ...], path: Path) -> bool:
    return path.parts[-len(parts) :] == parts


def _root(path: Path) -> Path | None:
    for parts in _FILES.values():
        if _ends_with(parts, path):
            return path.parents[len(parts) - 1]
    return None


def _read(path: Path, cursor: Cursor, limits: Limits) -> Logs:
    root = _root(path)
    if root is None or not path.exists():
        raise ScrapeError("missing", f"{path.name} is not a file of a PipelineRL run")
    logs = Logs(modified=path.stat().st_mtime)
    late = _copied_later(root.joinpath(*_FILES[TRAINER_LOG]))
    for name, read in ((WEIGHTS, _weights), (TRAINER_LOG, _trainer), (STATS, _stats), (PREPROCESSOR, _preprocessor)):
        file = root.joinpath(*_FILES[name])
        rest = replace(limits, tail_rows=limits.tail_rows - len(logs.rows))
        if rest.tail_rows <= 0:
            logs.cursor[name], logs.more = cursor.get(name, {}), True
        elif file.is_file():
            read(file, cursor.get(name, {}), rest, logs)
        elif name in cursor:
            logs.cursor[name] = cursor[name]
    for row in logs.rows:
        if row.ts is not None and row.origin in (STATS, PREPROCESSOR):
            row.ts -= late
    # By time: rows of the trainer come before rows of the actor with the same time.
    logs.rows.sort(key=lambda row: row.ts or 0.0)
    return logs


def _copied_later(log: Path) -> float:
    """Seconds between the newest line of the trainer's log and its last change, if that is the time of a copy; else 0.

    The other streams have no times. A copy of the run changes all its files at the same time.
    """
    if not log.is_file():
        return 0.0
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - END_BYTES))
        times = _LINE_TIME.findall(file.read())
    newest = _time(times[-1][0].decode(), times[-1][1].decode()) if times else None
    late = log.stat().st_mtime - newest if newest is not None else 0.0
    return late if late > COPIED_SECONDS else 0.0


def _add_read(name: str, read: jsonl.Rows | textlog.Text, logs: Logs) -> None:
    logs.cursor[name] = read.cursor
    logs.more |= read.more
    logs.restarted |= read.restarted and name == TRAINER_LOG
    logs.dropped += read.dropped
    logs.why = logs.why or read.why


def _stats(file: Path, cursor: Cursor, limits: Limits, logs: Logs) -> None:
    """Rows are dated backwards from the file's last change, because every row is flushed at once."""
    read = jsonl.read(file, cursor, limits)
    _add_read(STATS, read, logs)
    later, at = None, file.stat().st_mtime
    dated_rows = []
    for row in reversed(read.rows):
        since = number(row.get("time_since_start"))
        if since is not None and later is not None:
            # A larger number before a smaller one: another incarnation of the actor, which ended before this one began.
            at -= later - since if since <= later else later
        later = since if since is not None else later
        version = number(row.get("trainer_model_version"))
        dated_rows.append(Logged(row, None if version is None else int(version), at, STATS))
    logs.rows += reversed(dated_rows)


def _preprocessor(file: Path, cursor: Cursor, limits: Limits, logs: Logs) -> None:
    read = jsonl.read(file, cursor, limits)
    _add_read(PREPROCESSOR, read, logs)
    if read.rows and not read.more:
        logs.rows.append(Logged(read.rows[-1], None, file.stat().st_mtime, PREPROCESSOR))


def _weights(file: Path, cursor: Cursor, limits: Limits, logs: Logs) -> None:
    """Published versions, in order; read first, because the other rows need them."""
    read = jsonl.read(file, cursor, limits)
    _add_read(WEIGHTS, read, logs)
    versions = [row.get("version") for row in read.rows if row.get("kind") == "weight_update_success"]
    numbers = [int(version) for version in map(number, versions) if version is not None]
    if numbers:
        logs.rows.append(Logged({"versions": numbers}, None, 0.0, WEIGHTS))
    if any(row.get("kind") == "training_done" for row in read.rows):
        logs.finished = "the trainer wrote training_done"


def _trainer(file: Path, cursor: Cursor, limits: Limits, logs: Logs) -> None:
    read = textlog.read(file, cursor, limits)
    _add_read(TRAINER_LOG, read, logs)
    for line in read.lines:
        if (match := _STEP.fullmatch(line)) is not None:
            logs.rows.append(Logged(_numbers(match[4]), int(match[3]), _time(match[1], match[2]), TRAINER_LOG))


def _numbers(text: str) -> dict[str, Any]:
    """A printed dict whose numbers are texts, converted to numbers; empty for other texts."""
    literal = console.literal(text) or {}
    return {key: console.figure(value) if isinstance(value, str) else value for key, value in literal.items()}


def _time(text: str, milliseconds: str) -> float | None:
    """The log has no zone: it is the machine's own, which is also that of this process."""
    try:
        return time.mktime(time.strptime(text, "%m/%d/%Y %H:%M:%S")) + int(milliseconds) / 1000
    except (ValueError, OverflowError):
        return None
