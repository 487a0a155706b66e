"""Rollouts of Tinker cookbook runs: `iteration_N/{train,eval_*}_rollout_summaries.jsonl`, one row per trajectory.

A file is written whole after each iteration (0.6.1: rl/rollout_logging.py, rl/train.py), without texts except those an
environment logs. A group is sampled with the weights of one step, so its staleness is
``iteration - sampling_client_step``. Groups with equal rewards are in the file even if `remove_constant_reward_groups`
excludes them from training; they count as zero advantage. Asynchronous recipes drop them before the file is written.

Not available: where (in flight, in the group, in the queue) a rollout became stale, times except the file's, when
single trajectories ended, truncation, which groups failed.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from collectors.formats import jsonl
from collectors.formats.jsonl import number
from collectors.formats.rows import whole
from collectors.model import Collector, Consumption, Purpose, Rollout, Turn
from collectors.rollout_files import FilePart, ReadRequest, RowLine, StepFile, count, lines, listed, verbs_of
from collectors.transport import rest

LOOKED_FOR = "iteration_N/train_rollout_summaries.jsonl of the Tinker cookbook"
CONFIG_BYTES = 1 << 20
MAX_TURNS = 1_000

_ITERATION = re.compile(r"iteration_(\d{1,12})")
_SUMMARIES = re.compile(r"(train|eval_.{1,120})_rollout_summaries\.jsonl")


def find(path: Path) -> list[StepFile]:
    """Files of all iterations of a run's log folder."""
    files = []
    for folder in listed(path, _ITERATION):
        for name in _names(folder.path):
            purpose: Purpose = "train" if name.startswith("train_") else "eval"
            files.append(StepFile(folder.step, folder.path / name, f"{folder.path.name}/{name}", purpose))
    return files


def _names(folder: Path) -> list[str]:
    return (
        sorted(entry.name for entry in folder.iterdir() if _SUMMARIES.fullmatch(entry.name)) if folder.is_dir() else []
    )


def _read(request: ReadRequest) -> FilePart:
    part = lines(request, lambda line: rollout(line, request.file), "rollout summary")
    if request.file.purpose == "train" and _removes_constant(request.file.path.parents[1]):
        part.rollouts = _without_constant(part.rollouts)
    return part


def rollout(line: RowLine, file: StepFile) -> Rollout | None:
    """A row as a rollout; None for other rows."""
    row = line.row
    group, index = whole(row.get("group_idx")), whole(row.get("traj_idx"))
    if group is None or index is None or not isinstance(row.get("steps"), list):
        return None
    steps = [step for step in row["steps"] if isinstance(step, Mapping)]
    version, iteration = whole(row.get("sampling_client_step")), whole(row.get("iteration"))
    tokens = count(step.get("ac_len") for step in steps)
    label = "train" if file.purpose == "train" else file.path.name.removesuffix("_rollout_summaries.jsonl")
    name = f"{label}/{file.step}/{group}"
    trained = file.purpose == "train"
    return Rollout(
        rollout_id=f"{name}/{index}",
        group_id=name,
        purpose=file.purpose,
        environment=_environment(row, file),
        version_dispatched=version,
        version_start=version,
        # All tokens are by one policy; the newest version at the last token is unknown.
        token_versions=((version, tokens),) if version is not None and tokens else (),
        consumptions=(Consumption(iteration if iteration is not None else file.step, line.at),) if trained else (),
        finished_at=None if trained else line.at,
        scored_at=None if trained else line.at,
        prompt_tokens=whole(steps[0].get("ob_len")) if steps else None,
        response_tokens=tokens,
        loss_tokens=tokens,
        turns=tuple(Turn(version=version) for _ in steps) if len(steps) <= MAX_TURNS else (),
        turn_count=len(steps),
        reward=number(row.get("total_reward")),
    )


def _environment(row: Mapping[str, Any], file: StepFile) -> str:
    tags = row.get("tags")
    tag = rest.text(tags[0], 100) if isinstance(tags, list) and tags else ""
    return tag or (rest.text(row.get("split"), 100).removeprefix("eval/") if file.purpose == "eval" else "")


def _removes_constant(folder: Path) -> bool:
    """Returns whether the recipe drops groups with equal rewards after writing them, as synchronous recipes do."""
    try:
        with (folder / "config.json").open("rb") as file:
            config = jsonl.parse(file.read(CONFIG_BYTES)) or {}
    except OSError:
        return False
    later = config.get("async_config") or config.get("stream_minibatch_config")
    return config.get("remove_constant_reward_groups") is True and not later


def _without_constant(rollouts: Sequence[Rollout]) -> list[Rollout]:
    rewards: dict[str, set[float | None]] = {}
    for rollout in rollouts:
        rewards.setdefault(rollout.group_id, set()).add(rollout.reward)
    return [
        structs.replace(rollout, consumptions=(), exit="zero_advantage", finished_at=rollout.consumptions[0].at)
        if len(rewards[rollout.group_id]) == 1 and rollout.consumptions
        else rollout
        for rollout in rollouts
    ]


tail, matches_path = verbs_of(find, _read, LOOKED_FOR, "{} of the Tinker cookbook")

RECORD_FIELDS = (
    "group_id",
    "reward",
    "response_tokens",
    "environment",
    "version_dispatched",
    "version_start",
    "token_versions",
    "turns",
    "consumptions",
)
"""See `collectors.model.Collector`."""

COLLECTOR = Collector(
    name="tinker_rollouts",
    actor="generator",
    reads="rollout summaries of Tinker cookbook runs (iteration_N/*_rollout_summaries.jsonl)",
    versions="0.6.1 by source",
    tail=tail,
    matches_path=matches_path,
    looks_for=(LOOKED_FOR,),
    record_fields=RECORD_FIELDS,
)
