"""Rollouts that ROLL dumps (`rollout_dump_dir`): `rollout_dump_data.step_N.jsonl`, one object of columns per step.

A separate process writes a file whole (8eb27cc2: pipeline/rlvr/utils.py, pipeline/agentic/utils.py:298). Rows of the
RLVR pipeline are responses; groups follow each other by `id` or prompt. Rows of the agentic pipeline are trajectories
with a JSON text each; ROLL itself leaves out step samples without one. Steps count from 0: step N is trained from the
weights after N steps.

Not available: the version that generated, lengths in tokens, what filters removed later; for RLVR times except the
file's. The agentic pipeline dumps evaluations under the same name; their mode distinguishes them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from collectors.formats import jsonl
from collectors.formats import rows as rows_format
from collectors.formats.jsonl import number
from collectors.formats.rows import mapping, whole
from collectors.model import Collector, Consumption, Rollout
from collectors.rollout_files import FilePart, ReadRequest, StepFile, listed, verbs_of
from collectors.transport import rest

LOOKED_FOR = "rollout_dump_data.step_N.jsonl of ROLL's rollout_dump_dir"
# Bytes. One line is a whole step with its texts; a larger one is dropped, with that reason.
FILE_BYTES = 96 << 20

_TRAJECTORIES = re.compile(rb'"trajectory_data": ?(\[(?:[^"\[\]]|"[^"\\]*+(?:\\.[^"\\]*+)*+")*+\])', re.DOTALL)
# tag_start_end_group_env_episode_seed_date_time_microseconds (agent_native_env_manager.py).
_STEPS = re.compile(r"_(\d{1,9})_(\d{1,9})_[^_]{1,20}_[^_]{1,20}_[^_]{1,20}_[^_]{1,20}_\d{8}_\d{6}_\d{6}$")
_FILE = re.compile(r"rollout_dump_data\.step_(\d{1,12})\.jsonl")


def find(path: Path) -> list[StepFile]:
    """The files of a dump folder."""
    return listed(path, _FILE)


def _read(request: ReadRequest) -> FilePart:
    size = request.file.path.stat().st_size
    if size > FILE_BYTES:
        return FilePart(dropped=1, why=f"{request.file.path.name} is larger than {FILE_BYTES} bytes")
    data = request.file.path.read_bytes()
    agentic = _TRAJECTORIES.search(data)
    columns = jsonl.parse(b'{"trajectory_data":' + agentic[1] + b"}" if agentic else rows_format.hashed(data))
    if columns is None or not all(isinstance(value, list) for value in columns.values()):
        return FilePart(dropped=1, why=f"{request.file.path.name} is not an object of columns")
    del data
    made = list(_trajectories(columns["trajectory_data"], request)) if agentic else list(_responses(columns, request))
    begin = int(request.position.get("row", 0))
    end = min(len(made), begin + request.rows)
    valid = [rollout for rollout in made[begin:end] if rollout is not None]
    lost = end - begin - len(valid)
    why = f"a trajectory of {request.file.path.name} is not a JSON object" if lost else ""
    return FilePart(valid, end - begin, size, {"row": end}, end == len(made), lost, why)


def _responses(columns: Mapping[str, list[Any]], request: ReadRequest) -> Iterator[Rollout]:
    """RLVR: a row is a response; consecutive rows of one id (or of one prompt, without ids) are a group."""
    rows = _table(columns)
    key = "id" if any(row.get("id") not in (None, "") for row in rows) else "prompt"
    index = 0
    for number_of, (_, run) in enumerate(groupby(rows, key=lambda row: repr(row.get(key)))):
        group = list(run)
        for row in group:
            yield _response(
                row, f"{request.file.step}/{index}", f"{request.file.step}/g{number_of}", len(group), request
            )
            index += 1


def _table(columns: Mapping[str, list[Any]]) -> list[dict[str, Any]]:
    """The columns of equal length as rows; ROLL writes all of them with equal length."""
    rows = max((len(column) for column in columns.values()), default=0)
    full_columns = {name: column for name, column in columns.items() if len(column) == rows}
    return [{name: column[index] for name, column in full_columns.items()} for index in range(rows)]


def _response(row: Mapping[str, Any], name: str, group: str, size: int, request: ReadRequest) -> Rollout:
    return Rollout(
        rollout_id=name,
        group_id=group,
        group_size=size,
        purpose="train",
        environment=rest.text(row.get("domain"), 100) or rest.text(row.get("tag"), 100),
        difficulty=rest.text(row.get("difficulty"), 60),
        consumptions=(Consumption(request.file.step, request.at),),
        reward=number(row.get("scores")),
    )


def _trajectories(texts: Sequence[Any], request: ReadRequest) -> Iterator[Rollout | None]:
    for index, text in enumerate(texts):
        row = jsonl.parse(text) if isinstance(text, str) else None
        yield _trajectory(row, index, request) if row is not None else None


def _trajectory(row: Mapping[str, Any], index: int, request: ReadRequest) -> Rollout:
    """Agentic: the policy's steps are those that the environment's manager recorded at begin and end."""
    env, lengths, failure = (mapping(row, name) for name in ("env_info", "length_info", "failure_info"))
    evaluated = env.get("mode") == "val"
    turns, versions = (
        whole(lengths.get("num_actions", row.get("num_actions"))),
        _STEPS.search(str(row.get("trajectory_id"))),
    )
    truncated = lengths.get("truncated")
    return Rollout(
        rollout_id=f"{request.file.step}/{rest.text(row.get('trajectory_id'), 160) or index}",
        group_id=_group(env, request),
        purpose="eval" if evaluated else "train",
        environment=rest.text(env.get("tag"), 100),
        version_start=int(versions[1]) if versions else None,
        version_finish=int(versions[2]) if versions else None,
        consumptions=() if evaluated else (Consumption(request.file.step, request.at),),
        finished_at=request.at if evaluated else None,
        group_complete_at=request.at,
        response_tokens=_tokens(lengths, turns),
        turn_count=turns,
        reward=number(mapping(row, "reward_info").get("episode_reward")),
        truncated=truncated if isinstance(truncated, bool) else None,
        error=rest.clean(failure.get("failure_mode")) if failure.get("has_failure") is True else "",
    )


def _group(env: Mapping[str, Any], request: ReadRequest) -> str:
    """Trajectories of one group share its id, the episode's and the seed."""
    parts = [
        rest.text(str(env[key]), 40) for key in ("tag", "group_id", "episode_id", "seed") if env.get(key) is not None
    ]
    return f"{request.file.step}/{'_'.join(parts)}" if env.get("group_id") is not None else ""


def _tokens(lengths: Mapping[str, Any], turns: int | None) -> int | None:
    """Tokens of all steps, from their mean, which ROLL rounds to hundredths."""
    mean = number(lengths.get("step_response_length"))
    return round(mean * turns) if mean is not None and turns is not None else None


tail, matches_path = verbs_of(find, _read, LOOKED_FOR, "{} of ROLL")

RECORD_FIELDS = (
    "group_id",
    "reward",
    "response_tokens",
    "environment",
    "version_start",
    "version_finish",
    "turns",
    "consumptions",
    "failures",
)
"""See `collectors.model.Collector`."""

COLLECTOR = Collector(
    name="roll_rollouts",
    actor="generator",
    reads="rollouts that ROLL dumps (rollout_dump_dir)",
    versions="8eb27cc2 (2026-08) by source",
    tail=tail,
    matches_path=matches_path,
    looks_for=(LOOKED_FOR,),
    record_fields=RECORD_FIELDS,
)
