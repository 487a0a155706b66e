"""Lines of prime-rl's printed logs with their times; the queue's length and the rollouts in flight.

Only the orchestrator's log has them, in one line every 10 s (orchestrator.py:801, 559b44772):
`Train batch 57/128 (44.5%) (+12 buffered) | env a/b (..%); 512 inflight episodes (train=480, eval=32 | env=..)`.
`queue_samples` = 57 + 12. On a real run this is close, not exact: the buffered samples include arrivals of incomplete
groups, and a batch that was shipped and is held is in neither number (train_sink.py:113-118).
Three formats: loguru `HH:mm:ss LEVEL message` (prime-rl's), loguru's default with a date, NDJSON. A time without
date is local and gets its date from `LogClock`.
"""

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from collectors.formats import jsonl
from collectors.formats.jsonl import number
from collectors.formats.log_times import CLOCK, LogClock, anchor_backwards
from collectors.model import Labels, Sample
from collectors.training_logs import clocks

# Digits are bounded, because int() of very many digits is slow and then fails.
_DATED = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
# The head of a loguru line. torchrun's `[default0]:`, or a progress bar without a line end, may stand before it.
_HEAD = re.compile(
    r"(?:\d{4}-\d\d-\d\d[ T])?(?<!\d)(?<!\d:)\d\d:\d\d:\d\d(?:[.,]\d{1,6})?(?: \|)? +"
    r"(?:TRACE|DEBUG|INFO|SUCCESS|WARNING|ERROR|CRITICAL)\b"
)
# Characters. A progress bar is as wide as a terminal; a head further in belongs to the message.
_HEAD_WITHIN = 400
# Bytes read to date the first line of a log that one call does not read to its end.
ANCHOR_BYTES = 128 << 20
_BATCH = re.compile(r"Train batch (\d{1,15})/(\d{1,15})(?: \([\d.]+%\))?(?: \(\+(\d{1,15}) buffered\))?")
_IN_FLIGHT = re.compile(r"(\d{1,15}) inflight (?:episodes|rollouts)(?: \(train=(\d{1,15})(?:, eval=(\d{1,15}))?)?")
_FINISHED = re.compile(r"\b(?:RL trainer|RL training|Orchestrator) finished\b", re.IGNORECASE)


def messages(lines: Iterable[str]) -> Iterator[str]:
    """The messages of lines, each from its time on; progress bars that a message overwrites are separate messages."""
    for line in lines:
        for part in line.split("\r"):
            head = _HEAD.search(part, 0, _HEAD_WITHIN) if not part.startswith("{") else None
            if text := part[head.start() :] if head is not None else part:
                yield text


def start(path: Path, lines: list[str], whole: bool) -> float:
    """The start of the clock of a log without any date; ``whole``: ``lines`` are all of it, not the first part."""
    status = path.stat()
    if not whole:
        with path.open("rb") as file:
            head = file.read(ANCHOR_BYTES).decode(errors="replace")
        lines = [text for text in messages(map(jsonl.strip, head.splitlines())) if CLOCK.match(text)]
    return anchor_backwards(lines, status.st_mtime, clocks.is_other_zone)


def has_local_time(line: str) -> bool:
    """Returns whether the line begins with a time without a zone."""
    return CLOCK.match(line) is not None or _DATED.match(line) is not None


def split(line: str, clock: LogClock) -> tuple[float, str]:
    """(epoch seconds, message). A line without any time continues the one before it."""
    if line.startswith("{") and (row := jsonl.parse(line)) is not None:
        clock.now = _stamp(row.get("timestamp", row.get("time")), clock.now)
        return clock.now, str(row.get("message", ""))
    if dated := _DATED.match(line):
        clock.now = _local(dated, clock.now)
    elif timed := CLOCK.match(line):
        clock.date(*map(int, timed.groups()))
    return clock.now, line


def _local(match: re.Match[str], fallback: float) -> float:
    year, month, day, hour, minute, second = map(int, match.groups()[:6])
    try:
        seconds = time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
    except (OverflowError, ValueError):
        return fallback
    return seconds + float(f"0.{match.group(7) or 0}")


def _stamp(value: Any, fallback: float) -> float:
    seconds = jsonl.number(value)
    if seconds is not None:
        return seconds
    try:
        return datetime.fromisoformat(str(value)).timestamp()  # without a zone: local, like the other formats
    except (ValueError, OverflowError, OSError):
        return fallback


def samples(message: str, ts: float, in_rollouts: bool) -> Iterator[Sample]:
    """Queue and in-flight gauges of a pipeline line; nothing from any other line.

    Args:
        in_rollouts: False when the run batches by tokens (`token_batch_size`): a/b counts tokens then.
    """
    batch = _BATCH.search(message)
    if batch is None:
        return
    if in_rollouts:
        yield Sample("queue_samples", float(batch.group(1)) + float(batch.group(3) or 0), (), ts)
    in_flight = _IN_FLIGHT.search(message)
    if in_flight is not None:
        yield Sample(
            "in_flight_rollouts", float(in_flight.group(2) or in_flight.group(1)), (("state", "generating"),), ts
        )
        if in_flight.group(3):
            yield Sample("in_flight_rollouts", float(in_flight.group(3)), (("state", "eval"),), ts)


def is_finish_message(line: str) -> bool:
    """Returns whether it is the closing message of prime-rl's processes (trainer: `RL trainer finished!`)."""
    return _FINISHED.search(line) is not None


# ---- step lines
# Step lines of prime-rl's printed logs, for runs without metrics.jsonl and W&B files.

TRAINER, ORCHESTRATOR = "trainer", "orchestrator"

# Digits are bounded, because int() of very many digits is slow and then fails.
_STEP = re.compile(r"\bStep (\d{1,15}) \| +((?:Time:? )?(?:\d{1,15}(?:\.\d{1,6})?(?:ms|[dhms]) ?){1,3}) *\| +(.+)")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|[dhms])")
_UNIT_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_FIELD = re.compile(r"([A-Z][A-Za-z. -]*?):? (nan|inf|-inf|-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?=[ /%]|$)")
# The first field behind the time identifies the process; SFT prints a loss without an entropy.
_OF_TRAINER = re.compile(r"Loss:? \S+ +\| Entropy:? ")
_OF_ORCHESTRATOR = re.compile(r"Reward:? ")
_STARTED = re.compile(r"Starting (?:RL trainer in World\(|orchestrator step \d|orchestrator loop \()")
_MAX_STEPS = re.compile(r"Starting training loop \(max_steps=(\d{1,15})\)")
# Filters flag rollouts before the step's line; only flagged ones are printed (orchestrator/filters.py, d718fddaa).
_FILTERED = re.compile(r"Detected \d{1,15}/(\d{1,15}) rollouts \(([^()]*)\)")
_ZERO_ADVANTAGE = re.compile(r"\bzero_advantage=(\d{1,15})")
# Dispatch waits until the trainer has published a checkpoint (orchestrator/scheduler.py, d718fddaa).
_PAUSED = re.compile(r"paused: waiting for trainer process to complete checkpoint")
_RESUMED = re.compile(r"resumed: checkpoint \d{1,15} ready \(after (\d+(?:\.\d+)?)s\)")

Target = tuple[str, Labels, float]
_TRAINER: Mapping[str, Target] = {
    "Loss": ("loss_mean", (), 1),
    "Entropy": ("entropy_mean", (), 1),
    "Mismatch KL": ("mismatch_kl_mean", (), 1),
    "Importance Ratio": ("importance_ratio_mean", (), 1),
    "Grad. Norm": ("gradient_norm", (), 1),
    "LR": ("learning_rate", (), 1),
    "Peak Mem.": ("trainer_peak_memory_bytes", (), 2**30),
}
# Their basis depends on the version, see `_basis`. Metric and scale.
_RATES: Mapping[str, tuple[str, float]] = {
    "Throughput": ("trainer_tokens_per_second", 1),
    "MFU": ("trainer_mfu_ratio", 0.01),
}
_ORCHESTRATOR: Mapping[str, Target] = {
    "Reward": ("reward_mean", (), 1),
    "Turns": ("turns_mean", (), 1),
    # Of the shipped rollouts.
    "Max Off-Policy": ("staleness_versions_max", (), 1),
    # Policy updates during generation, over the rollouts in flight at that moment (scheduler.py:233, 34ac60439).
    "Max. Off-Policy Level": ("staleness_in_flight_versions_max", (), 1),
    "Error": ("rollout_error_ratio", (), 0.01),
    "Cancelled": ("rollout_cancelled_ratio", (), 0.01),
    "Truncation": ("truncation_ratio", (), 0.01),
}
# Texts about the source of metrics that are read from step lines.
ORIGINS: Mapping[str, str] = {
    **{metric: f"{name} of the trainer's step line" for name, (metric, _, _) in _TRAINER.items()},
    **{metric: f"{name} of the trainer's step line" for name, (metric, _) in _RATES.items()},
    **{metric: f"{name} of the orchestrator's step line" for name, (metric, _, _) in _ORCHESTRATOR.items()},
    "trainer_step_seconds": "the time of the step line",
    "orchestrator_step_seconds": "the time of the orchestrator's step line",
    "gradient_nonfinite": "Grad. Norm of the trainer's step line",
    "rollout_tokens_per_second": "Throughput of the orchestrator's step line",
    "generator_policy_version": "the step less Async Level of the orchestrator's step line",
    "groups_zero_advantage_ratio": "zero_advantage of the line `Detected a/b rollouts`",
    "dispatch_gate_wait_seconds": "the lines `resumed: checkpoint N ready (after ...)`",
}


def identifies(message: str) -> bool:
    """Returns whether only prime-rl's trainer or orchestrator prints such a line."""
    return _STARTED.search(message) is not None or _step(message) is not None


def max_steps(message: str) -> float | None:
    """The number of steps that the trainer prints at its start; None for other lines."""
    match = _MAX_STEPS.search(message)
    return float(match[1]) if match is not None else None


def samples_of_step(message: str, ts: float, memory: dict[str, Any], alone: bool) -> Iterator[Sample]:
    """Samples of a step line; lines that belong to the next step line change only ``memory``.

    Args:
        memory: JSON-able memory of this log.
        alone: no log of the trainer is read. Each batch of the orchestrator is one step of the trainer, and a gate
            prevents that one of them gets ahead. The time between batches is then the step time of the trainer, too.
    """
    if (step := _step(message)) is None:
        _remember(message, memory)
        return
    axis, count, seconds, labelled, fields = step
    memory["step"] = count
    if axis == TRAINER:
        yield Sample("trainer_step_seconds", seconds, (), ts, count, axis)
        yield from _trainer(fields, labelled, ts, count)
        return
    yield Sample("orchestrator_step_seconds", seconds, (), ts, count, axis)
    if alone:
        yield Sample("trainer_step_seconds", seconds, (), ts, count, axis)
    yield from _mapped(_ORCHESTRATOR, fields, ts, count, axis)
    if (rate := fields.get("Throughput")) is not None:
        yield Sample("rollout_tokens_per_second", rate, (), ts)
    if (level := fields.get("Async Level")) is not None:
        yield Sample("generator_policy_version", count - level, (), ts)
    yield from _remembered(memory, ts, count)


def axis_and_step(message: str) -> tuple[str, int] | None:
    """The process that printed a step line, and the step."""
    step = _step(message)
    return step[:2] if step is not None else None


def _step(message: str) -> tuple[str, int, float, bool, dict[str, float]] | None:
    """(axis, step, seconds, whether the time has a label, finite and other numbers by label) of a step line."""
    match = _STEP.search(message)
    if match is None:
        return None
    axis = TRAINER if _OF_TRAINER.match(match[3]) else ORCHESTRATOR if _OF_ORCHESTRATOR.match(match[3]) else ""
    if not axis:
        return None
    seconds = sum(float(value) * _UNIT_SECONDS[unit] for value, unit in _DURATION.findall(match[2]))
    parts = (_FIELD.match(part.strip()) for part in match[3].split("|"))
    fields = {part[1]: float(part[2]) for part in parts if part is not None}
    return axis, int(match[1]), seconds, match[2].startswith("Time"), fields


def _trainer(fields: Mapping[str, float], labelled: bool, ts: float, step: int) -> Iterator[Sample]:
    yield from _mapped(_TRAINER, fields, ts, step, TRAINER)
    for name, (metric, scale) in _RATES.items():
        # Older versions print 0 until they have measured something.
        if (value := number(fields.get(name))) is not None and value > 0:
            yield Sample(metric, value * scale, _basis(labelled), ts, step, TRAINER)
    if "Grad. Norm" in fields:
        broken = float(number(fields["Grad. Norm"]) is None)
        yield Sample("gradient_nonfinite", broken, (), ts, step, TRAINER)


def _basis(labelled: bool) -> Labels:
    """The basis of throughput and MFU: whole steps in versions that label the time, forward and backward in newer ones.

    Versions from 2026-04-29 (b1e9c7bdd) to June label the time and measure forward and backward; the line does not
    distinguish them from older ones.
    """
    return (("basis", "wall" if labelled else "busy"),)


def _mapped(
    table: Mapping[str, Target], fields: Mapping[str, float], ts: float, step: int, axis: str
) -> Iterator[Sample]:
    for name, (metric, labels, scale) in table.items():
        if (value := number(fields.get(name))) is not None:
            yield Sample(metric, value * scale, labels, ts, step, axis)


def _remember(message: str, memory: dict[str, Any]) -> None:
    """Stores the values of lines that are printed before the line of their step."""
    if (filtered := _FILTERED.search(message)) is not None and int(filtered[1]) > 0:
        flagged = _ZERO_ADVANTAGE.search(filtered[2])
        memory["zero_advantage"] = (int(flagged[1]) if flagged is not None else 0) / int(filtered[1])
    elif _PAUSED.search(message) is not None:
        memory.setdefault("gate_seconds", 0.0)
    elif (resumed := _RESUMED.search(message)) is not None:
        memory["gate_seconds"] = memory.get("gate_seconds", 0.0) + float(resumed[1])


def _remembered(memory: dict[str, Any], ts: float, step: int) -> Iterator[Sample]:
    """Values of the lines before this step line. A version that has printed such a line omits it only for 0."""
    if "zero_advantage" in memory:
        share = min(1.0, memory["zero_advantage"])
        yield Sample("groups_zero_advantage_ratio", share, (), ts, step, ORCHESTRATOR)
        memory["zero_advantage"] = 0.0
    if "gate_seconds" in memory:
        yield Sample("dispatch_gate_wait_seconds", memory["gate_seconds"], (), ts, step, ORCHESTRATOR)
        memory["gate_seconds"] = 0.0
