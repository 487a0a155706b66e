"""AReaL's dumps of trajectories: `rollout/{tail_version}/{task_id}.jsonl`, a line per sample of a finished task.

A file is written once, at the end of the whole task, before the task is accepted or rejected (1.0.4:
infra/workflow_executor.py, `_dump_trajectory`). The file's time is the completion of the group; lines have no times.

- `head_version` is the minimum over all tokens of the task, and the prompt's tokens have version -1. It is read if it
  is a version, which it is not in the included workflows. `tail_version` is the task's newest.
- Task ids start again in every process, so they are unique only with the version's folder. If several ranks append to
  one file, the second sample of an index gets the suffix ``#2``.

There is one file per task. The cursor therefore has, for each of the newest folders, the time up to which it was read
and the files written near that time.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from collectors.formats import jsonl, slim
from collectors.formats.jsonl import number
from collectors.formats.shapes import whole
from collectors.model import Limits, Purpose, Rollout
from collectors.transport import rest

FOLDERS: Mapping[str, Purpose] = {"rollout": "train", "eval-rollout": "eval"}
# Newest folders that are read. A task that ends late is dumped under the version of its own tokens.
OPEN_VERSIONS = 8
# A file is written sample by sample.
QUIET_SECONDS, SKEW_SECONDS = 3.0, 60.0
# Nanoseconds. A file of another host may become visible this much later (cached listings of a cluster file system).
SLACK_NS = 120 * 10**9
LISTED_MAX = 50_000
# Bytes. Texts of a group of 64 with 200,000 tokens each have about 50 MB.
FILE_BYTES = 64 << 20


@dataclass(slots=True)
class Dumps:
    """The result of one call. ``cursor``: ``{folder: {floor, versions: {version: [mark, near]}}}``."""

    cursor: dict[str, Any]
    left: Limits
    rollouts: list[Rollout] = field(default_factory=list)
    rows: int = 0
    bytes_read: int = 0
    more: bool = False
    dropped: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    at_ns: int
    size: int


def versions(folder: Path) -> list[int]:
    """The versions with a folder, ascending."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in islice(entries, LISTED_MAX)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit() and len(name) <= 12)


def shows(folder: Path) -> bool:
    """Returns whether one of its first files has a sample of AReaL."""
    for version in versions(folder)[:3]:
        # Time 0 disables the check for files that are still being written.
        for file in islice(_settled(folder / str(version), 0.0), 3):
            with file.path.open("rb") as opened:
                row = jsonl.parse(slim.cut(opened.readline(FILE_BYTES)))
            if row is not None and {"task_id", "sample_idx", "tail_version"} <= row.keys():
                return True
    return False


def read(root: Path, cursor: Mapping[str, Any], limits: Limits, now: float) -> Dumps:
    """Samples of tasks dumped since ``cursor``, oldest version first.

    Raises:
        OSError: a folder cannot be read.
    """
    result = Dumps({name: dict(one) for name, one in cursor.items()}, limits)
    for name in FOLDERS:
        _read_folder(root / name, name, now, result)
    return result


def _read_folder(folder: Path, name: str, now: float, result: Dumps) -> None:
    previous = result.cursor.get(name, {"floor": 0, "versions": {}})
    present_versions = versions(folder)
    marks: dict[str, Any] = {}
    # A run that rewinds writes to older folders again: the floor decreases to the newest folder.
    floor = min(previous["floor"], max(present_versions, default=0))
    for version in present_versions:
        if version < floor:
            continue
        position = previous["versions"].get(str(version), [0, {}])
        marks[str(version)] = _read_version(folder / str(version), name, position, now, result)
        if version not in present_versions[-OPEN_VERSIONS:] and not result.more:
            del marks[str(version)]
            floor = version + 1
    if present_versions:
        result.cursor[name] = {"floor": floor, "versions": marks}


def _read_version(folder: Path, name: str, position: list[Any], now: float, result: Dumps) -> list[Any]:
    """Reads files of one version in the order of their times; returns where the next call continues."""
    mark, near = int(position[0]), dict(position[1])
    for file in sorted(_settled(folder, now), key=lambda file_entry: (file_entry.at_ns, file_entry.path.name)):
        if file.at_ns < mark - SLACK_NS or near.get(file.path.name) == [file.at_ns, file.size]:
            continue
        if result.more or not _read_file(file, name, result):
            result.more = True
            break
        mark = max(mark, file.at_ns)
        near[file.path.name] = [file.at_ns, file.size]
    return [mark, {task: seen for task, seen in near.items() if seen[0] >= mark - SLACK_NS}]


def _settled(folder: Path, now: float) -> Iterator[_File]:
    try:
        with os.scandir(folder) as entries:
            for entry in islice(entries, LISTED_MAX):
                if entry.name.endswith(".jsonl") and entry.name[:-6].isdigit() and entry.is_file():
                    status = entry.stat()
                    if not -SKEW_SECONDS < now - status.st_mtime < QUIET_SECONDS:
                        yield _File(folder / entry.name, status.st_mtime_ns, status.st_size)
    except (FileNotFoundError, NotADirectoryError):
        return


def _read_file(file: _File, name: str, result: Dumps) -> bool:
    """Reads a whole file; False if it exceeds what this call may still read."""
    if result.rows and result.bytes_read + file.size > result.left.tail_bytes:
        return False
    with file.path.open("rb") as opened:
        lines = opened.read(FILE_BYTES).splitlines(keepends=True)
    if result.rows and result.rows + len(lines) > result.left.tail_rows:
        return False
    seen: Counter[int] = Counter()
    for line in lines:
        _add_line(line, file, name, seen, result)
    result.rows, result.bytes_read = result.rows + len(lines), result.bytes_read + file.size
    if file.size > FILE_BYTES:
        _drop(f"{file.path.name} is larger than {FILE_BYTES} bytes", result)
    return True


def _drop(why: str, result: Dumps) -> None:
    result.dropped, result.why = result.dropped + 1, result.why or why


def _add_line(line: bytes, file: _File, name: str, seen: Counter[int], result: Dumps) -> None:
    row = jsonl.parse(slim.cut(line))
    rollout = _rollout(row, file, name, seen) if row is not None else None
    if rollout is not None:
        result.rollouts.append(rollout)
    elif line.endswith(b"\n"):
        # An incomplete line may still be written; then the file's time changes.
        _drop(f"a line of {file.path.name} is not a sample of AReaL", result)


def _rollout(row: Mapping[str, Any], file: _File, name: str, seen: Counter[int]) -> Rollout | None:
    task, index, newest_version = (
        rest.text(row.get("task_id"), 40),
        whole(row.get("sample_idx")),
        whole(row.get("tail_version")),
    )
    if not task or index is None or newest_version is None:
        return None
    seen[index] += 1
    suffix = f"#{seen[index]}" if seen[index] > 1 else ""
    group = f"{'eval ' if FOLDERS[name] == 'eval' else ''}{newest_version}/{task}{suffix}"
    length, prompt = whole(row.get("seqlen")), whole(row.get("prompt_len"))
    answered = length - prompt if length is not None and prompt is not None and prompt <= length else None
    at = file.at_ns / 1e9
    return Rollout(
        f"{group}/{index}",
        group_id=group,
        purpose=FOLDERS[name],
        version_start=whole(row.get("head_version")),
        version_finish=newest_version,
        finished_at=at,
        scored_at=at,
        group_complete_at=at,
        prompt_tokens=prompt,
        response_tokens=answered,
        loss_tokens=answered,
        reward=number(row.get("reward")),
    )
