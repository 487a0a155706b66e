"""Completions of TRL's GRPOTrainer: `completions/completions_NNNNN.parquet`, written with `log_completions=True`.

A file is the last batch generated before step N was logged (TRL 1.16.0, trainer/grpo_trainer.py:3312). It was generated
by the weights of step N - 1 and trained in step N. A batch that is trained again (`num_iterations`,
`steps_per_generation`) is written again with the same rollouts. With `logging_steps` above 1 only every such batch is
written: those rollouts are a sample, so nothing is counted from them.

Not available: lengths in tokens, truncation, times except the file's, weights of reward functions other than 1 (the
sum of their columns is the reward). An evaluation's rows replace those of a training step that logs at the same step.
"""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from collectors.formats import parquet
from collectors.formats.jsonl import number
from collectors.formats.parquet import Table
from collectors.model import Collector, Consumption, Cursor, Limits, Reading, Rollout
from collectors.rollout_files import FilePart, ReadRequest, StepFile, listed, tail_of, with_parquet

# ---- groups
# Finds the groups in a file of TRL's completions, its columns of rewards, and whether it repeats another file.

PROMPT, COMPLETION, ADVANTAGE = "prompt", "completion", "advantage"
ROLES = "completion.list.element.role"
# Advantages have single precision: a smaller difference within a group was none before they were stored.
EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class CompletionRow:
    """One completion: its reward is the sum of the reward functions' columns that are not NaN."""

    reward: float | None
    advantage: float | None
    turns: int | None
    tool_calls: int | None


@dataclass(frozen=True, slots=True)
class CompletionBatch:
    """A file's rows. ``group_size``: rows per group; ``print``: a hash of the rows."""

    rows: Sequence[CompletionRow]
    group_size: int
    print: str


def read(table: Table) -> CompletionBatch:
    """Reads the whole file without its texts: prompts are hashed in memory, completions are not decoded.

    Raises:
        ScrapeError: ``garbage``.
    """
    names = [name for name in table.numeric if name not in ("step", ADVANTAGE)]
    roles = [ROLES] if ROLES in table.leaves() else []
    columns = [name for name in (PROMPT, ADVANTAGE) if name in table.columns]
    prompts: list[bytes] = []
    rows_read: list[Mapping[str, Any]] = []
    for row in table.read([*columns, *names, *roles]):
        prompts.append(hashlib.blake2b(repr(row.pop(PROMPT, None)).encode(), digest_size=8).digest())
        rows_read.append({**row, COMPLETION: _roles(row.get(COMPLETION))})
    size = group_size(prompts)
    rewarded = reward_columns(names, rows_read, size)
    rows = [_row(row, rewarded) for row in rows_read]
    texts = [table.size(leaf) for leaf in table.leaves() if leaf.startswith(COMPLETION)]
    seal = repr((texts, prompts, [(row.reward, row.advantage) for row in rows])).encode()
    return CompletionBatch(rows, size, hashlib.blake2b(seal, digest_size=8).hexdigest())


def group_size(prompts: Sequence[bytes]) -> int:
    """Rows per group: the greatest common divisor of the runs of equal prompts (a prompt may be drawn twice)."""
    return math.gcd(*(len(list(run)) for _, run in groupby(prompts)))


def reward_columns(names: Sequence[str], rows: Sequence[Mapping[str, Any]], size: int) -> list[str]:
    """The columns of reward functions: the longest prefix of columns whose sums order groups as advantages do.

    All columns if no prefix does (weighted functions, or an estimator that is not relative to the group).
    """
    for count in range(len(names), 0, -1):
        sums = [_sum(row, names[:count]) for row in rows]
        if all(_agree(sums[at : at + size], rows[at : at + size]) for at in range(0, len(rows), size)):
            return list(names[:count])
    return list(names)


def _agree(sums: Sequence[float | None], rows: Sequence[Mapping[str, Any]]) -> bool:
    """Returns whether within each group a higher reward has a higher advantage and an equal one an equal advantage."""
    pairs = [(reward, gain) for reward, row in zip(sums, rows, strict=True)
             if reward is not None and (gain := number(row.get(ADVANTAGE))) is not None]  # fmt: skip
    pairs.sort()
    steps = [(after[0] - before[0], after[1] - before[1]) for before, after in pairwise(pairs)]
    return all((reward > EPSILON) == (gain > EPSILON) and gain > -EPSILON for reward, gain in steps)


def _sum(row: Mapping[str, Any], names: Sequence[str]) -> float | None:
    scores = [value for name in names if (value := number(row.get(name))) is not None]
    return math.fsum(scores) if scores else None


def _row(row: Mapping[str, Any], rewarded: Sequence[str]) -> CompletionRow:
    roles = row[COMPLETION]
    return CompletionRow(
        _sum(row, rewarded),
        number(row.get(ADVANTAGE)),
        sum(role == "assistant" for role in roles) if roles is not None else None,
        sum(role == "tool" for role in roles) if roles is not None else None,
    )


def _roles(messages: Any) -> list[Any] | None:
    """The roles of a conversation's messages; None for a plain text."""
    return (
        [message.get("role") for message in messages if isinstance(message, Mapping)]
        if isinstance(messages, list)
        else None
    )


FOLDER = "completions"
LOOKED_FOR = "completions/completions_NNNNN.parquet of TRL"
# Bytes. A batch of 16,384 completions of 32,000 characters; no step has a larger file.
FILE_BYTES = 1 << 30

_FILE = re.compile(r"completions_(\d{5,12})\.parquet")


def find(path: Path) -> list[StepFile]:
    """The files of a run's output folder, or of its folder of completions."""
    if path.is_file():
        match = _FILE.fullmatch(path.name)
        return [StepFile(int(match[1]), path, path.name)] if match else []
    return listed(path / FOLDER, _FILE, root=path) or listed(path, _FILE)


def _read(request: ReadRequest, steps: list[int]) -> FilePart:
    file = request.file
    if file.path.stat().st_size > FILE_BYTES:
        return FilePart(dropped=1, why=f"{file.path.name} is larger than {FILE_BYTES} bytes")
    with parquet.opened(file.path) as table:
        batch = read(table)
    begin = int(request.position.get("row", 0))
    end = _end(begin, begin + request.rows, len(batch.rows), batch.group_size)
    first = _first(request, batch.print)
    # The previous step was logged, too: the file has all that was trained between the two.
    sampled = file.step - max((step for step in steps if step < file.step), default=0) > 1
    rollouts = [_rollout(batch, index, first, request, sampled) for index in range(begin, end)]
    part = FilePart(rollouts, len(rollouts), file.path.stat().st_size, {"row": end}, end == len(batch.rows))
    return part


def _end(begin: int, row_limit: int, rows: int, size: int) -> int:
    """The row where this call stops: at the end of a group, if one fits."""
    return min(
        rows,
        max(row_limit - row_limit % size, begin + size)
        if row_limit < rows and row_limit - begin >= size
        else row_limit,
    )


def _first(request: ReadRequest, seal: str) -> int:
    """The step that these rows were generated for; an earlier one if they are trained again."""
    last, memory = request.memory.get("print"), request.memory
    if seal != last or request.file.step < memory["step"]:
        memory |= {"print": seal, "step": request.file.step}
    return int(memory["step"])


def _rollout(batch: CompletionBatch, index: int, first: int, request: ReadRequest, sampled: bool) -> Rollout:
    row, version = batch.rows[index], max(0, first - 1)
    made = None if sampled else version
    return Rollout(
        rollout_id=f"{first}/{index}",
        group_id=f"{first}/g{index // batch.group_size}",
        group_size=batch.group_size,
        purpose="train",
        version_dispatched=made,
        version_start=made,
        version_finish=made,
        consumptions=(Consumption(max(0, request.file.step - 1), request.at),),
        turn_count=row.turns,
        tool_calls=row.tool_calls,
        reward=row.reward,
        advantage=row.advantage,
        sampled=sampled,
    )


def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
    """Rollouts of the steps whose completions were written since ``cursor``.

    Raises:
        ScrapeError: ``not_a_run``, ``missing`` (also when pyarrow is not installed).
    """
    steps: list[int] = []

    def find_and_note_steps(folder: Path) -> list[StepFile]:
        files = with_parquet(find)(folder)
        steps.extend(file.step for file in files)
        return files

    return tail_of(find_and_note_steps, lambda request: _read(request, steps), LOOKED_FOR, path, cursor, limits, now)


def matches_path(path: Path) -> str | None:
    """The newest file of completions."""
    try:
        files = find(path)
        if files and parquet.looks_like(files[-1].path):
            return f"{files[-1].name} of TRL" + ("" if parquet.installed() else f" ({parquet.INSTALL})")
    except OSError:
        pass
    return None


RECORD_FIELDS = (
    "group_id",
    "reward",
    "version_dispatched",
    "version_start",
    "version_finish",
    "turns",
    "tool_calls",
    "consumptions",
)
"""See `collectors.model.Collector`."""

COLLECTOR = Collector(
    name="trl_completions",
    actor="generator",
    reads="completions of TRL GRPO runs (completions/*.parquet; needs the extra parquet)",
    versions="TRL 1.16.0 by source and recorded files",
    tail=tail,
    matches_path=matches_path,
    looks_for=(LOOKED_FOR,),
    record_fields=RECORD_FIELDS,
)
