"""A sink for the printed output of a trainer: the output of a job in a file, with all that terminals and Ray add.

Removed are the labels of launchers (`textlog.unlabelled`) and Ray's `(Actor pid=1, ip=10.0.0.2)` before every line,
Ray's `[repeated 3x across cluster]` behind it, colours, and progress bars that overwrite themselves. A dict that
pformat spread over lines becomes one message again, also between lines of other processes. The framework supplies the
parser of the messages.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from fnmatch import fnmatch
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

from collectors.formats import faults, jsonl
from collectors.formats.jsonl import number
from collectors.formats.rows import Logged, Logs, Sink, walk
from collectors.model import Cursor, Limits
from collectors.transport import bytetail

# `train.o4177` and `train.e4177` are the names of PBS and Grid Engine.
PATTERNS = ("*.log", "*.out", "*.err", "*.stdout", "*.stderr", "*.txt", "*.[oe][0-9]*", "console*", "stdout", "stderr")
PRINTED = "a printed log (*.log, *.out, *.err, *.txt, console*, ...)"
# A file given by name may have no suffix (`nohup ... > train`).
SUFFIXES = frozenset((".log", ".out", ".txt", ".err", ".stdout", ".stderr", ""))
# A rotated log (`train.log.1`), or a job's number.
_NUMBERED = re.compile(r"\.[oe]?\d{1,12}", re.ASCII)
# `console*` must not match files of other sinks.
FOREIGN = frozenset((".json", ".jsonl", ".db", ".html", ".gz", ".zip", ".png"))
# A whole configuration has some hundred lines and 40 kB; in a longer block a brace was never closed.
BLOCK_LINES = 3_000
BLOCK_CHARS = 1 << 20
# Detection of the framework reads the beginning of a log, its end, and sections between them.
# Bytes read at the end.
END_BYTES = 512 << 10
# Bytes of one section.
SECTION_BYTES = 64 << 10
# Sections between beginning and end.
SECTIONS = 8
# Lines read in one call, with or without rows.
MAX_LINES = 50_000
# Ray forwards a print in one piece: after this many lines of other processes the end of a block is lost.
FOREIGN_LINES = 200
# Characters. Evaluating a literal costs a hundred times the memory of its text.
LITERAL_CHARS = 256 << 10
# In the memory of a parser whose log is not read from its start.
FROM_END = "from the end"

_RAY = re.compile(r"^\((?:[^()\s]+(?:\([^()]*\))? )?pid=\d+(?:, ip=[^()\s]+)?\) ?")
_REPEATED = re.compile(r"\s*\[repeated \d+x across (?:the )?cluster\](?:\s*\(Ray deduplicates logs.*)?$")
_DATED = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)(?:[.,](\d{1,6}))?", re.ASCII)
# Characters. A date further in belongs to the message and is not its time.
_DATE_WITHIN = 48
# Messages at the end of a read. If none of them has a time, the newest time is older than the end of the file.
_NEWEST_WITHIN = 10
_TOKEN = re.compile(
    r"(?P<text>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")"
    r"|(?:np|numpy|torch)\.\w+\((?P<inner>[-+\w.]*)\)|tensor\((?P<tensor>[-+\w.]*)(?:, [^()]*)?\)"
    r"|-?\b(?P<odd>nan|inf|NaN|Infinity)\b"
)
_WRAPPED = re.compile(r"(?:np|numpy|torch)\.\w+\(([-+\w.]*)\)|tensor\(([-+\w.]*)(?:, [^()]*)?\)")


class ConsoleLine(NamedTuple):
    """One message: its text (lines of a block joined by newlines), and its time in epoch seconds, if it has one."""

    text: str
    ts: float | None = None


@dataclass(frozen=True, slots=True)
class ConsoleConfig:
    """The run's configuration, as printed."""

    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Ended:
    """The run has ended; ``why``: the reason as text of the log."""

    why: str
    failed: bool = False


Parsed = Logged | ConsoleConfig | Ended | None
Parse = Callable[[ConsoleLine, dict[str, Any]], Parsed]
"""(message, JSON-able memory of the parser) -> what the message contains, None for nothing. Never raises."""


@dataclass(slots=True)
class _Block:
    """A message that is not closed yet. ``first`` and ``last``: the indices of its lines so far."""

    first: int
    last: int
    lines: list[str]
    depth: int
    ts: float | None
    size: int = 0


@dataclass(slots=True)
class _Messages:
    """Messages with the indices of their first and last line; ``whole``: the number of lines that are processed."""

    items: list[tuple[int, int, ConsoleLine]] = field(default_factory=list)
    whole: int = 0

    def add(self, first: int, last: int, text: str, ts: float | None) -> None:
        """Adds a message; ``ts``: its time if it has one beside its text."""
        self.items.append((first, last, ConsoleLine(text, _date(text) if ts is None else ts)))

    def parted(self, index: int) -> bool:
        """Returns whether no message crosses the beginning of this line."""
        return not any(first < index <= last for first, last, _ in self.items)

    def cut(self, whole: int) -> None:
        """Leaves lines from ``whole`` on, and every message that reaches into them, for the next call."""
        for first, last, _ in reversed(self.items):
            whole = first if first < whole <= last else whole
        self.whole = whole


def sink(parse: Parse, patterns: tuple[str, ...] = PATTERNS, name: str = "console", max_depth: int = 3) -> Sink:
    """A sink for text files whose names match one of ``patterns`` (as in a shell, names only)."""
    looks_for = PRINTED if patterns is PATTERNS else " or ".join(patterns)
    find, further = partial(_find, patterns, max_depth), partial(_further, parse)
    return Sink(
        name, looks_for, find, partial(_read, parse), writers=True, further=further, near_end=_near_end,
        local_times=True,
    )  # fmt: skip


def is_named_as_log(path: Path) -> bool:
    """Returns whether a file that was given by name may be a printed log."""
    return path.suffix in SUFFIXES or _NUMBERED.fullmatch(path.suffix) is not None


def _find(patterns: tuple[str, ...], depth: int, path: Path) -> list[Path]:
    if path.is_file():
        return [path] if is_named_as_log(path) else []
    return walk(path, lambda file: file.suffix not in FOREIGN and any(fnmatch(file.name, p) for p in patterns), depth)


def _read(parse: Parse, path: Path, cursor: Cursor, limits: Limits) -> Logs:
    """Rows since ``cursor``, which is `bytetail`'s with the memory of the parser and the fault read last."""
    at = cursor.get("at", {})
    # Most lines have no rows: servers print thousands before a run's first step. The row limit counts rows only.
    window = replace(limits, tail_rows=MAX_LINES)
    chunk = bytetail.read(path, at, window)
    more, messages = chunk.more, _messages(chunk.lines)
    # An open block waits, with the lines behind it, unless it fills the whole window: then it never ends.
    whole = messages.whole if messages.whole or not more else len(chunk.lines)
    memory = {} if chunk.restarted else dict(cursor.get("memory", {}))
    logs = Logs([], {}, more, chunk.restarted)
    logs.modified = path.stat().st_mtime
    logs.fault = None if chunk.restarted else faults.loaded(cursor.get("fault"))
    reached, taken = -1, list[ConsoleLine]()
    for first, last, line in messages.items:
        if last >= whole:
            break
        if len(logs.rows) >= limits.tail_rows and first > reached and messages.parted(first):
            whole, logs.more = first, True
            break
        reached = max(reached, last)
        taken.append(line)
        parsed = parse(line, memory)
        _add_parsed(logs, parsed)
        _add_fault(logs, parsed, line)
    logs.newest = _newest(taken, logs.modified)
    if whole < len(chunk.lines):
        chunk = bytetail.read(path, at, replace(limits, tail_rows=whole))
    logs.cursor, logs.dropped, logs.why = {"at": chunk.cursor, "memory": memory}, chunk.dropped, chunk.why
    if logs.fault is not None:
        logs.cursor["fault"] = list(logs.fault)
    status = path.stat()
    before = 0 if chunk.restarted else int(cursor.get("at", {}).get("offset", 0))
    offset = int(chunk.cursor["offset"])
    logs.ahead = max(0, status.st_size - offset) / max(offset - before, 1)
    return logs


def _near_end(path: Path, size: int) -> Cursor:
    return {"at": bytetail.near_end(path, size), "memory": {FROM_END: True}}


def _further(parse: Parse, path: Path, limits: Limits) -> Logs:
    """The messages at the end of a log, and in sections between the end and the first ``limits.tail_bytes``."""
    logs, memory = Logs(), dict[str, Any]()
    with bytetail.readable(path.name):
        status = path.stat()
        for offset, size in _sections(limits.tail_bytes, status.st_size):
            for line in _lines(path, status.st_mtime_ns, offset, size):
                _add_parsed(logs, parse(line, memory))
    return logs


def _sections(begin: int, end: int) -> Iterator[tuple[int, int]]:
    """(offset, bytes), ascending, not overlapping."""
    tail = max(begin, end - END_BYTES)
    gap = max(0, tail - begin) // (SECTIONS + 1)
    if gap >= SECTION_BYTES:
        yield from ((begin + gap * number, SECTION_BYTES) for number in range(1, SECTIONS + 1))
    elif tail > begin:
        yield begin, tail - begin
    if end > tail:
        yield tail, end - tail


@lru_cache(maxsize=2 * SECTIONS)
def _lines(path: Path, _modified: int, offset: int, size: int) -> list[ConsoleLine]:
    """Messages between two line ends. Cached per state of the file, because every framework reads the same log."""
    with path.open("rb") as file:
        file.seek(offset)
        whole = file.read(size).split(b"\n")[1:-1]
    messages = _messages(list(enumerate(whole)))
    return [line for _, _, line in messages.items]


def _add_parsed(logs: Logs, parsed: Parsed) -> None:
    if isinstance(parsed, Logged):
        logs.rows.append(parsed)
    elif isinstance(parsed, ConsoleConfig):
        logs.config.update(parsed.values)
    elif isinstance(parsed, Ended):
        logs.finished, logs.failed = parsed.why, parsed.failed


def _add_fault(logs: Logs, parsed: Parsed, line: ConsoleLine) -> None:
    """Adds the fault that a message reports; a later row of the trainer shows that it goes on."""
    assert logs.modified is not None
    if isinstance(parsed, Logged):
        # Rows of other processes than the trainer have an origin and no step.
        logs.fault = None if parsed.step is not None or not parsed.origin else logs.fault
    elif (fault := faults.find(line.text, line.ts, logs.modified)) is not None:
        logs.fault = logs.fault.with_line(fault) if logs.fault is not None else fault


def _newest(lines: list[ConsoleLine], modified: float) -> float | None:
    """The newest time of the last messages."""
    times = (
        line.ts if line.ts is not None else faults.glog_time(line.text, modified) for line in lines[-_NEWEST_WITHIN:]
    )
    return max((ts for ts in times if ts is not None), default=None)


def _messages(lines: list[tuple[int, bytes]]) -> _Messages:
    """Joins lines to messages. Ray's prefix separates the blocks of different processes."""
    result = _Messages()
    blocks: dict[str, _Block] = {}
    for index, (_, raw) in enumerate(lines):
        for source, text, ts in _parts(raw):
            block = blocks.get(source)
            if block is not None and _continues(block, text):
                _extend(block, text, index)
                if block.depth <= 0:
                    result.add(block.first, index, "\n".join(blocks.pop(source).lines), block.ts)
                continue
            _give_up(blocks, source, index, result)
            if (depth := _depth(text)) > 0:
                blocks[source] = _Block(index, index, [text], depth, ts)
            else:
                result.add(index, index, text, ts)
        for lost in [source for source, block in blocks.items() if index - block.last > FOREIGN_LINES]:
            _give_up(blocks, lost, index, result)
    result.cut(min((block.first for block in blocks.values()), default=len(lines)))
    return result


def _give_up(blocks: dict[str, _Block], source: str, index: int, result: _Messages) -> None:
    """Ends a block whose end was never printed: each line becomes a message."""
    block = blocks.pop(source, None)
    if block is not None:
        # The messages reach to the line where the loss is noticed; a cut in between would lose or repeat them.
        for text in block.lines:
            result.add(block.first, index, text, block.ts)


def _continues(block: _Block, text: str) -> bool:
    """pformat indents a block; a line without indent means that the end of the block was never printed."""
    room = len(block.lines) < BLOCK_LINES and block.size < BLOCK_CHARS
    return room and text[:1] in (" ", "\t", "}", "]", ")")


def _extend(block: _Block, text: str, index: int) -> None:
    block.last = index
    block.lines.append(text)
    block.size += len(text)
    block.depth += _depth(text)


def _depth(text: str) -> int:
    """The number of braces opened and not closed, outside quotes."""
    if "{" not in text and "}" not in text:
        return 0
    bare = _TOKEN.sub("", text)
    return bare.count("{") - bare.count("}")


def _parts(raw: bytes) -> Iterator[tuple[str, str, float | None]]:
    """(prefix, text, time before the prefix) of one line of the file; a progress bar makes several."""
    ts = None
    for part in raw.decode(errors="replace").split("\r"):
        source, text, stamp = jsonl.unlabelled(jsonl.strip(part))
        # The runtime of a container writes one time for all parts.
        ts = stamp if stamp is not None else ts
        prefix = _RAY.match(text)
        source += prefix.group().strip() if prefix is not None else ""
        text = _REPEATED.sub("", text[prefix.end() :] if prefix is not None else text)
        if text.strip():
            yield source, text, ts


def _date(text: str) -> float | None:
    """Epoch seconds of a date near the start; without a zone it is local, as loggers write it."""
    match = _DATED.search(text, 0, _DATE_WITHIN)
    if match is None:
        return None
    try:
        whole = datetime.fromisoformat(match[1]).timestamp()
    except (OverflowError, ValueError):
        return None
    return whole + float(f"0.{match[2] or 0}")


def figure(text: str) -> float | None:
    """A finite number in Python's notation, also `np.float64(0.5)` and `tensor(0.5)`; None for anything else."""
    match = _WRAPPED.fullmatch(text.strip())
    plain = (match.group(1) or match.group(2) or "") if match is not None else text
    try:
        return number(float(plain))
    except ValueError:
        return None


def literal(text: str) -> dict[str, Any] | None:
    """Parses the dict from the first brace to the last, as `print` or pformat wrote it; NaN, infinity become None.

    Only literals are evaluated, nothing is called. None if it is not a dict, or too large.
    """
    start, end = text.find("{"), text.rfind("}")
    if not 0 <= start < end or end - start > LITERAL_CHARS:
        return None
    try:
        parsed = ast.literal_eval(_TOKEN.sub(_plain, text[start : end + 1]))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return {str(key): value for key, value in parsed.items()} if isinstance(parsed, dict) else None


def _plain(match: re.Match[str]) -> str:
    if match["text"] is not None:
        return match["text"]
    inner = match["inner"] or match["tensor"]
    return "None" if not inner or inner.lstrip("+-").lower() in ("nan", "inf", "infinity") else inner
