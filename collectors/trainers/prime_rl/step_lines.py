"""Step lines of prime-rl's printed logs, for runs without metrics.jsonl and W&B files.

The trainer prints `Step 3 | Time: 41.20s | Loss: 0.0012 | Entropy: ... | Peak Mem.: 61.0 GiB`, the orchestrator
`Step 3 | Time: 74.00s | Reward: 0.3105 | Throughput: ... | Async Level: 1 | Max. Off-Policy Level: 0`. Since June 2026
(f6563ff0e) the labels have no colon and the time has no label: `Step 3 |  1m 14s | Reward 0.3105 | ...`.

Not read: `Seq. Length` (prompt and response together), `Trainable` (of the shipped rollouts only), `Val. Reward`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from collectors.formats.jsonl import number
from collectors.model import Labels, Sample

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


def samples(message: str, ts: float, memory: dict[str, Any], alone: bool) -> Iterator[Sample]:
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
