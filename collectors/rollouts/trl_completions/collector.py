"""Completions of TRL's GRPOTrainer: `completions/completions_NNNNN.parquet`, written with `log_completions=True`.

A file is the last batch generated before step N was logged (TRL 1.16.0, trainer/grpo_trainer.py:3312). It was generated
by the weights of step N - 1 and trained in step N. A batch that is trained again (`num_iterations`,
`steps_per_generation`) is written again with the same rollouts. With `logging_steps` above 1 only every such batch is
written: those rollouts are a sample, so nothing is counted from them.

Not available: lengths in tokens, truncation, times except the file's, weights of reward functions other than 1 (the
sum of their columns is the reward). An evaluation's rows replace those of a training step that logs at the same step.
"""

import re
from pathlib import Path

from collectors.formats import parquet
from collectors.model import Collector, Consumption, Cursor, Limits, Reading, Rollout
from collectors.rollout_files.step_files import FilePart, ReadRequest, StepFile, listed
from collectors.rollout_files.verbs import tail_of, with_parquet
from collectors.rollouts.trl_completions import groups as trl_completions_groups

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
        batch = trl_completions_groups.read(table)
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


def _rollout(
    batch: trl_completions_groups.CompletionBatch, index: int, first: int, request: ReadRequest, sampled: bool
) -> Rollout:
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
