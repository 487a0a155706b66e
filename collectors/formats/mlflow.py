"""MLflow's local stores as a sink: the SQLite backend (mlflow.db) and the old folder of files (mlruns/).

Checked with MLflow 3.17 and 3.18. Table `metrics` has one row per key and value; the rows of one call share time and
step. It is followed by rowid, which rises with every commit of SQLite's one writer, so late rows of an asynchronous
logger (HF's callback) are neither lost nor read twice. The reader selects the run that started last and has logged.
NaN is a flag next to a zero; infinities are the largest float.
"""

import ast
import asyncio
import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import copysign, inf, nan
from pathlib import Path
from sys import float_info
from typing import Any

import httpx

from collectors.formats import sqlite as files
from collectors.formats.rows import Logged, Logs, Sink, newest, walk
from collectors.model import Cursor, Limits, ScrapeError
from collectors.transport import bytetail, rest

# ---- files
# MLflow's file store (mlruns/<experiment>/<run>/), which MLflow 3.17 still supports as an option.

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


def find_files(path: Path) -> list[Path]:
    """The ``metrics`` folders of the runs below a folder, the newest first."""
    metas = [meta for meta in walk(path, lambda file: file.name == "meta.yaml") if (meta.parent / "metrics").is_dir()]
    return newest(meta.parent / "metrics" for meta in metas)


def read_files(path: Path, cursor: Cursor, limits: Limits) -> Logs:
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
    with bytetail.readable(path.name), path.open("rb") as file:
        size = path.stat().st_size
        offset = before.get(key, 0) if before.get(key, 0) <= size else 0
        file.seek(offset)
        data = file.read(max_bytes)
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


CANDIDATES = 20
# Bytes of a value without its key, for the bound on bytes read.
VALUE_BYTES = 40
# Characters of a parameter; longer values are not scalars.
SETTING_CHARS = 8_000

# Selected by name, so that a table in migration is an error and is not taken for another format's.
_FIRST_COLUMNS = {"key", "value", "timestamp", "run_uuid"}
_ALL_COLUMNS = _FIRST_COLUMNS | {"step", "is_nan"}

_RUN = (
    "SELECT run_uuid, name, status FROM runs WHERE lifecycle_stage = 'active'"
    " ORDER BY EXISTS (SELECT 1 FROM metrics WHERE metrics.run_uuid = runs.run_uuid) DESC, start_time DESC LIMIT 1"
)
_VALUES = (
    "SELECT rowid, key, value, timestamp, step, is_nan FROM metrics WHERE run_uuid = ? AND rowid > ? ORDER BY rowid"
)
_MARK = "SELECT key, timestamp, step, run_uuid FROM metrics WHERE rowid = ?"

ENDS: Mapping[str, str] = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "was killed"}
"""Statuses of a finished run -> text; any but ``FINISHED`` is a failure."""


def find(path: Path) -> list[Path]:
    """MLflow databases and metrics folders of its file store, the newest first. A locked database counts."""
    if path.is_file():
        return [path] if path.suffix == ".db" and _is_mlflow(path) else []
    if not path.is_dir():
        return []
    databases = [file for file in walk(path, lambda file: file.suffix == ".db")[:CANDIDATES] if _is_mlflow(file)]
    return databases or find_files(path)


def _is_mlflow(path: Path) -> bool:
    try:
        columns = files.reading(path, lambda database: files.columns(database, "metrics"), "MLflow")
    except ScrapeError as error:
        return error.kind == "locked"
    return columns >= _FIRST_COLUMNS


def read(path: Path, cursor: Cursor, limits: Limits) -> Logs:
    """Rows of the newest run since ``cursor``.

    Raises:
        ScrapeError: ``missing``; ``locked``, also while MLflow sets the database up; ``garbage``.
    """
    if path.is_dir():
        return read_files(path, cursor, limits)
    return files.reading(path, lambda database: _read(database, path, cursor, limits), "MLflow")


def _read(database: sqlite3.Connection, path: Path, cursor: Cursor, limits: Limits) -> Logs:
    columns = files.columns(database, "metrics")
    if not columns >= _FIRST_COLUMNS or not files.columns(database, "runs"):
        raise ScrapeError("garbage", f"{path.name} is not an MLflow database")
    if not columns >= _ALL_COLUMNS:
        raise ScrapeError("locked", f"{path.name} is being set up by MLflow")
    run = database.execute(_RUN).fetchone()
    if run is None:
        return Logs(cursor={})
    run_id, name, status = map(str, run)
    same = bool(cursor) and cursor.get("run") == run_id and _continued(database, path, cursor)
    logs = Logs(restarted=bool(cursor) and not same, run_name=name, config=_config(database, run_id))
    logs.cursor = dict(cursor) if same else {"inode": path.stat().st_ino, "run": run_id, "id": 0, "mark": []}
    _collect(database, run_id, limits, logs)
    logs.modified = path.stat().st_mtime
    if not logs.more and status in ENDS:
        logs.finished, logs.failed = f"MLflow's run {ENDS[status]}", status != "FINISHED"
    return logs


def _continued(database: sqlite3.Connection, path: Path, cursor: Cursor) -> bool:
    """Returns whether the last row read is unchanged. rowids change after a VACUUM or when a run is deleted."""
    if cursor.get("inode") != path.stat().st_ino:
        return False
    return cursor.get("id", 0) == 0 or _mark(database, int(cursor["id"])) == cursor.get("mark")


def _mark(database: sqlite3.Connection, row_id: int) -> list[Any]:
    return list(database.execute(_MARK, (row_id,)).fetchone() or ())


def _collect(database: sqlite3.Connection, run_id: str, limits: Limits, logs: Logs) -> None:
    size, last = 0, logs.cursor["id"]
    for row_id, key, value, stamp, step, is_nan in database.execute(_VALUES, (run_id, last)):
        ts = stamp / 1000.0
        row = logs.rows[-1] if logs.rows else None
        if row is None or (row.ts, row.step) != (ts, step) or key in row.values:
            if len(logs.rows) >= limits.tail_rows or size > limits.tail_bytes:
                logs.more = True
                break
            row = Logged({}, step, ts)
            logs.rows.append(row)
        row.values[key] = nan if is_nan else _value(value)
        size += len(key) + VALUE_BYTES
        last = row_id
    if last != logs.cursor["id"]:
        logs.cursor |= {"id": last, "mark": _mark(database, last)}


def _value(value: float) -> float:
    return value if abs(value) < float_info.max else copysign(inf, value)


def _config(database: sqlite3.Connection, run_id: str) -> dict[str, Any]:
    rows = database.execute(
        "SELECT key, value FROM params WHERE run_uuid = ? AND length(value) <= ?", (run_id, SETTING_CHARS)
    )
    return settings(rows)


SINK = Sink("mlflow", "an MLflow *.db or mlruns/", find, read, writers=True)


# ---- rest
# MLflow's tracking server over its REST API: the newest run's metrics, as rows (checked with MLflow 3.17.2).

API = "/api/2.0/mlflow"
# Requests of histories per poll, 2 to 5 ms each on a near server; the rest follows in the next poll, at once.
MAX_REQUESTS = 60
# MLflow's own bound on a page of a history is 25,000.
PAGE_VALUES = 5_000
EXPERIMENTS, RUNS = 500, 50
# Share of a poll's time for histories; the rest is for the searches before.
TIME_SHARE = 0.5


@dataclass(slots=True)
class Follower:
    """The reading position on one server.

    Attributes:
        run: the id of the run that is read.
        seen: key -> (milliseconds, step) of the newest value that was emitted or held.
        held: values not yet emitted, by (milliseconds, step) of their call.
        todo: key -> page token, of histories still to be requested.
        repeated: keys logged several times a step: their newest value is not the only new one.
    """

    run: str = ""
    seen: dict[str, tuple[int, int]] = field(default_factory=dict)
    held: dict[tuple[int, int], dict[str, float]] = field(default_factory=dict)
    todo: dict[str, str] = field(default_factory=dict)
    repeated: set[str] = field(default_factory=set)


async def read_rest(client: httpx.AsyncClient, follower: Follower, limits: Limits) -> Logs:
    """Rows of the newest run since the last call; `Logs.cursor` names the run.

    Raises:
        ScrapeError: as `rest.get_json`; ``not_a_run`` when no run has logged anything yet.
    """
    run = await _newest_run(client, limits)
    info, data = _object(run, "info"), _object(run, "data")
    run_id = rest.text(info.get("run_id"), 64)
    restarted = follower.run not in ("", run_id)
    if follower.run != run_id:
        follower.run, follower.seen, follower.held, follower.todo, follower.repeated = run_id, {}, {}, {}, set()
    _plan(data, follower)
    await _histories(client, follower, limits)
    logs = Logs(restarted=restarted, cursor={"run": run_id}, more=bool(follower.todo))
    if not follower.todo:
        logs.rows = [Logged(values, step, ms / 1000.0) for (ms, step), values in sorted(follower.held.items())]
        follower.held = {}
    logs.run_name = rest.text(info.get("run_name"), 200)
    logs.config = settings((rest.text(p.get("key"), 250), str(p.get("value", ""))) for p in _objects(data, "params"))
    status = str(info.get("status"))
    if not logs.more and status in ENDS:
        logs.finished, logs.failed = f"MLflow's run {ENDS[status]}", status != "FINISHED"
    return logs


async def _newest_run(client: httpx.AsyncClient, limits: Limits) -> dict[str, Any]:
    """The run that started last among those with metrics; a running one comes before finished ones."""
    experiments = await rest.search_json(client, f"{API}/experiments/search", {"max_results": EXPERIMENTS}, limits)
    ids = [rest.text(experiment.get("experiment_id"), 64) for experiment in _objects(experiments.json, "experiments")]
    query = {"experiment_ids": ids, "max_results": RUNS, "order_by": ["attributes.start_time DESC"]}
    answer = await rest.search_json(client, f"{API}/runs/search", query, limits)
    runs = [run for run in _objects(answer.json, "runs") if _objects(_object(run, "data"), "metrics")]
    if not runs:
        raise ScrapeError("not_a_run", "no run on this MLflow server has logged a metric yet")
    return next((run for run in runs if _object(run, "info").get("status") == "RUNNING"), runs[0])


async def matches_server(client: httpx.AsyncClient, limits: Limits) -> bool:
    """Returns whether an MLflow server answers."""
    try:
        experiments = await rest.search_json(client, f"{API}/experiments/search", {"max_results": 1}, limits)
    except ScrapeError:
        return False
    return bool(_objects(experiments.json, "experiments"))


def _plan(data: Mapping[str, Any], follower: Follower) -> None:
    """Takes the newest values that directly follow the previous ones; plans requests of histories for other keys."""
    for key, at, value in _values(data):
        before = follower.seen.get(key)
        if before == at or key in follower.todo:
            continue
        if before is not None and at[1] == before[1] + 1 and key not in follower.repeated:
            _hold_value(follower, key, at, value)
        else:
            follower.todo[key] = ""


async def _histories(client: httpx.AsyncClient, follower: Follower, limits: Limits) -> None:
    clock = asyncio.get_running_loop().time
    until = clock() + limits.timeout_seconds * TIME_SHARE
    for _ in range(MAX_REQUESTS):
        if not follower.todo or clock() > until:
            return
        key, page = next(iter(follower.todo.items()))
        params: dict[str, str | int | list[str]] = {"run_id": follower.run, "metric_key": key}
        params |= {"max_results": PAGE_VALUES, **({"page_token": page} if page else {})}
        answer = await rest.get_json(client, f"{API}/metrics/get-history", params, limits)
        _collect_history(key, answer.json, follower)
        token = rest.text(answer.json.get("next_page_token"), 4096) if isinstance(answer.json, dict) else ""
        if token and token != page:
            follower.todo[key] = token
        else:
            del follower.todo[key]


def _collect_history(key: str, history: Any, follower: Follower) -> None:
    before, steps = follower.seen.get(key), set()
    for _, at, value in sorted(_values(history), key=lambda value_row: value_row[1]):
        if at[1] in steps:
            follower.repeated.add(key)
        steps.add(at[1])
        if before is None or at > before:
            _hold_value(follower, key, at, value)


def _hold_value(follower: Follower, key: str, at: tuple[int, int], value: float) -> None:
    follower.held.setdefault(at, {})[key] = value
    follower.seen[key] = max(at, follower.seen.get(key, at))


def _values(answer: Any) -> Iterator[tuple[str, tuple[int, int], float]]:
    """(key, (milliseconds, step), value); JSON has no NaN, so the server writes it as text."""
    for item in _objects(answer, "metrics"):
        key, stamp, step = item.get("key"), rest.number(item.get("timestamp")), rest.number(item.get("step", 0))
        if isinstance(key, str) and stamp is not None and step is not None:
            yield key[:250], (int(stamp), int(step)), _float(item.get("value"))


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return float("nan")


def _object(answer: Any, key: str) -> dict[str, Any]:
    value = answer.get(key) if isinstance(answer, dict) else None
    return value if isinstance(value, dict) else {}


def _objects(answer: Any, key: str) -> list[dict[str, Any]]:
    values = answer.get(key) if isinstance(answer, dict) else None
    return [item for item in values if isinstance(item, dict)] if isinstance(values, list) else []
