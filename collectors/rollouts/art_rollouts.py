"""Trajectories of ART runs: `trajectories/<split>/NNNN.parquet`, one file per split and step (openpipe-art 0.5.18).

Written whole with each call of `model.log` (utils/trajectory_logging.py). Split `train` is what was trained: by the
pipeline trainer under the step it made (so from the weights one step before), by a loop of one's own under the step
that its weights have. Split `discarded` holds groups without a difference in reward, at most 50 a step; any other split
is an evaluation. Turns and tool calls are counted in the messages' flags; texts are not decoded.

Does not know: the policy version (it is in memory only), tokens, times but the file's own, trajectories that failed.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from collectors.formats import jsonl, parquet
from collectors.formats.jsonl import number
from collectors.formats.shapes import mapping
from collectors.model import Collector, Consumption, Cursor, Limits, Purpose, Reading, Rollout
from collectors.rollout_files.step_files import FilePart, Look, StepFile, listed
from collectors.rollout_files.verbs import first_of, tail_of, with_parquet

LOOKED_FOR = "trajectories/<split>/NNNN.parquet of ART"
FOLDER, TRAINED, DISCARDED = "trajectories", "train", "discarded"
FILE_BYTES = 1 << 30
STATE_BYTES = 1 << 20
MAX_SPLITS = 100

_FILE = re.compile(r"(\d{4,12})\.parquet")
_TRAINABLE, _CALLS = "messages.list.element.trainable", "messages.list.element.tool_calls"
_COLUMNS = ("group_index", "reward", _TRAINABLE, _CALLS)


def find(path: Path) -> list[StepFile]:
    """Files of all splits of a model's folder."""
    folder = path / FOLDER
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        splits = sorted(one.name for one in islice(entries, MAX_SPLITS) if one.is_dir())
    purposes: dict[str, Purpose] = {split: "train" if split in (TRAINED, DISCARDED) else "eval" for split in splits}
    return [file for split in splits for file in listed(folder / split, _FILE, purposes[split], path)]


def _read(look: Look, made_by_pipeline: bool) -> FilePart:
    file = look.file.path
    if (size := file.stat().st_size) > FILE_BYTES:
        return FilePart(dropped=1, why=f"{file.name} is larger than {FILE_BYTES} bytes")
    with parquet.opened(file) as table:
        if not set(_COLUMNS) <= {*table.columns, *table.leaves()}:
            return FilePart(dropped=1, why=f"{file.name} has not the columns of trajectories")
        rows = list(table.read(_COLUMNS))
    begin = int(look.place.get("row", 0))
    end = min(len(rows), begin + look.rows)
    made = list(_rollouts(rows, look, made_by_pipeline))[begin:end]
    return FilePart(made, end - begin, size, {"row": end}, end == len(rows))


def _rollouts(rows: Sequence[Mapping[str, Any]], look: Look, made_by_pipeline: bool) -> Iterator[Rollout]:
    split, step = look.file.path.parent.name, look.file.step
    trained, discarded = split == TRAINED, split == DISCARDED
    used = (Consumption(max(0, step - 1) if made_by_pipeline else step, look.at),) if trained else ()
    index = 0
    for group, run in groupby(rows, key=lambda row: row["group_index"]):
        members = list(run)
        for row in members:
            messages = row.get("messages")
            yield Rollout(
                rollout_id=f"{split}/{step}/{index}",
                group_id=f"{split}/{step}/g{group}",
                group_size=len(members),
                purpose=look.file.purpose,
                environment="" if look.file.purpose == "train" else split,
                consumptions=used,
                finished_at=None if trained else look.at,
                scored_at=None if trained else look.at,
                turn_count=_turns(messages),
                tool_calls=_tool_calls(messages),
                reward=number(row.get("reward")),
                exit="zero_advantage" if discarded else None,
            )
            index += 1


def _turns(messages: Any) -> int | None:
    """Messages of the policy's own: those it may be trained on."""
    return sum(one.get("trainable") is True for one in messages) if isinstance(messages, list) else None


def _tool_calls(messages: Any) -> int | None:
    if not isinstance(messages, list):
        return None
    calls = [jsonl.parse(f'{{"calls": {text}}}') for one in messages if (text := one.get("tool_calls"))]
    return sum(len(found["calls"]) for found in calls if found is not None and isinstance(found.get("calls"), list))


def _by_pipeline(folder: Path) -> bool:
    """Is it the pipeline trainer's? It keeps its place in state.json."""
    try:
        with (folder / "state.json").open("rb") as file:
            return bool(mapping(jsonl.parse(file.read(STATE_BYTES)), "pipeline_trainer"))
    except OSError:
        return False


def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
    """Trajectories of the steps written since ``cursor``.

    Raises:
        ScrapeError: ``not_a_run``, ``missing`` (also when pyarrow is not installed).
    """
    pipeline = _by_pipeline(path)
    return tail_of(with_parquet(find), lambda look: _read(look, pipeline), LOOKED_FOR, path, cursor, limits, now)


def matches_path(path: Path) -> str | None:
    """The first file of trajectories."""
    found = first_of(find, path)
    if found is None:
        return None
    return f"{found.name} of ART" + ("" if parquet.installed() else f" ({parquet.INSTALL})")


RECORD_FIELDS = ("group_id", "reward", "turns", "tool_calls", "consumptions", "exit")
"""See `collectors.model.Collector`."""

COLLECTOR = Collector(
    name="art_rollouts",
    actor="generator",
    reads="trajectories that ART writes (trajectories/<split>/*.parquet; needs rollscope[parquet])",
    versions="openpipe-art 0.5.18 by source",
    tail=tail,
    matches_path=matches_path,
    looks_for=(LOOKED_FOR,),
    record_fields=RECORD_FIELDS,
)
