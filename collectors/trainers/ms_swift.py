"""ms-swift's GRPO runs (3.8 to 4.0): logging.jsonl, what its two trainers print, and wandb and TensorBoard.

The default trainer extends TRL's and has its keys; the Megatron trainer prints iterations as Megatron does, with TRL's
keys among them. A step that reuses a generation has no rewards, lengths or shares. `step_time` is only a part of the
step, so the duration is taken from the time since the start, `elapsed_time`, which has whole seconds.

Not available: the times of rows in logging.jsonl (they are estimated by the elapsed time), phases of the step.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from collectors.formats import console, jsonl, tensorboard, wandb
from collectors.formats.console import ConsoleLine, Parsed, figure
from collectors.formats.jsonl import Row
from collectors.formats.rows import Logged
from collectors.trainers import trl
from collectors.training_logs.model import Context, Framework, Key, Piece
from collectors.training_logs.tail import collector_of

# "7/2174": the step and the number of all steps. The second key is of the Megatron trainer since 4.0.
STEPS = ("global_step/max_steps", "iteration")
# Mean over all steps of the process; releases before 3.10 log its inverse.
SPEED, INVERSE_SPEED = "train_speed(s/it)", "train_speed(iter/s)"
ITERATION_MS = "elapsed time per iteration (ms)"

_OF = re.compile(r"\s*(\d{1,15})\s*/\s*(\d{1,15})\s*")
_ITERATION = re.compile(r"\biteration +(\d{1,15}) */ *(\d{1,15}) \|(?= consumed samples:)")
# ms-swift has no tools, profiling rows and correction of the sampling under TRL's keys.
_NOT_LOGGED = re.compile(r"(?:tools|sampling)/.*|(?:generation|rewards|weight sync) of the step")
KEYS: Mapping[str, Key] = {
    **{key: meaning for key, meaning in trl.SYNC_KEYS.items() if not _NOT_LOGGED.fullmatch(key)},
    "entropy/mean": Key("entropy_mean"),
    "learning rate": Key("learning_rate"),
    "grad norm": Key("gradient_norm"),
    # Megatron leaves out the norm when it is not finite, and counts the iteration.
    "number of nan iterations": Key("gradient_nonfinite"),
    "global batch size": Key("trainer_samples"),
}
IGNORED = re.compile(
    rf"{trl.IGNORED.pattern}|memory\(GiB\)|train_speed\(.*\)|entropy/(?:min|max)|consumed samples"
    r"|loss scale|loss_scale|number of skipped iterations|num zeros|params norm|elapsed_time_per_iteration"
    r"|consumed_samples|clip_ratio/.*|load_balancing_loss|percentage"
)
_RL = r"reward|frac_reward_zero_std"


def unpack(row: Row) -> Logged | None:
    """A line of logging.jsonl or a printed dict; None for an object without a step."""
    steps = next((match for key in STEPS if (match := _OF.fullmatch(str(row.get(key, ""))))), None)
    if steps is None:
        # The last line names the checkpoints.
        return Logged({}) if "last_model_checkpoint" in row else None
    values = {key: value for key, value in row.items() if key not in STEPS}
    values[trl.MAX_STEPS] = float(steps[2])
    elapsed = values.pop("elapsed_time", None)
    if isinstance(elapsed, str):
        values[trl.ELAPSED] = trl.seconds(elapsed)
    return Logged(values, int(steps[1]))


def printed(line: ConsoleLine, memory: dict[str, Any]) -> Parsed:
    """A printed dict, or an iteration of the Megatron trainer."""
    if (iteration := _ITERATION.search(line.text)) is not None:
        pairs = (part.rpartition(":") for part in line.text[iteration.end() :].split("|"))
        values: dict[str, Any] = {key.strip(): figure(value) for key, _, value in pairs if key}
        values = {key: value for key, value in values.items() if value is not None}
        return Logged(values | {trl.MAX_STEPS: float(iteration[2])}, int(iteration[1]), line.ts)
    if any(key in line.text for key in STEPS) and (found := trl.dict_of(line.text)) is not None:
        return unpack(found)
    return None


def _split(row: Logged, values: Mapping[str, float], context: Context) -> Iterator[Piece]:
    """As TRL's rows, with the duration of a step by the time since the start."""
    values = {key: value for key, value in values.items() if key != "step_time"}
    speed, inverse = values.get(SPEED), values.get(INVERSE_SPEED)
    if ITERATION_MS in values:
        values["step_time"] = values.pop(ITERATION_MS) * 0.001
    elif "step" not in context.memory:
        # The first row of a process: the mean over its steps so far is that of the row.
        if speed:
            values[trl.BETWEEN] = speed
        elif inverse:
            values[trl.BETWEEN] = 1 / inverse
    yield from trl.split(row, values, context)


FRAMEWORK = Framework(
    name="ms_swift",
    reads="ms-swift GRPO runs (wandb, TensorBoard, logging.jsonl, printed log)",
    versions="3.8 to 4.0 by reported logs",
    sinks=(
        wandb.SINK,
        tensorboard.SINK,
        jsonl.sink(("logging.jsonl",), unpack, starts=True),
        console.sink(printed),
    ),
    keys=KEYS,
    patterns=trl.PATTERNS,
    ignored=IGNORED,
    marks=tuple((mark, _RL) for mark in (r"train_speed\((?:iter/s|s/it)\)", re.escape(ITERATION_MS))),
    strip=("train/",),
    split=_split,
    needs=trl.NEEDS,
    derive=trl.derive,
    facts=trl.facts,
    on_row=trl.on_row,
    run_files=trl.state_file,
    seconds=(SPEED,),
    elapsed=trl.ELAPSED,
    derives=("reward_component_mean",),
    hints={
        "trainer_mfu_ratio": "its log has no FLOPs",
        "queue_samples": "its trainers generate within the step, so there is no queue",
    },
)

COLLECTOR = collector_of(FRAMEWORK)
