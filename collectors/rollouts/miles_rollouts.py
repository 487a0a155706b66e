"""Rollouts of miles runs with `--dump-details DIR`: the outcome of each sample, and which samples were trained.

`DIR/dashboard/trajectories/*.jsonl` (with `--use-miles-dashboard`: hourly files of lifecycle events, `events`) has
times, turns and the engines' versions as they happen. `DIR/trajectory/N.jsonl` (conversations only, written whole
before rollout N is trained; `eval_N.jsonl` of evaluations) has rewards and shows that step N trained them (31f1ca961).
Versions count the updates of the engines from 1, so that rollout N is trained from version N + 1. The version is
unknown if the run was resumed or the engines' own versions are far behind (updates of several rollouts at once).

Not available: lengths of prompts, scoring, which groups were dropped as stale or for their rewards.
"""

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from msgspec import structs

from collectors.formats import jsonl
from collectors.formats.jsonl import number
from collectors.formats.rows import mapping, whole
from collectors.model import Collector, Consumption, Cursor, Limits, Reading, Rollout, ScrapeError, Span, Turn
from collectors.rollout_files import FilePart, ReadRequest, RowLine, StepFile, begins, follow, lines, listed
from collectors.transport import bytetail, rest

# ---- events
# miles' lifecycle events as rollouts: what each sample did, attempt by attempt (miles/dashboard/hooks.py:170).

# Limits of the state in the cursor, because the cursor is stored with every poll. Samples in flight.
MAX_SAMPLES = 4_000
# Spans of one sample.
MAX_SPANS = 24
# Turns of one sample.
MAX_TURNS = 200
KINDS = frozenset({"attempt_start", "gen_start", "gen_end", "tool_start", "tool_end", "attempt_end"})
ABORTED, TRUNCATED, FAILED = "aborted", "truncated", "failed"

# Aborted samples continue before other samples begin; one that did not within this time never continues.
GIVEN_UP_SECONDS = 300.0

SampleStates = dict[str, dict[str, Any]]
"""Sample -> ``at`` (dispatched), ``on`` (first generation), ``spans`` as in `Span`, ``turns`` as version and tokens,
``tries`` (attempts), ``late``: the version of its last turn is still to come, ``left``: when it was
aborted, ``group``."""


class Attempts:
    """Samples in flight, in the order of their begin."""

    def __init__(self, samples: Mapping[str, dict[str, Any]], group_size: int | None) -> None:
        # A deep copy, because the caller's cursor must not change.
        self._samples: SampleStates = copy.deepcopy(dict(samples))
        aborted = sorted((state["left"], key) for key, state in samples.items() if state["left"] is not None)
        self._aborted = {key: left for left, key in aborted}
        self._group_size = group_size
        self._changed: dict[str, Rollout] = {}
        self.newest: int | None = None

    def take(self, event: Mapping[str, Any]) -> bool:
        """Adds one event; False for other rows."""
        kind, ts, sample_index = event.get("kind"), number(event.get("ts")), whole(event.get("sample_index"))
        if not isinstance(kind, str) or kind not in KINDS or ts is None or sample_index is None:
            return False
        key, fresh = str(sample_index), str(sample_index) not in self._samples
        state = self._samples.setdefault(key, copy.deepcopy(_UNKNOWN))
        group, version = whole(event.get("group_index")), _digits(event.get("weight_version"))
        state["group"] = group if group is not None else state["group"]
        self.newest = max(
            (known_version for known_version in (self.newest, version) if known_version is not None), default=None
        )
        if kind == "attempt_start":
            self._begins(key, ts, fresh=fresh)
        _note(state, kind, ts, event)
        status = str(event.get("detail", "")) if kind == "attempt_end" else None
        if status == ABORTED:
            state["left"] = self._aborted[key] = ts
            _open(state["spans"], "suspended", ts)
        self._changed[key] = _rollout(key, state, self._group_size)
        if status is not None and status != ABORTED:
            self._changed[key] = _left(self._changed[key], ts, status)
            del self._samples[key]
        return True

    def _begins(self, key: str, ts: float, *, fresh: bool) -> None:
        """An attempt begins: an aborted sample continues, or a new one begins, after aborted ones that gave up."""
        self._samples[key]["left"] = None
        self._aborted.pop(key, None)
        while fresh and self._aborted:
            oldest, left = next(iter(self._aborted.items()))
            if left > ts - GIVEN_UP_SECONDS:
                return
            del self._aborted[oldest]
            state = self._samples.pop(oldest)
            _close(state["spans"], "suspended", left)
            self._changed[oldest] = _left(_rollout(oldest, state, self._group_size), left, ABORTED)

    def samples(self) -> SampleStates:
        """The state for the cursor: the newest samples."""
        return dict(list(self._samples.items())[-MAX_SAMPLES:])

    def rollouts(self) -> list[Rollout]:
        """The changed rollouts."""
        return list(self._changed.values())


_UNKNOWN: dict[str, Any] = {
    "at": None, "on": None, "spans": [], "turns": [], "tries": 0, "late": False, "left": None, "group": None,
}  # fmt: skip


def _rollout(key: str, state: dict[str, Any], group_size: int | None) -> Rollout:
    group = state["group"]
    turns: list[list[int | None]] = state["turns"]
    known_versions = [version for version, _ in turns if version is not None]
    tokens = [count for _, count in turns if count is not None]
    complete = bool(turns) and len(known_versions) == len(tokens) == len(turns)
    return Rollout(
        rollout_id=key,
        group_id=str(group) if group is not None else "",
        group_size=group_size if group is not None else None,
        attempt=state["tries"] or None,
        purpose="train",
        version_start=known_versions[0] if known_versions else None,
        token_versions=_token_versions(turns) if complete else (),
        dispatched_at=state["at"],
        started_at=state["on"],
        response_tokens=sum(tokens) if turns and len(tokens) == len(turns) else None,
        turns=tuple(Turn(version=version) for version, _ in turns),
        turn_count=len(turns) or None,
        spans=_spans(state),
    )


def _left(rollout: Rollout, ts: float, status: str) -> Rollout:
    versions = [turn.version for turn in rollout.turns if turn.version is not None]
    return structs.replace(
        rollout,
        finished_at=ts,
        version_finish=versions[-1] if versions else None,
        truncated=status == TRUNCATED if status else None,
        exit="aborted_oversample" if status == ABORTED else None,
        error=FAILED if status == FAILED else "",
    )


def _token_versions(turns: list[list[int | None]]) -> tuple[tuple[int, int], ...]:
    runs = groupby(turns, key=lambda turn: turn[0])
    return tuple((version or 0, sum(tokens or 0 for _, tokens in run)) for version, run in runs)


def _spans(state: dict[str, Any]) -> tuple[Span, ...]:
    return tuple(Span(*span) for span in state["spans"])


def _note(state: dict[str, Any], kind: str, ts: float, event: Mapping[str, Any]) -> None:
    """Adds an event to the state of a sample."""
    version, tokens = _digits(event.get("weight_version")), _digits(event.get("detail"))
    spans: list[list[Any]] = state["spans"]
    if state["late"]:
        # The multi-turn function reports a turn's end before it copies the engine's answer, which has the version.
        state["turns"][-1][0], state["late"] = version, False
        last = next((span for span in reversed(spans) if span[0] == "generate"), None)
        if last is not None and last[3] is None:
            last[3] = version
    if kind == "attempt_start":
        state["at"], state["tries"] = state["at"] if state["at"] is not None else ts, state["tries"] + 1
        _close(spans, "suspended", ts)
        _open(spans, "queued", ts)
    elif kind == "gen_start":
        state["on"] = state["on"] if state["on"] is not None else ts
        _close(spans, "queued", ts)
        if spans and spans[-1][0] == "generate" and spans[-1][2] is None:
            spans.pop()  # the attempt's own span: its turns follow, with their own times
        _open(spans, "generate", ts)
    elif kind == "gen_end":
        state["late"] = tokens is not None
        _close(spans, "generate", ts, None if state["late"] else version)
        state["turns"] = [*state["turns"], [None if state["late"] else version, tokens]][:MAX_TURNS]
    elif kind == "tool_start":
        _open(spans, "tool", ts)
    elif kind == "tool_end":
        _close(spans, "tool", ts)
    else:
        _ended(state, ts, version)


def _ended(state: dict[str, Any], ts: float, version: int | None) -> None:
    """An attempt's end closes open spans; a generation without turns counts as one turn."""
    if any(span[0] == "generate" and span[2] is None for span in state["spans"]):
        state["turns"] = [*state["turns"], [version, None]][:MAX_TURNS]
    for kind in {span[0] for span in state["spans"] if span[2] is None}:
        _close(state["spans"], kind, ts, version if kind == "generate" else None)


def _open(spans: list[list[Any]], kind: str, ts: float) -> None:
    if len(spans) < MAX_SPANS:
        spans.append([kind, ts, None, None])


def _close(spans: list[list[Any]], kind: str, ts: float, version: int | None = None) -> None:
    for span in reversed(spans):
        if span[0] == kind and span[2] is None:
            span[2], span[3] = ts, version
            return


def _digits(value: Any) -> int | None:
    """Versions and counts are texts, empty if unknown."""
    text = rest.text(value, 20)
    return int(text) if text.isascii() and text.isdigit() else None


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
    with bytetail.readable(path.name[:100]):
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
