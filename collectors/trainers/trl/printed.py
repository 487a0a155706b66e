"""Dicts that HF's trainer prints between progress bars (transformers 4 and 5, with and without ms-swift's callbacks).

The bar before a dict has the step, the number of all steps and the elapsed time; a dict has no time. transformers 5
prints every value as a text. Without bars (``disable_tqdm``, or only stdout in the file) the dicts are numbered, which
is the step with ``logging_steps=1``.
"""

import re
from typing import Any

from collectors.formats.console import FROM_END, ConsoleLine, Parsed, figure, literal
from collectors.formats.rows import Logged

# Names for what the bar has; no logger can write them.
ELAPSED = "seconds since the start of the process"
MAX_STEPS = "number of all steps"

# Keys that ms-swift adds to TRL's: its runs have a collector of their own.
MS_SWIFT = (r"train_speed\((?:iter/s|s/it)\)", "global_step/max_steps", r"elapsed time per iteration \(ms\)")

# The trainer's bar has no description, or ms-swift's. Digits are bounded, because int() of very many is slow.
_BAR = re.compile(r"^\s*(?:Train:?\s*)?\d{1,3}%\|[^|]*\| (\d{1,15})/(\d{1,15}) \[(\d[\d:]{0,15})<")
_DICT = re.compile(r"(?:^\s*|\])\s*(\{['\"].*\})\s*$", re.DOTALL)
# A printed dict of the trainer has one of them.
_TRAINING = ("loss", "reward")
_OTHERS = re.compile(r"eval_.+|train_(?:runtime|loss)")
# Numbers of steps of bars since the last dict. Reward functions and evaluations have bars of their own.
_MAX_BARS = 8


def parse(line: ConsoleLine, memory: dict[str, Any]) -> Parsed:
    """A printed dict as a row; the step is that of the last bar."""
    bar = _BAR.match(line.text)
    if bar is not None:
        _add_bar(int(bar[1]), int(bar[2]), seconds(bar[3]), memory)
    values = dict_of(line.text)
    if values is None:
        return None
    if any(key in values for key in _TRAINING) and not any(_OTHERS.fullmatch(key) for key in values):
        return _training(values, line.ts, memory)
    if any(_OTHERS.fullmatch(key) for key in values):
        return Logged(values, memory.get("step"), line.ts)
    return None


def dict_of(text: str) -> dict[str, Any] | None:
    """The printed dict of a message, with numbers instead of their texts; None for something else."""
    found = _DICT.search(text) if text.endswith("}") else None
    values = literal(found[1]) if found is not None else None
    if values is None:
        return None
    return {key: _number(value) if isinstance(value, str) else value for key, value in values.items()}


def seconds(clock: str) -> float:
    """Seconds of ``03:25``, ``1:03:25``; of ``1m 3s``, ``1h 2m 3s``, ``4d 3h 37m 48s``, too."""
    total = 0.0
    if ":" in clock:
        for part in clock.split(":"):
            total = total * 60 + float(part or 0)
        return total
    for amount, unit in re.findall(r"(\d{1,9})([dhms])", clock):
        total += float(amount) * {"d": 86_400, "h": 3600, "m": 60, "s": 1}[unit]
    return total


def _number(text: str) -> Any:
    """A text that is no number stays a text; "nan" becomes None as in other logs."""
    if text.strip().lower().lstrip("+-") in ("nan", "inf"):
        return None
    value = figure(text)
    return text if value is None else value


def _add_bar(step: int, total: int, elapsed: float, memory: dict[str, Any]) -> None:
    bars = [bar for bar in memory.get("bars", ()) if bar[1] != total]
    memory["bars"] = [*bars, (step, total, elapsed)][-_MAX_BARS:]


def _training(values: dict[str, Any], ts: float | None, memory: dict[str, Any]) -> Logged | None:
    bars = memory.pop("bars", None)
    if not bars and "step" not in memory and memory.get(FROM_END):
        return None  # the dicts before it are not counted
    step = int(memory.get("step", 0)) + 1
    if bars:
        step, total, elapsed = next((bar for bar in bars if bar[1] == memory.get("total")), bars[-1])
        memory["total"] = total
        values |= {MAX_STEPS: float(total), ELAPSED: elapsed}
    memory["step"] = step
    return Logged(values, step, ts)
