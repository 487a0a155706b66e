"""Rollouts from AReaL's dumps (`rollout.dump_to_file`) and session traces (`perf_tracer.session_tracer`).

Both are off by default; either is enough. If both exist the dumps count, because they have version, reward and tokens,
and no key joins a session to its sample. Sessions are then timelines of some rollouts (``sampled``).

Not available: when the trainer used a rollout, the version of each token, the oldest version in it.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from collectors.formats import jsonl
from collectors.formats import rows as rows_format
from collectors.formats.jsonl import number
from collectors.formats.rows import mapping, objects, whole
from collectors.model import Collector, Cursor, Exit, Limits, Purpose, Reading, Rollout, ScrapeError, Span, SpanKind
from collectors.transport import bytetail, rest

# ---- dumps
# AReaL's dumps of trajectories: `rollout/{tail_version}/{task_id}.jsonl`, a line per sample of a finished task.

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
                row = jsonl.parse(rows_format.cut(opened.readline(FILE_BYTES)))
            if row is not None and {"task_id", "sample_idx", "tail_version"} <= row.keys():
                return True
    return False


def read_dump(root: Path, cursor: Mapping[str, Any], limits: Limits, now: float) -> Dumps:
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
    row = jsonl.parse(rows_format.cut(line))
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


# ---- sessions
# AReaL's session traces as rollouts: `session_tracer/**/sessions-r{rank}.jsonl`, a line per sample when it is over.

SPANS_MAX = 2_000
_KINDS: Mapping[str, SpanKind] = {"generate": "generate", "toolcall": "tool", "reward": "scoring"}
_EXITS: Mapping[str, Exit] = {"rejected": "surplus", "dropped": "surplus", "failed": "env_error"}
NOTHING_RETURNED = "returned_none"
STATUSES = ("accepted", "pending", *_EXITS)

SessionState = dict[str, Any]
"""Per file: ``{life, id, at (of the newest session), began (first of this incarnation)}``; JSON-able."""


def new_state() -> SessionState:
    """The state before the first line."""
    return {"life": 0, "id": -1, "at": 0.0, "began": 0.0}


def rollout_of_session(row: Mapping[str, Any], state: SessionState, *, sampled: bool) -> Rollout | None:
    """A session's record; None for other rows. ``lives`` is changed in place."""
    task, session, at = whole(row.get("task_id")), whole(row.get("session_id")), rest.epoch(row.get("submit_ts"))
    status = row.get("status")
    if task is None or session is None or at is None or status not in STATUSES:
        return None
    incarnation_name = (
        f"{rest.text(row.get('role'), 40)} r{whole(row.get('rank')) or 0}.{_incarnation(session, at, state)}".strip()
    )
    spans = sorted(_spans(row), key=lambda span: span.start)
    reason = rest.text(row.get("reason"), 200)
    phases = mapping(row, "phases")
    return Rollout(
        f"{incarnation_name} session {session}",
        group_id=f"{incarnation_name} task {task}",
        dispatched_at=at,
        started_at=min((span.start for span in spans), default=None),
        finished_at=_end(spans, "generate", "tool"),
        scored_at=_end(spans, "scoring"),
        group_complete_at=rest.epoch(row.get("finalized_ts")),
        turn_count=len(objects(phases.get("generate"))) or None,
        # Phases that did not run, and phases that the workflow does not trace, are absent.
        tool_calls=len(objects(phases.get("toolcall"))) or None,
        exit="env_error" if reason == NOTHING_RETURNED else _EXITS.get(status),
        error=reason or (status if status in _EXITS else ""),
        sampled=sampled,
        spans=tuple(spans[:SPANS_MAX]),
    )


def _incarnation(session: int, at: float, state: SessionState) -> int:
    """The incarnation of the process that ran a session; late sessions of the previous incarnation may follow."""
    if at > state["at"]:
        if session < state["id"]:
            state.update(life=state["life"] + 1, began=at)
        state.update(id=session, at=at)
    elif at < state["began"] and session > state["id"]:
        return int(state["life"]) - 1
    return int(state["life"])


def _spans(row: Mapping[str, Any]) -> Iterator[Span]:
    for phase, kind in _KINDS.items():
        for phase_record in objects(mapping(row, "phases").get(phase)):
            start = rest.epoch(phase_record.get("start_ts", phase_record.get("start")))
            if start is not None:
                yield Span(kind, start, rest.epoch(phase_record.get("end_ts", phase_record.get("end"))))


def _end(spans: list[Span], *kinds: SpanKind) -> float | None:
    return max((span.end for span in spans if span.kind in kinds and span.end is not None), default=None)


TRACES, PATTERN = "session_tracer", "sessions-r*.jsonl"
LOOKED_FOR = f"rollout/VERSION/TASK.jsonl or {TRACES}/**/{PATTERN}, as AReaL writes them"
# One file per rank.
SESSION_FILES_MAX = 1_024


@dataclass(slots=True)
class _Sessions:
    cursor: dict[str, Any] = field(default_factory=dict)
    rollouts: list[Rollout] = field(default_factory=list)
    rows: int = 0
    more: bool = False
    dropped: int = 0
    why: str = ""


@bytetail.readable("the dumps")
def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
    """Samples dumped and sessions traced since ``cursor``.

    Raises:
        ScrapeError: ``not_a_run``, ``missing``.
    """
    path.stat()
    dumped, files = _is_dumped(path), _session_files(path)
    if not dumped and not files and not cursor:
        raise ScrapeError("not_a_run", f"no rollouts of AReaL in {path.name}: looked for {LOOKED_FOR}")
    dumps = read_dump(path, cursor.get("dumps", {}), limits, now)
    rest = replace(limits, tail_rows=limits.tail_rows - dumps.rows)
    sessions = _read_sessions(path, files, cursor.get("sessions", {}), rest, dumped)
    return Reading(
        rollouts=(*dumps.rollouts, *sessions.rollouts),
        cursor={"dumps": dumps.cursor, "sessions": sessions.cursor},
        more=dumps.more or sessions.more,
        dropped=dumps.dropped + sessions.dropped,
        why_dropped=dumps.why or sessions.why,
        samples_scraped=dumps.rows + sessions.rows,
        reader=", ".join(["rollout/*/*.jsonl"] * dumped + [f"{TRACES}/**/{PATTERN}"] * bool(files)),
    )


def _is_dumped(path: Path) -> bool:
    return any(versions(path / name) for name in FOLDERS)


def _session_files(path: Path) -> list[Path]:
    """Session files of the run, of its folder of traces, or the given file."""
    if path.is_file():
        return [path] if path.match(PATTERN) else []
    folder = path if path.name == TRACES else path / TRACES
    return sorted(islice(folder.rglob(PATTERN), SESSION_FILES_MAX)) if folder.is_dir() else []


def _read_sessions(
    root: Path, files: list[Path], cursor: dict[str, Any], limits: Limits, dumped: bool
) -> _Sessions:  # fmt: skip
    result = _Sessions()
    for file in files:
        name = file.relative_to(root).as_posix() if file != root else file.name
        file_cursor = cursor.get(name, {})
        if result.more or limits.tail_rows - result.rows <= 0:
            result.more, result.cursor[name] = True, file_cursor
            continue
        read = jsonl.read_jsonl(
            file, file_cursor.get("at", {}), replace(limits, tail_rows=limits.tail_rows - result.rows)
        )
        state = dict(file_cursor["lives"]) if file_cursor and not read.restarted else new_state()
        rows = [rollout_of_session(row, state, sampled=dumped) for row in read.rows]
        result.rollouts += (rollout for rollout in rows if rollout is not None)
        result.cursor[name] = {"at": read.cursor, "lives": state}
        result.more, result.rows = result.more or read.more, result.rows + len(rows) + read.dropped
        bad = rows.count(None)
        result.dropped += read.dropped + bad
        result.why = result.why or read.why or (f"a line of {file.name} is not a session of AReaL" if bad else "")
    return result


def matches_path(path: Path) -> str | None:
    """Recognises folders of dumps by their first file, and session files by their name and first row."""
    try:
        for name in FOLDERS:
            if shows(path / name):
                return f"{name}/ with AReaL's samples"
        return next((f"{file.name} with AReaL's sessions" for file in _session_files(path) if _is_sessions(file)), None)
    except (OSError, ScrapeError):
        return None


def _is_sessions(file: Path) -> bool:
    rows = jsonl.read_jsonl(file, {}, Limits(tail_bytes=1 << 20, tail_rows=3)).rows
    return any({"task_id", "session_id", "status", "submit_ts"} <= row.keys() for row in rows)


RECORD_FIELDS = (
    "group_id",
    "reward",
    "response_tokens",
    "version_start",
    "version_finish",
    "finished_at",
    "exit",
    "failures",
    "turns",
    "tool_calls",
)
"""See `collectors.model.Collector`."""

COLLECTOR = Collector(
    name="areal_rollouts",
    actor="generator",
    reads="rollouts of AReaL (dump_to_file, session_tracer): newest version, reward, tokens, times, rejected ones",
    versions="1.0.4 by source",
    tail=tail,
    matches_path=matches_path,
    looks_for=(LOOKED_FOR,),
    record_fields=RECORD_FIELDS,
)
