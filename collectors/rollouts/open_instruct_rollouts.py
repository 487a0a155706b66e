"""Rollouts of open-instruct runs with `--save_traces`: `<rollouts_save_path>/<run>_rollouts_NNNNNN.jsonl`.

Files of about 10,000 rows, appended when a batch is ready for the trainer (e6c3044aa: rl_utils.py:30-160). The trainer
counts its steps from 0: a row of step N is trained from the weights after N steps. Token ids and log-probabilities are
counted and not parsed. Of several runs in the folder the one that began last is read.

Not available: the version that generated, times except the file's (new rows are spread evenly since the last read), and
filtered rollouts, because rows are what reached the trainer.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from collectors.formats.jsonl import number
from collectors.formats.rows import mapping, objects, whole
from collectors.model import Collector, Consumption, Rollout
from collectors.rollout_files import (
    FilePart,
    ReadRequest,
    RowLine,
    StepFile,
    begins,
    lines,
    list_length,
    listed,
    verbs_of,
)
from collectors.transport import rest

LOOKED_FOR = "<run>_rollouts_NNNNNN.jsonl of open-instruct's --save_traces"

_HEAD = re.compile(rb'\{"step": ?\d{1,12}, ?"sample_idx": ?\d')
_FILE = re.compile(r".{1,200}_rollouts_(\d{6,12})\.jsonl")
_RUN = re.compile(r"(.{1,200})_rollouts_\d{6,12}\.jsonl")
# vLLM's stop reason of a truncated completion.
LENGTH = "length"


def find(path: Path) -> list[StepFile]:
    """The newest run's files in the folder, in order."""
    runs: dict[str, list[StepFile]] = {}
    for file in listed(path, _FILE):
        match = _RUN.fullmatch(file.name)
        if match:
            runs.setdefault(match[1], []).append(file)
    runs_with_rollouts = {name: files for name, files in runs.items() if begins(files[0].path, _HEAD)}
    return (
        runs_with_rollouts[
            max(runs_with_rollouts, key=lambda name: (runs_with_rollouts[name][0].path.stat().st_mtime, name))
        ]
        if runs_with_rollouts
        else []
    )


def _read(request: ReadRequest) -> FilePart:
    return lines(request, rollout, "rollout of open-instruct", appended=True)


def rollout(line: RowLine) -> Rollout | None:
    """A row as a rollout; None for other rows than `RolloutRecord`."""
    row = line.row
    step, index, prompt = (whole(row.get(key)) for key in ("step", "sample_idx", "prompt_idx"))
    if step is None or index is None:
        return None
    tokens, info = list_length(line.raw, b"response_tokens"), mapping(row, "request_info")
    return Rollout(
        rollout_id=f"{step}/{index}",
        group_id=f"{step}/g{prompt}" if prompt is not None else "",
        purpose="train",
        environment=rest.text(_first(row.get("dataset")), 100),
        consumptions=(Consumption(step, line.at),),
        prompt_tokens=list_length(line.raw, b"prompt_tokens"),
        response_tokens=tokens,
        tool_calls=_tool_calls(info),
        reward=number(row.get("reward")),
        advantage=number(row.get("advantage")),
        truncated=row["finish_reason"] == LENGTH if isinstance(row.get("finish_reason"), str) else None,
    )


def _first(value: Any) -> Any:
    """The name of the data set; a row may have several."""
    return value[0] if isinstance(value, list) and value else value


def _tool_calls(info: Mapping[str, Any]) -> int | None:
    """Calls it made; the older field counts them, the newer lists them."""
    if isinstance(info.get("tool_call_stats"), list):
        return len(objects(info["tool_call_stats"]))
    return whole(info.get("num_calls"))


tail, matches_path = verbs_of(find, _read, LOOKED_FOR, "{} of open-instruct", appended=True)

RECORD_FIELDS = ("group_id", "reward", "response_tokens", "environment", "tool_calls", "consumptions")
"""See `collectors.model.Collector`."""

COLLECTOR = Collector(
    name="open_instruct_rollouts",
    actor="generator",
    reads="rollouts that open-instruct saves with --save_traces",
    versions="e6c3044aa (2026-08) by source",
    tail=tail,
    matches_path=matches_path,
    looks_for=(LOOKED_FOR,),
    record_fields=RECORD_FIELDS,
)
