"""Printed lines of slime and miles (624b824a: slime/observability, slime/rollout/fully_async_rollout.py:208-258): dicts
in Python's notation behind `[time] file.py:line - `, timers, and the queue of a fully asynchronous rollout every 30 s.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from collectors.formats.console import ConsoleConfig, ConsoleLine, Parsed, literal
from collectors.formats.rows import Logged
from collectors.model import Sample
from collectors.trainers.slime.config import from_command
from collectors.trainers.slime.keys import groups
from collectors.training_logs.model import Context

LIVE, TIMER = "live", "timer"
# Digits are bounded, because int() of very many digits is slow and then fails.
_LOGGED = re.compile(r" - (perf|rollout|passrate|multi_turn|step|eval) (\d{1,15}): (?=\{)")
_QUEUE = re.compile(
    r" - fully-async rollout \d{1,15}: "
    r"(?:target=\d{1,15} queue_warm=(\d{1,15})|collected (\d{1,15})/\d{1,15}, queue=(\d{1,15})"
    r"|done in [\d.]{1,20}s, queue_left=(\d{1,15}))"
)
_PARTIAL = re.compile(r" - Collected (\d{1,15}) partial samples into the data buffer")
_TIMER = re.compile(r" - Timer (train_wait|train|update_weights|save_model) (start|end)\b")
PHASES = {"train_wait": "wait", "train": "compute", "update_weights": "weight_sync", "save_model": "checkpoint"}


def parse(line: ConsoleLine, memory: dict[str, Any]) -> Parsed:
    """A logged dict, a gauge of the moment, or the arguments."""
    text = line.text
    if (logged := _LOGGED.search(text)) is not None:
        values = literal(text[logged.end() :])
        return Logged(values, int(logged[2]), line.ts, logged[1]) if values else None
    if (queue := _QUEUE.search(text)) is not None:
        warm, collected, waiting, left = (int(number) if number else 0 for number in queue.groups())
        # Collected samples are complete and not trained yet, like those waiting in the queue.
        return Logged({"ready": warm + collected + waiting + left}, None, line.ts, LIVE)
    if (partial := _PARTIAL.search(text)) is not None:
        return Logged({"suspended": int(partial[1])}, None, line.ts, LIVE)
    if (timer := _TIMER.search(text)) is not None:
        return Logged({timer[1]: int(timer[2] == "start")}, None, line.ts, TIMER)
    config = from_command(text)
    return ConsoleConfig(config) if config else None


def live(row: Logged, values: Mapping[str, float], context: Context) -> None:
    """Gauges of the moment, from lines without a step."""
    if row.origin == LIVE and row.step is None:
        if "ready" in values:
            # Only the fully asynchronous rollout has this queue, so the mode is known without the arguments.
            context.memory["mode"] = "async"
            context.take({"mode": "async"})
        context.samples += _state(values, row.ts, context)
    elif row.origin == TIMER and row.step is None:
        context.samples += _phase(values, row.ts, context)


def _state(values: Mapping[str, float], ts: float | None, context: Context) -> Iterator[Sample]:
    if "ready" in values:
        metric, labels, value = groups(values["ready"], context)
        yield Sample(metric, value, labels, ts)
    if "suspended" in values:
        # Begun by an older policy, suspended, and finished in a later rollout.
        yield Sample("in_flight_rollouts", values["suspended"], (("state", "suspended"),), ts)


def _phase(values: Mapping[str, float], ts: float | None, context: Context) -> Iterator[Sample]:
    """`train_wait` continues while weights are sent and checkpoints written: that time is no wait."""
    open_: dict[str, int] = context.memory.setdefault("timers", {})
    open_ |= {name: int(value) for name, value in values.items()}
    busy = any(open_.get(name) for name in PHASES if name != "train_wait")
    for name, phase in PHASES.items():
        if name in open_:
            active = open_[name] and not (name == "train_wait" and busy)
            yield Sample("trainer_phase_active", float(active), (("phase", phase),), ts)
