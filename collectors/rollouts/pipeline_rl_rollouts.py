"""Rollouts in PipelineRL's own streams (`streams=files`, the default): a line per group when all of it is finished.

A line of `streams/actor/0/0/0.jsonl` is a training group, of `actor_test` an evaluation; a sample is one turn of a
rollout (58d393458: actor.py, rollouts.py). Its versions count samples: `weight_update_request` maps them to updates.

Not available: times (a line is dated when it is first read), which rollouts a step used, versions that arrived during a
rollout (only the one at its start is logged). A group without advantage is left out if conf/exp_config.yaml has
`finetune.rl.filter_zero_advantage_groups`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from msgspec import structs

from collectors.formats import jsonl
from collectors.formats import rows as rows_format
from collectors.formats.jsonl import number
from collectors.formats.rows import mapping, objects, whole
from collectors.model import Collector, Cursor, Limits, Purpose, Reading, Rollout, ScrapeError, Turn
from collectors.training_logs import tail as training_logs_tail
from collectors.transport import bytetail, rest

STREAMS: Mapping[str, Purpose] = {"actor": "train", "actor_test": "eval"}
UPDATES = "weight_update_request"
LOOKED_FOR = "streams/actor/0/0/0.jsonl, as PipelineRL writes it"
# Bytes. A group of 16 at 64,000 tokens with ids, labels and log-probabilities has about 20 MB.
LINE_BYTES = 64 << 20
CONFIG_BYTES = 1 << 20
HEAD_BYTES = 64
TURNS_MAX = 2_000
# preprocess.py, `filter_zero_advantage_groups`.
EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class _State:
    """State of one call: versions, and whether groups without advantage are left out."""

    runs: training_logs_tail.Runs
    filters: bool


@dataclass(slots=True)
class _ReadResult:
    cursor: dict[str, Any]
    rollouts: list[Rollout] = field(default_factory=list)
    rows: int = 0
    more: bool = False
    dropped: int = 0
    why: str = ""


@bytetail.readable("the streams")
def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
    """Groups appended since ``cursor``, which has a position per stream and the updates so far.

    Raises:
        ScrapeError: ``not_a_run``, ``missing``.
    """
    path.stat()
    files = {name: file for name in STREAMS if (file := _stream(path, name)).is_file()}
    if not files and not cursor and not _stream(path, UPDATES).is_file():
        raise ScrapeError("not_a_run", f"no streams of PipelineRL in {path.name}: looked for {LOOKED_FOR}")
    result = _ReadResult({"runs": [], **cursor})
    state = _State(_updates(path, limits, result), _filters(path))
    for name, file in files.items():
        _read(file, name, state, replace(limits, line_bytes=LINE_BYTES), result)
    return Reading(
        rollouts=tuple(result.rollouts),
        cursor=result.cursor,
        more=result.more,
        dropped=result.dropped,
        why_dropped=result.why,
        samples_scraped=result.rows,
        reader=", ".join(f"streams/{name}" for name in files),
    )


def _stream(path: Path, topic: str) -> Path:
    return path / "streams" / topic / "0" / "0" / "0.jsonl"


def _updates(path: Path, limits: Limits, result: _ReadResult) -> training_logs_tail.Runs:
    """All updates published so far, because an actor's line follows the update that it refers to."""
    runs = [list(run) for run in result.cursor["runs"]]
    file, place = _stream(path, UPDATES), result.cursor.get(UPDATES, {})
    more = file.is_file()
    while more:
        read = jsonl.read_jsonl(file, place, limits)
        runs = [] if read.restarted else runs
        training_logs_tail.add(runs, (at for row in read.rows if (at := training_logs_tail.published(row)) is not None))
        place, more = read.cursor, read.more
        result.dropped, result.why = result.dropped + read.dropped, result.why or read.why
    result.cursor |= {UPDATES: place, "runs": runs}
    return runs


def _filters(path: Path) -> bool:
    """Returns whether the run leaves out groups in which all advantages are zero; False if nothing states it."""
    try:
        with (path / "conf" / "exp_config.yaml").open("rb") as file:
            config: Any = yaml.safe_load(file.read(CONFIG_BYTES))
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return False
    return mapping(config, "finetune", "rl").get("filter_zero_advantage_groups") is True


def _read(file: Path, name: str, state: _State, limits: Limits, result: _ReadResult) -> None:
    if result.rows >= limits.tail_rows:
        result.more = True
        return
    read = bytetail.read(file, result.cursor.get(name, {}), replace(limits, tail_rows=limits.tail_rows - result.rows))
    result.cursor[name] = read.cursor
    result.rows, result.more = result.rows + len(read.lines), result.more or read.more
    result.dropped, result.why = result.dropped + read.dropped, result.why or read.why
    for offset, line in read.lines:
        # A line of the stream is a list, but the reader takes only objects.
        samples = objects(mapping(jsonl.parse(b'{"group":' + rows_format.cut(line) + b"}")).get("group"))
        group = list(_group(samples, offset, STREAMS[name], state))
        if not group:
            result.dropped += 1
            result.why = result.why or f"the line at byte {offset} of {file.name} is not a group of PipelineRL"
        result.rollouts += group


def _group(samples: list[Mapping[str, Any]], offset: int, purpose: Purpose, state: _State) -> Iterator[Rollout]:
    """The rollouts of a group. Group ids start again with every actor; the line's offset makes them unique."""
    rollouts: dict[int, list[Mapping[str, Any]]] = {}
    for sample in samples:
        index = whole(mapping(sample, "metadata").get("rollout_index"))
        if index is not None:
            rollouts.setdefault(index, []).append(sample)
    zero_advantage = purpose == "train" and state.filters and _without_advantage(rollouts)
    for index, steps in sorted(rollouts.items()):
        steps.sort(key=lambda one: whole(mapping(one, "metadata").get("step_index")) or 0)
        group = f"{rest.text(steps[0].get('group_id'), 80)}@{offset}"
        one = _rollout(f"{group}/{index}", steps, state)
        yield structs.replace(
            one,
            group_id=group,
            group_size=len(rollouts),
            purpose=purpose,
            exit="zero_advantage" if zero_advantage else None,
        )


def _without_advantage(rollouts: Mapping[int, list[Mapping[str, Any]]]) -> bool:
    """Returns whether all rewards of each turn are equal: advantages are relative to the mean of the same turn."""
    turns: dict[int, list[float]] = {}
    for steps in rollouts.values():
        for position, step in enumerate(steps):
            reward = number(step.get("reward"))
            if reward is None:
                return False
            turns.setdefault(whole(mapping(step, "metadata").get("step_index")) or position, []).append(reward)
    return len(rollouts) > 1 and all(
        max(turn_rewards) - min(turn_rewards) <= EPSILON for turn_rewards in turns.values()
    )


def _rollout(identity: str, steps: list[Mapping[str, Any]], state: _State) -> Rollout:
    samples = whole(mapping(steps[0], "metadata").get("model_version"))
    prompt, answered = whole(steps[0].get("prompt_tokens")), [whole(step.get("output_tokens")) for step in steps]
    counts = [count for count in answered if count is not None]
    rewards = [number(step.get("reward")) for step in steps]
    finished = [step.get("finished") for step in steps]
    return Rollout(
        identity,
        version_start=training_logs_tail.version_of(state.runs, samples) if samples is not None else None,
        prompt_tokens=prompt,
        response_tokens=sum(counts) if len(counts) == len(steps) else None,
        loss_tokens=sum(counts) if len(counts) == len(steps) else None,
        turns=(Turn(),) * min(len(steps), TURNS_MAX),
        turn_count=len(steps),
        reward=rewards[0] if len(set(rewards)) == 1 else None,
        # A turn is finished if its text has an end.
        truncated=False in finished if all(isinstance(step, bool) for step in finished) else None,
    )


def matches_path(path: Path) -> str | None:
    """The actor's stream; before its first group, the stream of the trainer's updates."""
    try:
        for name in STREAMS:
            if (file := _stream(path, name)).is_file() and _is_groups(file):
                return f"streams/{name} with PipelineRL's groups"
        return None
    except OSError:
        return None


def _is_groups(file: Path) -> bool:
    with file.open("rb") as opened:
        head = opened.read(HEAD_BYTES).lstrip()
    return not head or head.startswith((b'[{"text":', b'[{"text" :'))


RECORD_FIELDS = ("group_id", "reward", "response_tokens", "version_start", "turns", "exit")
"""See `collectors.model.Collector`."""

COLLECTOR = Collector(
    name="pipeline_rl_rollouts",
    actor="generator",
    reads="rollouts in PipelineRL's streams (streams/actor): version at the start, rewards, turns, tokens, filtered",
    versions="58d393458 (2026-06) by source",
    tail=tail,
    matches_path=matches_path,
    looks_for=(LOOKED_FOR,),
    record_fields=RECORD_FIELDS,
)
