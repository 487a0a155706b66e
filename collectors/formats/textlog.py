"""Tails text logs and removes terminal colours. Collectors interpret the lines."""

import re
from pathlib import Path
from typing import Any, NamedTuple

from collectors.model import Cursor, Limits
from collectors.transport import bytetail

# CSI sequences (colours, cursor moves), and OSC sequences that some loggers use for links.
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")


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
