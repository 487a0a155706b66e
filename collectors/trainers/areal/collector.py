"""AReaL runs: wandb, TensorBoard, trackio, or the tables it always prints.

Never requests the training service's `GET /export_stats`, because it resets the run's own statistics.

Not available: the queue and rollouts in flight (not logged), zero-advantage groups, rejected rollouts (the keys are
means of ones). wandb is opened even if it is disabled, so there may be an empty log of it.
"""

import re
import time
from typing import Any

from collectors.formats import console
from collectors.formats.rows import Logged
from collectors.formats.tensorboard import log as tensorboard_log
from collectors.formats.trackio import log as trackio_log
from collectors.formats.wandb import log as wandb_log
from collectors.trainers.areal import keys as areal_keys
from collectors.training_logs.model import Framework
from collectors.training_logs.tail import collector_of

# "(AReaL) 20260821-10:00:00.123 StatsLogger INFO: Epoch 1/3 Step 2/10 Train step 12/300 done."
_DONE = re.compile(r".*\bTrain step (\d{1,12})/\d+ done\.")
_DATED = re.compile(r"\b(\d{8}-\d\d:\d\d:\d\d)\.(\d{3})\b")
# A table has some hundred cells; in a longer one the end was lost.
CELLS = 5_000


def parse_line(line: console.ConsoleLine, memory: dict[str, Any]) -> console.Parsed:
    """Lines of a step's table (`tabulate`, fancy_grid, four pairs a row): a row when the table ends."""
    text = line.text.strip()
    if (match := _DONE.fullmatch(text)) is not None:
        memory.update(step=int(match.group(1)) - 1, ts=_time(text), cells={})
    elif "step" not in memory:
        return None
    elif text.startswith("│"):
        _cells(text, memory["cells"])
        if len(memory["cells"]) > CELLS:
            memory.clear()
    elif text.startswith("╘"):
        return Logged(memory.pop("cells"), memory.pop("step"), memory.pop("ts", None))
    return None


def _cells(text: str, cells: dict[str, Any]) -> None:
    parts = [part.strip() for part in text.strip("│").split("│")]
    for key, value in zip(parts[::2], parts[1::2], strict=False):
        if key and not key.endswith("__count"):
            cells[key] = console.figure(value)


def _time(text: str) -> float | None:
    """The log has no zone: it is the machine's own, which is also that of this process."""
    match = _DATED.search(text)
    try:
        return time.mktime(time.strptime(match[1], "%Y%m%d-%H:%M:%S")) + int(match[2]) / 1000 if match else None
    except (ValueError, OverflowError):
        return None


FRAMEWORK = Framework(
    name="areal",
    reads="AReaL runs (wandb, TensorBoard, trackio, console tables)",
    versions="1.0.4 by source",
    sinks=(wandb_log.SINK, tensorboard_log.SINK, trackio_log.SINK, console.sink(parse_line)),
    keys=areal_keys.KEYS,
    needs=areal_keys.NEEDS,
    ignored=areal_keys.IGNORED,
    marks=("timeperf/rollout", "timeperf/train_step", f"{areal_keys.VERSIONS}v_theta"),
    config_marks=("rollout.max_head_offpolicyness",),
    split=areal_keys.pieces,
    derive=areal_keys.derive,
    facts=areal_keys.facts,
    seconds=("timeperf/train_step",),
    mode="async",
    first_step=0,
    derives=(
        "generation_seconds",
        "response_tokens_mean",
        "solve_ratio",
        "trainer_checkpoint_seconds",
        "trainer_compute_seconds",
        "trainer_logprob_seconds",
        "trainer_other_seconds",
        "trainer_step_seconds",
        "trainer_wait_seconds",
    ),
    hints={
        "trainer_mfu_ratio": "its log has no key for FLOPs or MFU",
        "in_flight_rollouts": "running rollouts are printed in its log lines only, and no key has them",
        "queue_samples": "accepted rollouts are printed in its log lines only, and no key has them",
        "turns_mean": "only a multi-turn workflow logs it, as `rollout/num_turns`",
    },
)
COLLECTOR = collector_of(FRAMEWORK)
