"""Rollouts from AReaL's dumps (`rollout.dump_to_file`) and session traces (`perf_tracer.session_tracer`).

Both are off by default; either is enough. If both exist the dumps count, because they have version, reward and tokens,
and no key joins a session to its sample. Sessions are then timelines of some rollouts (``sampled``).

Not available: when the trainer used a rollout, the version of each token, the oldest version in it.
"""

from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from collectors.formats import jsonl
from collectors.model import Collector, Cursor, Limits, Reading, Rollout, ScrapeError
from collectors.rollouts.areal_rollouts import dumps as areal_rollouts_dumps
from collectors.rollouts.areal_rollouts import sessions as areal_rollouts_sessions

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


def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
    """Samples dumped and sessions traced since ``cursor``.

    Raises:
        ScrapeError: ``not_a_run``, ``missing``.
    """
    try:
        return _tail(path, cursor, limits, now)
    except OSError as error:
        raise ScrapeError("missing", f"the dumps cannot be read: {type(error).__name__}") from None


def _tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
    path.stat()
    dumped, files = _is_dumped(path), _session_files(path)
    if not dumped and not files and not cursor:
        raise ScrapeError("not_a_run", f"no rollouts of AReaL in {path.name}: looked for {LOOKED_FOR}")
    dumps = areal_rollouts_dumps.read(path, cursor.get("dumps", {}), limits, now)
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
    return any(areal_rollouts_dumps.versions(path / name) for name in areal_rollouts_dumps.FOLDERS)


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
        read = jsonl.read(file, file_cursor.get("at", {}), replace(limits, tail_rows=limits.tail_rows - result.rows))
        state = (
            dict(file_cursor["lives"]) if file_cursor and not read.restarted else areal_rollouts_sessions.new_state()
        )
        rows = [areal_rollouts_sessions.rollout(row, state, sampled=dumped) for row in read.rows]
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
        for name in areal_rollouts_dumps.FOLDERS:
            if areal_rollouts_dumps.shows(path / name):
                return f"{name}/ with AReaL's samples"
        return next((f"{file.name} with AReaL's sessions" for file in _session_files(path) if _is_sessions(file)), None)
    except (OSError, ScrapeError):
        return None


def _is_sessions(file: Path) -> bool:
    rows = jsonl.read(file, {}, Limits(tail_bytes=1 << 20, tail_rows=3)).rows
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
