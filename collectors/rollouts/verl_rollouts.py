"""Generations that verl dumps: `<trainer.rollout_data_dir>/<step>.jsonl`, and `validation_data_dir` likewise.

A file is a step's batch, rewritten whole (0.9.1: trainer/ppo/v1/trainer_base.py:1225, trainer/ppo/ray_trainer.py:479).
The V1 trainers add `uid`, ``{prompt}_{rollout}_{output}``, which names the group. The older trainers do not, and may
reorder the rows: there a group is the rows of one prompt, hashed in memory.

Not available: the version that generated (so no staleness of an asynchronous run), lengths, times except the file's.
"""

import hashlib
import os
import re
from itertools import islice
from pathlib import Path

from collectors.formats.jsonl import number
from collectors.model import Collector, Consumption, Purpose, Rollout
from collectors.rollout_files import FilePart, ReadRequest, RowLine, StepFile, begins, lines, listed, verbs_of
from collectors.transport import rest

LOOKED_FOR = "<step>.jsonl of verl's rollout_data_dir, there or one folder below"
# Folders of a run's folder that are searched.
MAX_FOLDERS = 200

_FILE = re.compile(r"(\d{1,12})\.jsonl")
_HEAD = re.compile(rb'\{"input": ?"')
_EVALUATION = re.compile(r"(?:.*[^a-z])?e?val.*", re.IGNORECASE)
_INPUT = re.compile(rb'"input": ?("[^"\\]*+(?:\\.[^"\\]*+)*+")', re.DOTALL)
# The trainer's key: prompt, rollout of the prompt, output of the rollout.
_UID = re.compile(r"(.{1,120})_(\d{1,9})_(\d{1,9})")


def find(path: Path) -> list[StepFile]:
    """The dump's files: in the folder given, and in the folders right below it."""
    files = _dump(path, path)
    with os.scandir(path) as entries:
        folders = sorted(entry.name for entry in islice(entries, MAX_FOLDERS) if entry.is_dir())
    return files + [file for name in folders for file in _dump(path / name, path)]


def _dump(folder: Path, root: Path) -> list[StepFile]:
    """Files of one folder; the name of the folder shows evaluations, because the rows do not."""
    purpose: Purpose = "eval" if _EVALUATION.fullmatch(folder.name) else "train"
    files = listed(folder, _FILE, purpose, root)
    return files if files and any(begins(file.path, _HEAD) for file in (files[0], files[-1])) else []


def _read(request: ReadRequest) -> FilePart:
    prompts: dict[str, int] = dict(request.position.get("prompts", {}))
    part = lines(request, lambda line: rollout(line, request.file, prompts), "generation of verl")
    part.position["prompts"] = prompts
    return part


def rollout(line: RowLine, file: StepFile, prompts: dict[str, int]) -> Rollout | None:
    """A row as a rollout; None for other rows. ``prompts``: hash of a prompt -> its number in the file."""
    row = line.row
    if "input" not in row or "output" not in row or "score" not in row:
        return None
    trained, prefix = file.purpose == "train", f"{file.path.parent.name}/" if file.purpose == "eval" else ""
    named = _UID.fullmatch(row["uid"]) if isinstance(row.get("uid"), str) else None
    group = named[1] if named else f"p{prompts.setdefault(_hash(line.raw), len(prompts))}"
    return Rollout(
        rollout_id=f"{prefix}{file.step}/{named[0] if named else line.index}",
        group_id=f"{prefix}{file.step}/{group}",
        purpose=file.purpose,
        environment=rest.text(row.get("data_source"), 100),
        consumptions=(Consumption(max(0, file.step - 1), line.at),) if trained else (),
        finished_at=None if trained else line.at,
        scored_at=None if trained else line.at,
        # Rows of one prompt may be apart, so they cannot be counted here; the file's time completes the batch.
        group_complete_at=None if named else line.at,
        reward=number(row.get("score")),
    )


def _hash(raw: bytes) -> str:
    prompt = _INPUT.search(raw)
    return hashlib.blake2b(prompt[1] if prompt else b"", digest_size=6).hexdigest()


tail, matches_path = verbs_of(find, _read, LOOKED_FOR, "{}, generations that verl dumped")

RECORD_FIELDS = ("group_id", "reward", "environment", "consumptions")
"""See `collectors.model.Collector`."""

COLLECTOR = Collector(
    name="verl_rollouts",
    actor="generator",
    reads="generations that verl dumps (trainer.rollout_data_dir, validation_data_dir)",
    versions="0.9.1 by source",
    tail=tail,
    matches_path=matches_path,
    looks_for=(LOOKED_FOR,),
    record_fields=RECORD_FIELDS,
)
