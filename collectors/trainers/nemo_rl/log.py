"""Printed output of NeMo-RL's driver (7ea279abf: algorithms/grpo.py, grpo_sync.py, utils.py; 0.3 to 0.5 alike).

A step begins with `===== Step 3/1000 =====` and ends with blocks: results, timings, performance. Their values get the
keys of NeMo-RL's loggers, so the same table maps them. The lines have no times.

Loss and KL error are sums over the updates of a step. Their number is in the configuration, which the example scripts
print; without it one update is assumed, as in all of these scripts.

`Step` counts within an epoch, while loggers count over all epochs. The asynchronous loop prints every second that it
waits for its replay buffer.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from collectors.formats.console import ConsoleConfig, ConsoleLine, Parsed, figure, literal
from collectors.formats.rows import Logged
from collectors.model import Sample
from collectors.trainers.nemo_rl import keys as nemo_rl_keys
from collectors.training_logs.model import Context, Out, Piece
from collectors.training_logs.settings import Settings, product

LIVE = "live"
# Not keys of NeMo-RL: 1 while the driver waits for its buffer; the groups in the buffer.
WAITING, BUFFER = "driver/waiting", "driver/buffer_size"
# Seconds that passed since the row before, for the estimate of times.
PASSED = "driver/passed_seconds"
# Updates per step: the printed output has neither of the two numbers of sequences from which `keys` computes them.
UPDATES = "driver/updates"
OWN = re.compile("driver/.*")
# The wait for the first batch is printed about every second, the wait within a step every 0.5 s.
FIRST_WAIT_SECONDS, STEP_WAIT_SECONDS = 1.0, 0.5
# Lines about a wait per row: a wait of hours prints 10,000 lines of the same number.
LINES_PER_ROW = 10

# Digits are bounded, because int() of very many digits is slow and then fails.
_HEADER = re.compile(r"={10,} (Step|Epoch) (\d{1,15})/\d{1,15} ={10,}")
_WAIT = re.compile(
    r"Wait iteration \d{1,15}: (?:buffer_size=(\d{1,15}), step \d{1,15} ready=(True|False)"
    r"|buffer_filled_ratio=(\d{1,15})/(\d{1,15}))"
)
_STARVED = "Buffer empty or not enough groups to form a full step"
_SAMPLED = re.compile(r"Sampled \d{1,15} trajector")
_BATCH = re.compile(r"(?:Generating responses for batch of size|Got trajectory batch \(size:) (\d{1,15})\b")
# A label of the task (`srun --label`) or a date may precede a line.
_BULLET = re.compile(r"(?:^|\s)(?:•|-(?= E2E| Training)) ([A-Za-z][\w/ ().-]*?): (\S+)")
_SECONDS = re.compile(r"(\d{1,15}(?:\.\d+)?)s")
_SECTIONS = {"Training Results:": "results", "Timing:": "timing", "Performance Metrics:": "performance"}
_RESULTS = {
    "Loss": "train/loss",
    "Generation KL Error": "train/gen_kl_error",
    "Avg Reward": "train/reward",
    # With dynamic sampling: over all generated rollouts, and over those that are trained on (grpo.py:3463).
    "Avg Total Reward": "train/reward",
    "Avg Filtered Reward": nemo_rl_keys.FILTERED,
    "Mean Generation Length": "train/mean_gen_tokens_per_sample",
    "Buffer Size": "train/buffer_size",
    "Avg Trajectory Age": "train/avg_trajectory_age",
}
# Only whole groups of GPUs: the metrics of the loggers are not per GPU.
_PERFORMANCE = {
    "E2E (Tokens/sec)": "performance/tokens_per_sec",
    "Training Worker Group (Tokens/sec)": "performance/training_worker_group_tokens_per_sec",
    "Training Model Floating Point Utilization": "performance/train_fp_utilization",
}
_CONFIG = "num_generations_per_prompt"


def parse(line: ConsoleLine, memory: dict[str, Any]) -> Parsed:
    """One block of a step, the state of a wait, or the configuration."""
    text = line.text
    if (header := _HEADER.search(text)) is not None:
        return _begin(header[1], int(header[2]), line, memory)
    section = next((name for title, name in _SECTIONS.items() if text.rstrip().endswith(title)), "")
    if section:
        row = _flush(line, memory)
        memory["section"] = section
        return row
    if memory.get("section") and (bullet := _BULLET.search(text)) is not None:
        _add(bullet[1], bullet[2], memory)
        return None
    if (row := _flush(line, memory)) is not None:
        return row
    if (batch := _BATCH.search(text)) is not None:
        # Dynamic sampling generates several batches for one step, which trains on a part of them.
        memory["batches"] = [*memory.get("batches", [])[-1:], int(batch[1])]
        return None
    if _CONFIG in text and text.lstrip().startswith("{"):
        config = literal(text)
        memory["updates"] = _updates(config or {})
        return ConsoleConfig(config) if config else None
    return _wait(line, memory)


def _begin(unit: str, number: int, line: ConsoleLine, memory: dict[str, Any]) -> Parsed:
    """Notes a new step or epoch; returns the rest of the step before, or the end of a wait."""
    row = _flush(line, memory)
    memory["section"] = ""
    if unit == "Epoch":
        # Steps of later epochs begin at 1 again.
        memory["offset"] = memory.get("step", 0) if number > 1 else 0
        return row
    memory["step"] = memory.get("offset", 0) + number
    memory["batches"] = []
    return row if row is not None else _waited(line, memory)


def _updates(config: Mapping[str, Any]) -> float:
    """Updates per step by the configuration; one, as in NeMo-RL's examples, if it does not state them."""
    settings = Settings(config)
    size = settings.number("policy.train_global_batch_size")
    batch = product(settings.number("grpo.num_prompts_per_step"), settings.number("grpo.num_generations_per_prompt"))
    return max(1.0, float(round(batch / size))) if batch and size else 1.0


def _add(name: str, value: str, memory: dict[str, Any]) -> None:
    values: dict[str, float | None] = memory.setdefault("values", {})
    section = memory["section"]
    if section == "timing":
        seconds = _SECONDS.fullmatch(value)
        key = nemo_rl_keys.STEP if name == "Total step time" else f"{nemo_rl_keys.T}{name}"
        if seconds is not None:
            values[key] = float(seconds[1])
    elif section == "results" and name in _RESULTS:
        values[_RESULTS[name]] = figure(value)
    elif section == "performance" and name in _PERFORMANCE:
        share = figure(value[:-1]) if value.endswith("%") else None
        values[_PERFORMANCE[name]] = share / 100 if share is not None else figure(value)


def _flush(line: ConsoleLine, memory: dict[str, Any]) -> Logged | None:
    """The values of the block so far as a row of the step."""
    values = memory.pop("values", {})
    if not values or "step" not in memory:
        return None
    if nemo_rl_keys.STEP in values:
        batches = memory.get("batches", [])
        if len(batches) == 1:
            values[nemo_rl_keys.VALID] = batches[0]
    else:
        values[PASSED] = 0.0
    if memory["section"] == "results":
        values[UPDATES] = memory.get("updates", 1.0)
    return Logged(values, memory["step"], line.ts)


def _wait(line: ConsoleLine, memory: dict[str, Any]) -> Logged | None:
    """The buffer while the driver waits for it: at its first line, at a change, and every ten lines."""
    size: int | None = None
    ready, seconds = False, 0.0
    if (wait := _WAIT.search(line.text)) is not None:
        size, seconds = int(wait[1] or wait[3]), FIRST_WAIT_SECONDS
        ready = wait[2] == "True" or (wait[4] is not None and size >= int(wait[4]))
    elif _STARVED in line.text:
        seconds = STEP_WAIT_SECONDS
    elif _SAMPLED.search(line.text) is not None:
        return _waited(line, memory)
    else:
        return None
    before = memory.get("wait")
    lines = (before or {}).get("lines", 0) + 1
    if before is not None and not ready and before["size"] == size and lines < LINES_PER_ROW:
        memory["wait"] = {"size": size, "lines": lines}
        return None
    memory["wait"] = {"size": size, "lines": 0} if not ready else None
    buffer = {BUFFER: size} if size is not None else {}
    return Logged({WAITING: int(not ready), **buffer, PASSED: lines * seconds}, None, line.ts, LIVE)


def _waited(line: ConsoleLine, memory: dict[str, Any]) -> Logged | None:
    return Logged({WAITING: 0, PASSED: 0.0}, None, line.ts, LIVE) if memory.pop("wait", None) is not None else None


def derive(piece: Piece) -> Iterator[Out]:
    """Means over the updates of a printed step."""
    if (updates := piece.values.get(UPDATES)) is not None:
        for key, metric in nemo_rl_keys.PER_UPDATE.items():
            if key in piece.values:
                yield metric, (), piece.values[key] / updates


def live(row: Logged, values: Mapping[str, float], context: Context) -> None:
    """Gauges of the moment from a wait. Only the asynchronous loop has a buffer."""
    if row.origin == LIVE and row.step is None:
        mode = str(context.facts.get("mode", ""))
        if not mode.startswith("async"):
            context.take({"mode": "async"})
        context.samples += _state(values, row.ts)


def _state(values: Mapping[str, float], ts: float | None) -> Iterator[Sample]:
    if WAITING in values:
        yield Sample("trainer_phase_active", values[WAITING], (("phase", "wait"),), ts)
    if BUFFER in values:
        yield Sample("queue_groups", values[BUFFER], (), ts)
