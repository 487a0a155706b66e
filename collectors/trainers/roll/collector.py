"""ROLL runs, RLVR and agentic: TensorBoard (its default), wandb, trackio, or lines of its stdout tracker.

Not available: the queue and rollouts in flight (printed irregularly), the largest staleness, the reward's deviation,
truncation in agentic runs (`actor/max_len_mask_ratio` is always 1 there), MFU, tool calls.
"""

import json
from typing import Any

from collectors.formats import console
from collectors.formats.rows import Logged
from collectors.formats.tensorboard import log as tensorboard_log
from collectors.formats.trackio import log as trackio_log
from collectors.formats.wandb import log as wandb_log
from collectors.trainers.roll import keys as roll_keys
from collectors.training_logs.model import Framework
from collectors.training_logs.tail import collector_of

_TAG = "metrics_tag: "


def parse_line(line: console.ConsoleLine, memory: dict[str, Any]) -> console.Parsed:
    """A line of `StdoutTracker`: JSON with the step and its metrics (utils/tracking.py:195)."""
    _, tag, text = line.text.partition(_TAG)
    if not tag:
        return None
    try:
        row = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not isinstance(row.get("metrics"), dict):
        return None
    step = row.get("step")
    return Logged(row["metrics"], step if isinstance(step, int) and not isinstance(step, bool) else None, line.ts)


FRAMEWORK = Framework(
    name="roll",
    reads="ROLL runs, RLVR and agentic (TensorBoard, wandb, trackio, console)",
    versions="8eb27cc2 (2026-08) by source",
    sinks=(wandb_log.SINK, trackio_log.SINK, tensorboard_log.SINK, console.sink(parse_line)),
    keys=roll_keys.KEYS,
    ignored=roll_keys.IGNORED,
    marks=(
        (roll_keys.UPDATE, roll_keys.GENERATE),
        (roll_keys.UPDATE, roll_keys.ROLLOUT),
    ),
    split=roll_keys.pieces,
    needs=roll_keys.NEEDS,
    derive=roll_keys.derive,
    facts=roll_keys.facts,
    seconds=(roll_keys.STEP,),
    first_step=0,
    report_seconds=30.0,
    derives=(
        "entropy_mean",
        "generation_seconds",
        "trained_tokens",
        "trainer_compute_seconds",
        "trainer_logprob_seconds",
        "trainer_other_seconds",
        "trainer_samples",
        "trainer_wait_seconds",
        "truncation_ratio",
    ),
)
COLLECTOR = collector_of(FRAMEWORK)
