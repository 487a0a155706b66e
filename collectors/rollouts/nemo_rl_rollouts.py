"""Training data that NeMo-RL dumps: `train_data_stepN.jsonl` in its log folder, one row per sample.

A file is written whole after each step (7ea279abf: algorithms/grpo.py, utils/logger.py:1071), with each value in a list
of one. Groups have no ids: rows of one prompt follow each other. The prompt is the tokens before the first token with
loss, hashed in memory. Tokens and masks are counted, never parsed. `val_data_stepN.jsonl` has only conversations.

Not available: the version that generated (so no staleness of an asynchronous run), turns, times except the file's.
With `should_log_nemo_gym_responses` NeMo-RL writes no such file.
"""

import hashlib
import re
from pathlib import Path
from typing import Any

from collectors.formats.jsonl import number
from collectors.formats.rows import mapping, whole
from collectors.model import Collector, Consumption, Rollout
from collectors.rollout_files import (
    FilePart,
    ReadRequest,
    RowLine,
    StepFile,
    lines,
    list_items,
    listed,
    mask_ones,
    verbs_of,
)
from collectors.transport import rest

LOOKED_FOR = "train_data_stepN.jsonl of NeMo-RL"

_FILE = re.compile(r"train_data_step(\d{1,12})\.jsonl")
_EXPERIMENT = re.compile(r"exp_\d{3,6}")
# The first one in a mask; the prompt is before it.
_FIRST_ONE = re.compile(rb"[1t]")


def find(path: Path) -> list[StepFile]:
    """The files of a run's log folder (NeMo-RL numbers them: exp_001, ...), or of the last log folder in it."""
    if top_level := listed(path, _FILE):
        return top_level
    numbered = sorted((entry.name for entry in path.iterdir() if _EXPERIMENT.fullmatch(entry.name)), reverse=True)
    return next((files for name in numbered if (files := listed(path / name, _FILE, root=path))), [])


def _read(request: ReadRequest) -> FilePart:
    prompts = _Prompts(request.position.get("prompts") or [-1, ""])
    part = lines(request, lambda line: rollout(line, request.file, prompts), "row of NeMo-RL's training data")
    part.position["prompts"] = prompts.at(part.position["row"])
    return part


class _Prompts:
    """Numbers the groups of a file, row by row; ``last``: number and hash of the current group."""

    def __init__(self, last: Any) -> None:
        self._number, self._hash = int(last[0]), str(last[1])
        self._before: dict[int, list[Any]] = {}

    def number(self, row: int, prompt: bytes) -> int:
        self._before[row] = [self._number, self._hash]
        prompt_hash = hashlib.blake2b(prompt, digest_size=8).hexdigest()
        self._number, self._hash = self._number + (prompt_hash != self._hash), prompt_hash
        return self._number

    def at(self, row: int) -> list[Any]:
        """The state before a row."""
        return self._before.get(row, [self._number, self._hash])


def rollout(line: RowLine, file: StepFile, prompts: _Prompts) -> Rollout | None:
    """A row as a rollout; None for other rows."""
    row, raw = line.row, line.raw
    if "rewards" not in row or "idx" not in row:
        return None
    index, mask = whole(row["idx"]), list_items(raw, b"token_loss_mask")
    total, loss = whole(_unwrapped(row.get("input_lengths"))), mask_ones(raw, b"token_loss_mask")
    prompt = _prompt(mask, list_items(raw, b"token_ids"))
    return Rollout(
        rollout_id=f"{file.step}/{index if index is not None else line.index}",
        group_id=f"{file.step}/g{prompts.number(line.index, prompt)}" if prompt is not None else "",
        purpose="train",
        environment=rest.text(_agent(_unwrapped(row.get("agent_ref"))), 100),
        consumptions=(Consumption(max(0, file.step - 1), line.at),),
        prompt_tokens=total - loss if total is not None and loss is not None and total >= loss else None,
        response_tokens=loss,
        loss_tokens=loss
        if _unwrapped(row.get("sample_loss_mask")) in (1, 1.0, True)
        else 0
        if "sample_loss_mask" in row
        else None,
        reward=number(_unwrapped(row.get("filtered_rewards", row["rewards"]))),
    )


def _prompt(mask: bytes | None, tokens: bytes | None) -> bytes | None:
    """The prompt's tokens as written; None if the row has no tokens or no loss."""
    first = _FIRST_ONE.search(mask) if mask else None
    if mask is None or tokens is None or first is None:
        return None
    return b",".join(tokens.split(b",", mask.count(b",", 0, first.start()))[:-1])


def _unwrapped(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


def _agent(value: Any) -> Any:
    return mapping(value).get("name") if isinstance(value, dict) else value


tail, matches_path = verbs_of(find, _read, LOOKED_FOR, "{} of NeMo-RL")

RECORD_FIELDS = ("group_id", "reward", "response_tokens", "environment", "consumptions")
"""See `collectors.model.Collector`."""

COLLECTOR = Collector(
    name="nemo_rl_rollouts",
    actor="generator",
    reads="training data that NeMo-RL dumps (train_data_stepN.jsonl)",
    versions="7ea279abf (2026-08) by source",
    tail=tail,
    matches_path=matches_path,
    looks_for=(LOOKED_FOR,),
    record_fields=RECORD_FIELDS,
)
