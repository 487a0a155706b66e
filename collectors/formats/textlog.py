"""Tails text logs and removes terminal colours and what launchers put before lines. Collectors interpret the lines."""

import re
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from collectors.model import Cursor, Limits
from collectors.transport import bytetail

# CSI sequences (colours, cursor moves), and OSC sequences that some loggers use for links.
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
# The time of a container's runtime (`docker logs --timestamps`, `kubectl logs --timestamps`, CRI files), with a zone.
_CONTAINER = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6,9}(?:Z|[+-]\d\d:\d\d)) (?:std(?:out|err) [FP] )?", re.ASCII
)
# torchrun's `[default0]:`, and the task number of `srun --label`, which is padded from the tenth task on. Torch itself
# prints `[rank0]:`, which is part of its message.
_LABEL = re.compile(r"\[(?!rank)[a-z]+\d{1,5}\]:|\d{1,5}: | {1,3}\d{1,4}: (?=\{['\"].*\}$)", re.ASCII)


class Text(NamedTuple):
    """Lines appended since the cursor; the other fields as in `bytetail.Lines`."""

    lines: list[str]
    cursor: dict[str, Any]
    more: bool
    restarted: bool
    dropped: int
    why: str


def read(path: Path, cursor: Cursor, limits: Limits) -> Text:
    """Lines appended since ``cursor``; invalid UTF-8 becomes replacement characters.

    Raises:
        ScrapeError: ``missing``.
    """
    chunk = bytetail.read(path, cursor, limits)
    lines = [strip(line.decode(errors="replace")) for _, line in chunk.lines]
    return Text(lines, chunk.cursor, chunk.more, chunk.restarted, chunk.dropped, chunk.why)


def strip(line: str) -> str:
    """The line without colours and trailing white space."""
    return _ANSI.sub("", line).rstrip()


def unlabelled(line: str) -> tuple[str, str, float | None]:
    """(label of a launcher, the line without it, epoch seconds of a container's runtime) of a line without colours."""
    ts = None
    if (stamp := _CONTAINER.match(line)) is not None:
        try:
            ts = datetime.fromisoformat(stamp[1]).timestamp()
        except (ValueError, OverflowError):
            return "", line, None
        line = line[stamp.end() :]
    label = _LABEL.match(line)
    return (label.group().strip(), line[label.end() :], ts) if label is not None else ("", line, ts)
