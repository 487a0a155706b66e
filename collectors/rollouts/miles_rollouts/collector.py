"""Rollouts of miles runs with `--dump-details DIR`: the outcome of each sample, and which samples were trained.

`DIR/dashboard/trajectories/*.jsonl` (with `--use-miles-dashboard`: hourly files of lifecycle events, `events`) has
times, turns and the engines' versions as they happen. `DIR/trajectory/N.jsonl` (conversations only, written whole
before rollout N is trained; `eval_N.jsonl` of evaluations) has rewards and shows that step N trained them (31f1ca961).
Versions count the updates of the engines from 1, so that rollout N is trained from version N + 1. The version is
unknown if the run was resumed or the engines' own versions are far behind (updates of several rollouts at once).

Not available: lengths of prompts, scoring, which groups were dropped as stale or for their rewards.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from collectors.formats import jsonl
from collectors.formats.jsonl import number
from collectors.formats.shapes import mapping, whole
from collectors.model import Collector, Consumption, Cursor, Limits, Reading, Rollout, ScrapeError
from collectors.rollout_files.rows import RowLine, lines
from collectors.rollout_files.step_files import FilePart, ReadRequest, StepFile, follow, listed
from collectors.rollout_files.verbs import begins
from collectors.rollouts.miles_rollouts.events import ABORTED, TRUNCATED, Attempts
from collectors.transport import bytetail

LOOKED_FOR = "dashboard/trajectories/*.jsonl or trajectory/N.jsonl of miles' --dump-details"
EVENTS, CONVERSATIONS, META = "dashboard/trajectories", "trajectory", "dashboard/meta.json"
META_BYTES = 256 << 10
# Newest hourly files that are read: clocks of two processes may put a late event into the previous hour.
OPEN_HOURS = 3

_EVENT = re.compile(rb'\{"ts": ?[0-9.e+]+, ?"kind": ?"')
_CONVERSATION = re.compile(rb'\{"sample_index": ?')
_TRAINED = re.compile(r"(\d{1,12})\.jsonl")
_EVALUATED = re.compile(r"eval_(\d{1,12})\.jsonl")


@dataclass(slots=True)
class _Run:
    """The contents of the dashboard's meta.json, and the newest version in the events."""

    group_size: int | None = None
    started: float | None = None
    resumed: bool = False
    newest: int | None = None


def _hours(path: Path) -> list[Path]:
    """The event files, oldest first; a single file in older versions without hours."""
    single, folder = path / f"{EVENTS}.jsonl", path / EVENTS
    hours = sorted(file for file in folder.iterdir() if file.suffix == ".jsonl") if folder.is_dir() else []
    return [*([single] if single.is_file() else []), *hours]


def _conversations(path: Path) -> list[StepFile]:
    folder = path / CONVERSATIONS
    files = listed(folder, _TRAINED, "train", path) + listed(folder, _EVALUATED, "eval", path)
    return files if any(begins(file.path, _CONVERSATION) for file in (*files[:1], *files[-1:])) else []


def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
    """New information on rollouts: first the events, then the trained samples.

    Raises:
        ScrapeError: ``not_a_run``, ``missing``.
    """
    try:
        path.stat()
        hours, files = _hours(path), _conversations(path)
        if not hours and not files and not cursor:
            raise ScrapeError("not_a_run", f"no rollouts in {path.name}: looked for {LOOKED_FOR}")
        run = _run(path, files)
        events = _events(hours, cursor.get("events", {}), limits, run)
        left = replace(
            limits, tail_rows=limits.tail_rows - events.rows, tail_bytes=limits.tail_bytes - events.bytes_read
        )
        trajectory_cursor: Mapping[str, Any] = cursor.get("trajectory", {})
        # Events come before trained samples, also in a back-fill.
        trained_samples = (
            Reading(cursor=trajectory_cursor)
            if events.more
            else follow(files, trajectory_cursor, left, now, lambda request: _read(request, run))
        )
    except OSError as error:
        raise ScrapeError("missing", f"{path.name[:100]} cannot be read: {type(error).__name__}") from None
    return Reading(
        rollouts=(*events.rollouts, *trained_samples.rollouts),
        facts=trained_samples.facts,
        gaps=trained_samples.gaps,
        cursor={"events": events.cursor, "trajectory": trained_samples.cursor},
        more=events.more or trained_samples.more,
        dropped=events.dropped + trained_samples.dropped,
        why_dropped=events.why or trained_samples.why_dropped,
        samples_scraped=events.rows + trained_samples.samples_scraped,
    )


def _run(path: Path, files: list[StepFile]) -> _Run:
    try:
        with (path / META).open("rb") as file:
            meta = jsonl.parse(file.read(META_BYTES)) or {}
    except OSError:
        return _Run()
    started = number(meta.get("start_ts"))
    # Each start writes the file again; a rollout older than the start belongs to another incarnation.
    first = files[0].path.stat().st_mtime if files and started is not None else None
    resumed = first is not None and started is not None and first < started
    return _Run(whole(mapping(meta, "args").get("n_samples_per_prompt")), started, resumed)


@dataclass(slots=True)
class _Events:
    rollouts: list[Rollout] = field(default_factory=list)
    cursor: dict[str, Any] = field(default_factory=dict)
    rows: int = 0
    bytes_read: int = 0
    more: bool = False
    dropped: int = 0
    why: str = ""


def _events(hours: list[Path], cursor: Mapping[str, Any], limits: Limits, run: _Run) -> _Events:
    """Events appended since ``cursor``: ``{hours: {name: cursor}, known, newest}``."""
    result, attempts = _Events(), Attempts(cursor.get("known", {}), run.group_size)
    attempts.newest = whole(cursor.get("newest"))
    cursors: dict[str, Any] = dict(cursor.get("hours", {}))
    oldest = min(cursors, default="")
    for file in hours:
        if (cursors and file.name < oldest and file.name not in cursors) or result.more:
            continue
        left = replace(
            limits, tail_rows=limits.tail_rows - result.rows, tail_bytes=limits.tail_bytes - result.bytes_read
        )
        if left.tail_rows <= 0 or left.tail_bytes <= 0:
            result.more = True
            continue
        _add_events(bytetail.read(file, cursors.get(file.name, {}), left), file, cursors, attempts, result)
    names = sorted(cursors)[-OPEN_HOURS:]
    run.newest = attempts.newest
    result.cursor = {
        "hours": {name: cursors[name] for name in names},
        "known": attempts.samples(),
        "newest": run.newest,
    }
    result.rollouts = attempts.rollouts()
    return result


def _add_events(read: bytetail.Lines, file: Path, cursors: dict[str, Any], attempts: Attempts, result: _Events) -> None:
    cursors[file.name] = read.cursor
    result.more, result.rows = read.more, result.rows + len(read.lines)
    result.bytes_read += sum(len(line) for _, line in read.lines)
    result.dropped, result.why = result.dropped + read.dropped, result.why or read.why
    for offset, line in read.lines:
        event = jsonl.parse(line)
        if event is None or not attempts.take(event):
            result.dropped += 1
            result.why = result.why or f"the line at byte {offset} of {file.name} is not an event of a trajectory"


def _read(request: ReadRequest, run: _Run) -> FilePart:
    return lines(request, lambda line: rollout(line, request.file, run), "conversation of miles")


def rollout(line: RowLine, file: StepFile, run: _Run) -> Rollout | None:
    """A row as a rollout, which completes the events of the same sample."""
    row = line.row
    sample, group, status = whole(row.get("sample_index")), whole(row.get("group_index")), row.get("status")
    if sample is None or not isinstance(status, str):
        return None
    trained, prefix = file.purpose == "train", "" if file.purpose == "train" else f"{file.path.stem}/"
    # A sample of several turns may have several rows, so rows do not give the group size.
    size = run.group_size if trained else None
    return Rollout(
        rollout_id=f"{prefix}{sample}",
        group_id=f"{prefix}{group}" if group is not None else "",
        group_size=size,
        group_complete_at=line.at if size is None else None,
        purpose=file.purpose,
        consumptions=(Consumption(_version(file, line.at, run), line.at),) if trained else (),
        finished_at=None if trained else line.at,
        scored_at=None if trained else line.at,
        reward=number(row.get("reward")),
        truncated=status == TRUNCATED if status != ABORTED else None,
    )


def _version(file: StepFile, at: float, run: _Run) -> int | None:
    """The engines' version just before a rollout is trained; None if counting rollouts does not give it."""
    version = file.step + 1
    behind = run.newest is not None and run.newest < version // 2
    later = run.resumed and run.started is not None and at >= run.started
    return None if behind or later else version


def matches_path(path: Path) -> str | None:
    """The event file, or the first file of conversations."""
    try:
        hours, files = _hours(path), _conversations(path)
    except OSError:
        return None
    if hours and begins(hours[0], _EVENT):
        return f"{hours[0].relative_to(path).as_posix()} of miles' dashboard"
    return f"{files[0].name} in {CONVERSATIONS}/ of miles" if files else None


RECORD_FIELDS = (
    "group_id",
    "reward",
    "response_tokens",
    "version_start",
    "version_finish",
    "token_versions",
    "consumptions",
    "dispatched_at",
    "started_at",
    "finished_at",
    "exit",
    "failures",
    "turns",
    "parts",
)
"""See `collectors.model.Collector`."""

COLLECTOR = Collector(
    name="miles_rollouts",
    actor="generator",
    reads="rollouts of miles runs (lifecycle events and conversations of --dump-details)",
    versions="31f1ca961 (2026-08) by source",
    tail=tail,
    matches_path=matches_path,
    looks_for=(LOOKED_FOR,),
    record_fields=RECORD_FIELDS,
)
