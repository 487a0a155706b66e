"""Finds the groups in a file of TRL's completions, its columns of rewards, and whether it repeats another file.

The file does not state them. Rows are in the order of generation, `num_generations` of one prompt after another.
Columns of users (`log_extra`) follow those of the reward functions (TRL 1.16.0, trainer/grpo_trainer.py:3342).
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

from collectors.formats.jsonl import number
from collectors.formats.parquet import Table

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
