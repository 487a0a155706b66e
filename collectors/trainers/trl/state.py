"""HF's trainer_state.json as a sink: the whole log history, rewritten at checkpoints and at the end, without times.

Its steps are dated backwards from the file's own age.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collectors.formats import jsonl
from collectors.formats.jsonl import number
from collectors.formats.rows import Logged, Logs, Sink
from collectors.model import Cursor, Limits, ScrapeError
from collectors.trainers.trl.printed import MS_SWIFT

NAME = "trainer_state.json"
# For rows without the duration of their step. Any estimate keeps the order; one second does not look precise.
UNKNOWN_STEP_SECONDS = 1.0

# Not a setting of TRL: the history has rewards, so it is not of supervised fine-tuning.
REWARDED = "rewards in the history"

# The second until version 0.16.
LENGTHS = frozenset(("completions/mean_length", "completion_length"))
_CHECKPOINT = re.compile(r"checkpoint-(\d{1,15})")


@dataclass(slots=True)
class State:
    """``rows``: logged values per step, ascending; ``finished``: the evidence as text, or empty."""

    step: int
    modified: float
    facts: dict[str, str | float] = field(default_factory=dict)
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    finished: str = ""
    dropped: int = 0
    why: str = ""


def find(path: Path) -> Path | None:
    """The state file: the path itself, in the folder, or in its newest checkpoint."""
    if path.is_file():
        return path if path.name == NAME else None
    if (path / NAME).is_file():
        return path / NAME
    checkpoints = [
        (int(match.group(1)), folder / NAME)
        for folder in path.glob("checkpoint-*")
        if (match := _CHECKPOINT.fullmatch(folder.name)) and (folder / NAME).is_file()
    ]
    return max(checkpoints)[1] if checkpoints else None


def read(path: Path, limits: Limits) -> State:
    """The file as it is now.

    Raises:
        ScrapeError: ``missing``, ``too_large``, ``garbage`` (also for a file being written: the next call reads it).
    """
    try:
        with path.open("rb") as file:
            modified = path.stat().st_mtime
            text = file.read(limits.body_bytes + 1)
    except OSError as error:
        raise ScrapeError("missing", f"{path.name} cannot be read: {type(error).__name__}") from None
    if len(text) > limits.body_bytes:
        raise ScrapeError("too_large", f"{path.name} is larger than {limits.body_bytes} bytes")
    if not text.strip():
        raise ScrapeError("empty", f"{path.name} is empty")
    document = jsonl.parse(text)
    if document is None or not isinstance(document.get("log_history"), list):
        raise ScrapeError("garbage", f"{path.name} is not a trainer state")
    state = State(int(number(document.get("global_step")) or 0), modified)
    max_steps = number(document.get("max_steps"))
    if max_steps is not None and max_steps > 0:
        state.facts["max_steps"] = max_steps
        if state.step >= max_steps:
            state.finished = f"{NAME} reports step {state.step} of {max_steps:.0f}"
    # With another strategy than steps it is still the default, 500; a row covers at most the steps before it.
    logging_steps = number(document.get("logging_steps"))
    if logging_steps is not None and logging_steps >= 1:
        state.facts["logging_steps"] = logging_steps
    for entry in document["log_history"]:
        _entry(entry, state)
    return state


def _entry(entry: object, state: State) -> None:
    if not isinstance(entry, dict) or number(entry.get("step")) is None:
        state.dropped += 1
        state.why = state.why or f"an entry of {NAME} without a step"
    elif "train_runtime" in entry:
        state.finished = state.finished or f"{NAME} has the closing row"
    # Evaluation rows repeat a training step's number and would overwrite it.
    elif not any(key.startswith("eval_") for key in entry):
        state.rows.append(entry)


def is_reinforcement(state: State) -> bool:
    """Returns whether the history has GRPO's keys: supervised fine-tuning writes the same file."""
    rows = state.rows[:20]
    if any(re.fullmatch(mark, key) for row in rows for mark in MS_SWIFT for key in row):
        return False
    return any("reward" in row and not LENGTHS.isdisjoint(row) for row in rows)


def dated(state: State) -> Iterator[tuple[float, Mapping[str, Any]]]:
    """Rows with estimated epoch seconds, oldest first: the last has the file's time, each other one step less."""
    ts = state.modified
    stamps = []
    for index in range(len(state.rows) - 1, -1, -1):
        row = state.rows[index]
        stamps.append(ts)
        before = state.rows[index - 1]["step"] if index else row["step"] - 1
        ts -= max(0.0, _seconds(row)) * max(1.0, row["step"] - before)
    return zip(reversed(stamps), state.rows, strict=True)


def _seconds(row: Mapping[str, Any]) -> float:
    durations = (number(row.get(key)) for key in ("step_time", "perf/step_s"))
    return next((seconds for seconds in durations if seconds is not None), UNKNOWN_STEP_SECONDS)


def _find(path: Path) -> list[Path]:
    """The folder, not the file in it, because the next checkpoint's file continues the same history."""
    state_path = find(path)
    return [] if state_path is None else [path]


def _read(path: Path, cursor: Cursor, limits: Limits) -> Logs:
    """Steps beyond the cursor's ``{step}``; a history that was rewound continues from its current end.

    Raises:
        ScrapeError: ``missing``, ``too_large``, ``garbage``, ``empty``.
    """
    state_path = find(path)
    if state_path is None:
        raise ScrapeError("missing", f"{NAME} was removed")
    state = read(state_path, limits)
    done = min(int(cursor.get("step", 0)), state.step)
    new = [Logged(dict(row), int(row["step"]), ts, estimated=True) for ts, row in dated(state) if row["step"] > done]
    rows = new[: limits.tail_rows]
    config: dict[str, Any] = dict(state.facts)
    if any("reward" in row for row in state.rows):
        config[REWARDED] = True
    logs = Logs(rows, {"step": int(rows[-1].step or 0) if rows else done}, len(new) > len(rows))
    logs.dropped, logs.why, logs.config, logs.finished = state.dropped, state.why, config, state.finished
    return logs


SINK = Sink(NAME, f"a {NAME} (also under checkpoint-*/)", _find, _read)
