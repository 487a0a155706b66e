"""Printed lines of verl (0.9.1: utils/logger/aggregate_logger.py:26, fully_async_rollouter.py:1128,
trainer/ppo/v1/replay_buffer.py:412, main_ppo.py:144). The lines have no times.
"""

import re
from typing import Any

from collectors.formats.console import ConsoleConfig, ConsoleLine, Ended, Parsed, figure, literal
from collectors.formats.rows import Logged

MONITOR, BUFFER = "monitor", "buffer"
# Digits are bounded, because int() of very many digits is slow and then fails. A progress bar may precede them on
# the line: stdout and stderr go into one file.
_STEP = re.compile(r"\bstep:(\d{1,15}) - (?=\S)")
_STATISTICS = "[MonitorLoop][Statistics]"
_BUFFER = re.compile(r"pending: (\d{1,15}), running: (\d{1,15}), finished: (\d{1,15}), failure: (\d{1,15})")
# `pprint` of the whole configuration at the start: sorted, so this key is among its first.
_CONFIG = re.compile(r"\s*\{'actor_rollout_ref': \{")
_FINAL = "Final validation metrics:"


def parse(line: ConsoleLine, memory: dict[str, Any]) -> Parsed:
    """A logged step, statistics of the moment, the configuration, or the closing message."""
    text = line.text
    if (step := _STEP.search(text)) is not None:
        return Logged(_values(text[step.end() :]), int(step[1]), line.ts)
    if _STATISTICS in text:
        statistics = literal(text)
        return Logged(statistics, None, line.ts, MONITOR) if statistics else None
    if (counts := _BUFFER.search(text)) is not None:
        names = ("pending", "running", "finished", "failure")
        return Logged(dict(zip(names, map(int, counts.groups()), strict=True)), None, line.ts, BUFFER)
    if _CONFIG.match(text):
        config = literal(text)
        return ConsoleConfig(config) if config else None
    return Ended(f"the log contains: {_FINAL.rstrip(':')}") if text.lstrip("\"'").startswith(_FINAL) else None


def _values(text: str) -> dict[str, Any]:
    """`key:value - key:value`. A value that is no number becomes None, because NaN has a meaning, too."""
    pairs = (part.rpartition(":") for part in text.split(" - "))
    return {key.strip(): figure(value) for key, _, value in pairs if key}
