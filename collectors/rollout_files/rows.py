"""Reads files of JSON lines with one rollout per row and the rows of a group in sequence; texts and tokens are skipped.

A group's size is the number of its rows, so a group that exceeds the limits of a call waits for the next call.
"""

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import Any, BinaryIO

from collectors.formats import jsonl, slim
from collectors.model import Rollout
from collectors.rollout_files.step_files import FilePart, ReadRequest

# Bytes. A row of 200,000 tokens with log-probabilities and conversation has about 6 MB; long rows matter most.
LINE_BYTES = 32 << 20
SKIP_BYTES = 1 << 20
HEAD_BYTES = 256


@dataclass(frozen=True, slots=True)
class RowLine:
    """One row. ``index``: its number in the file; ``raw``: its bytes; ``at``: its time in epoch seconds."""

    index: int
    row: Mapping[str, Any]
    raw: bytes
    at: float


@dataclass(frozen=True, slots=True)
class Numbered:
    """A rollout with the number of its row and the byte it begins at."""

    index: int
    start: int
    rollout: Rollout


def lines(
    request: ReadRequest, to_rollout: Callable[[RowLine], Rollout | None], row_name: str, *, appended: bool = False
) -> FilePart:
    """The rollouts on the lines of a file, in whole groups as far as the limits allow.

    Args:
        make: a row -> its rollout; None for a row of another kind.
        what: the name of a row, for the reason of a dropped one.
        appended: the file grows: an incomplete line waits, and older rows get earlier times than the newest.
    """
    part, numbered, bad, waiting = FilePart(), list[Numbered](), list[int](), False
    with request.file.path.open("rb") as file:
        span = _span(request, file, appended)
        for index, start, raw in _raw(file, request, span):
            waiting = appended and raw is not None and not raw.endswith(b"\n")
            if waiting:
                file.seek(start)
                break
            part.rows, part.bytes_read = part.rows + 1, file.tell() - span.start
            row = jsonl.parse(slim.cut(raw)) if raw is not None else None
            rollout = to_rollout(RowLine(index, row, raw or b"", span.at(file.tell()))) if row is not None else None
            if rollout is not None:
                numbered.append(Numbered(index, start, rollout))
            elif raw is None or raw.strip():
                bad.append(start)
        stop = Numbered(span.index + part.rows, file.tell(), Rollout(""))
        part.done = waiting or stop.start >= span.size
        part.rollouts, stop = whole_groups(
            numbered, stop, request.position.get("cut", ""), done=part.done, first=request.first
        )
        part.dropped = sum(start < stop.start for start in bad)
        part.why = f"the line at byte {bad[0]} of {request.file.path.name} is not a {row_name}" if part.dropped else ""
        part.position = {
            "offset": stop.start,
            "row": stop.index,
            "cut": stop.rollout.group_id,
            "head": _head(file, stop.start),
        }
        if appended:
            part.position["since"] = request.memory["since"] = span.at(stop.start)
    return part


def whole_groups(
    numbered: Sequence[Numbered], stop: Numbered, cut: str, *, done: bool, first: bool
) -> tuple[list[Rollout], Numbered]:
    """Adds the groups' sizes to the rollouts; returns where to continue: before the last group while it may grow.

    A group that exceeds the limits of any call, even as the ``first`` of a call, has no size: ``cut`` began in the
    previous call, and ``stop`` is the one that continues. Rows with a stated size or completion time are not counted.
    """
    groups = [list(group) for _, group in groupby(numbered, key=lambda item: item.rollout.group_id)]
    sizes = [len(group) if _is_counted(group[0].rollout, cut) else None for group in groups]
    if groups and not done:
        last = groups[-1][0]
        if len(groups) > 1 or not (first or last.rollout.group_id == cut):
            stop = replace(last, rollout=Rollout(""))
            groups.pop()
        else:
            sizes, stop = [None], replace(stop, rollout=last.rollout)
    sized = [(item, size) for group, size in zip(groups, sizes, strict=False) for item in group]
    return [replace(item.rollout, group_size=size) if size else item.rollout for item, size in sized], stop


def _is_counted(first: Rollout, cut: str) -> bool:
    return first.group_id not in ("", cut) and first.group_size is None and first.group_complete_at is None


@dataclass(frozen=True, slots=True)
class _Span:
    """The new part of a file: first and last row and byte, and the times between which it was written."""

    index: int
    start: int
    size: int
    since: float
    until: float

    def at(self, offset: int) -> float:
        """When the byte before ``offset`` was written, if the file grew evenly."""
        share = (offset - self.start) / (self.size - self.start) if self.size > self.start else 1.0
        return self.since + (self.until - self.since) * share


def _span(request: ReadRequest, file: BinaryIO, appended: bool) -> _Span:
    size = file.seek(0, 2)
    start, index = int(request.position.get("offset", 0)), int(request.position.get("row", 0))
    if start > size or (start and request.position.get("head") != _head(file, start)):
        start, index = 0, 0
    since = request.position.get("since") if start else request.memory.get("since")
    since = min(float(since), request.at) if appended and since is not None else request.at
    file.seek(start)
    return _Span(index, start, size, since, request.at)


def _raw(file: BinaryIO, request: ReadRequest, span: _Span) -> Iterator[tuple[int, int, bytes | None]]:
    """Number, first byte and bytes of each line within the limits; None for one that is too long."""
    index = span.index
    while index - span.index < request.rows and file.tell() - span.start < request.bytes_read:
        start = file.tell()
        raw = file.readline(LINE_BYTES)
        if not raw:
            return
        whole = raw.endswith(b"\n") or len(raw) < LINE_BYTES
        if not whole:
            while not file.readline(SKIP_BYTES).endswith(b"\n") and file.tell() < span.size:
                pass
        yield index, start, raw if whole else None
        index += 1


def _head(file: BinaryIO, offset: int) -> str:
    """A hash of the first bytes read; another file begins differently."""
    file.seek(0)
    return hashlib.blake2b(file.read(min(HEAD_BYTES, offset)), digest_size=8).hexdigest()


def list_length(raw: bytes, key: bytes) -> int | None:
    """The count of numbers in the flat list under a key; None if there is no list. The first one of the row counts."""
    match = _list(key).search(raw)
    if match is None:
        return None
    return match[1].count(b",") + 1 if match[1].strip() else 0


def mask_ones(raw: bytes, key: bytes) -> int | None:
    """The count of ones in a mask (``1``, ``1.0`` or ``true``)."""
    match = _list(key).search(raw)
    return match[1].count(b"1") + match[1].count(b"true") if match is not None else None


def list_items(raw: bytes, key: bytes) -> bytes | None:
    """The list's bytes without its brackets."""
    match = _list(key).search(raw)
    return match[1] if match is not None else None


@cache
def _list(key: bytes) -> re.Pattern[bytes]:
    # NeMo-RL writes a batch of one: a list in a list.
    return re.compile(rb'"' + re.escape(key) + rb'": ?\[\s?\[?([-+0-9.eE,\struefalsnNI]*+)\]')
