"""HF's trainer_state.json: the whole log history, rewritten at every checkpoint and at the end, without times."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from collectors.model import Limits, ScrapeError
from collectors.readers import jsonl
from collectors.readers.jsonl import number
from collectors.trainers import _trl_keys

NAME = "trainer_state.json"
# For rows that do not say how long a step took: any guess keeps the order, and one second does not look precise.
UNKNOWN_STEP_SECONDS = 1.0

_CHECKPOINT = re.compile(r"checkpoint-(\d{1,15})")


@dataclass(slots=True)
class State:
    """``rows``: finite numbers per logged step, ascending; ``finished``: the evidence, or empty."""

    step: int
    modified: float
    facts: dict[str, str | float] = field(default_factory=dict)
    rows: list[dict[str, float]] = field(default_factory=list)
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
        ScrapeError: ``missing``, ``too_large``, ``garbage`` (also when met half written: the next call reads it).
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
        raise ScrapeError("empty", f"{path.name} holds nothing")
    document = jsonl.parse(text)
    if document is None or not isinstance(document.get("log_history"), list):
        raise ScrapeError("garbage", f"{path.name} is no trainer state")
    state = State(int(number(document.get("global_step")) or 0), modified)
    most = number(document.get("max_steps"))
    if most is not None and most > 0:
        state.facts["max_steps"] = most
        if state.step >= most:
            state.finished = f"{NAME} says step {state.step} of {most:.0f}"
    for entry in document["log_history"]:
        _entry(entry, state)
    return state


def _entry(entry: object, state: State) -> None:
    row = _trl_keys.canonical(entry) if isinstance(entry, dict) else {}
    if "step" not in row:
        state.dropped += 1
        state.why = state.why or f"an entry of {NAME} without a step"
    elif "train_runtime" in row:
        state.finished = state.finished or f"{NAME} has the closing row"
    # Evaluation rows repeat a training step's number and would overwrite it.
    elif not any(key.startswith("eval_") for key in row):
        state.rows.append(row)


def is_reinforcement(state: State) -> bool:
    """GRPO's keys in the history: the same file is written by supervised fine-tuning."""
    return any({"reward", "completions/mean_length"} <= row.keys() for row in state.rows[:20])


def dated(state: State) -> Iterator[tuple[float, dict[str, float]]]:
    """Rows with estimated epoch seconds, oldest first: the last one at the file's age, the others step time back."""
    ts = state.modified
    stamps = []
    for index in range(len(state.rows) - 1, -1, -1):
        row = state.rows[index]
        stamps.append(ts)
        before = state.rows[index - 1]["step"] if index else row["step"] - 1
        seconds = row.get("step_time", row.get("perf/step_s", UNKNOWN_STEP_SECONDS))
        ts -= max(0.0, seconds) * max(1.0, row["step"] - before)
    return zip(reversed(stamps), state.rows, strict=True)
