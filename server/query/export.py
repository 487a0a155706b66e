"""Rollouts as a table for a spreadsheet. Pure."""

import csv
import heapq
import io
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from collectors.model import Span
from server.query.types import RolloutDetail
from server.rollouts.model import RolloutRow

# Fields of which a cell holds no readable text.
_LISTS = ("turns", "spans", "token_versions", "consumptions")
COLUMNS = tuple(name for name in RolloutRow.__struct_fields__ if name not in _LISTS)
_values = attrgetter(*COLUMNS)
# A spreadsheet takes what begins so for a formula, and runs it.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def csv_lines(rows: Sequence[RolloutRow], *, head: bool = False) -> Iterator[str]:
    """Text of the rows, as one piece; ``head``: with the names of the columns before."""
    buffer = io.StringIO()
    writer = csv.writer(buffer)
    if head:
        writer.writerow(COLUMNS)
    writer.writerows(
        [safe(" ".join(value) if isinstance(value, tuple) else value) for value in _values(row)] for row in rows
    )
    yield buffer.getvalue()


def safe(value: object) -> object:
    """A cell that is not run: texts that look like formulas get an apostrophe before them; None is empty."""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return f"'{value}"
    return "" if value is None else value


# ---- trace export
# Timelines as Chrome trace JSON, which Perfetto and chrome://tracing open.

Track = tuple[int, int]
"""(pid, tid): a process is an engine, a thread one of its slots."""


def trace_of(rollouts: Sequence[RolloutDetail], now: float) -> dict[str, Any]:
    """A track per engine and slot, with rollouts and their phases; of one rollout alone a track per kind of phase."""
    events = _kinds(rollouts[0], now) if len(rollouts) == 1 else _slots(rollouts, now)
    return {"displayTimeUnit": "ms", "traceEvents": list(events)}


def _kinds(rollout: RolloutDetail, now: float) -> Iterator[dict[str, Any]]:
    kinds = list(dict.fromkeys(bar.kind for bar in rollout.spans))
    yield _name("process_name", (1, 0), rollout.rollout.rollout_id)
    for at, kind in enumerate(kinds, 1):
        yield _name("thread_name", (1, at), kind)
    for bar in rollout.spans:
        yield from _bar((1, 1 + kinds.index(bar.kind)), bar, rollout.rollout, now)
    yield from _uses((1, 0), rollout)


def _slots(rollouts: Sequence[RolloutDetail], now: float) -> Iterator[dict[str, Any]]:
    by_engine: dict[str, list[tuple[float, float, RolloutDetail]]] = {}
    for rollout in rollouts:
        if rollout.spans:
            begin = min(bar.start for bar in rollout.spans)
            end = max(now if bar.end is None else bar.end for bar in rollout.spans)
            by_engine.setdefault(rollout.rollout.engine, []).append((begin, max(begin, end), rollout))
    for pid, (engine, rows) in enumerate(sorted(by_engine.items()), 1):
        yield _name("process_name", (pid, 0), engine or "unknown engine")
        named: set[int] = set()
        for tid, begin, end, rollout in _packed(rows):
            if tid not in named:
                named.add(tid)
                yield _name("thread_name", (pid, tid), f"slot {tid}")
            yield _event((pid, tid), rollout.rollout.rollout_id, "rollout", begin, end, _args(rollout.rollout))
            for bar in rollout.spans:
                yield from _bar((pid, tid), bar, rollout.rollout, now)
            yield from _uses((pid, tid), rollout)


def _packed(rows: Sequence[tuple[float, float, RolloutDetail]]) -> Iterator[tuple[int, float, float, RolloutDetail]]:
    """Each into the lowest slot that is free when it begins: as many slots as there were rollouts at once."""
    free: list[int] = []
    busy: list[tuple[float, int]] = []
    for begin, end, rollout in sorted(rows, key=lambda row: (row[0], row[1], row[2].rollout.rollout_id)):
        while busy and busy[0][0] <= begin:
            heapq.heappush(free, heapq.heappop(busy)[1])
        slot = heapq.heappop(free) if free else len(busy) + 1
        heapq.heappush(busy, (end, slot))
        yield slot, begin, end, rollout


def _bar(track: Track, bar: Span, row: RolloutRow, now: float) -> Iterator[dict[str, Any]]:
    values = {"rollout": row.rollout_id, "policy version": bar.version, "detail": bar.detail, "open": bar.end is None}
    name = bar.kind if bar.version is None else f"{bar.kind} v{bar.version}"
    args = {key: value for key, value in values.items() if value not in (None, "", False)}
    yield _event(track, name, bar.kind, bar.start, max(bar.start, now) if bar.end is None else bar.end, args)


def _uses(track: Track, rollout: RolloutDetail) -> Iterator[dict[str, Any]]:
    for use in rollout.rollout.consumptions:
        if use.at is not None:
            name = "consumed" if use.version is None else f"consumed at v{use.version}"
            pid, tid = track
            yield {"ph": "i", "s": "t", "name": name, "cat": "trainer", "ts": _us(use.at), "pid": pid, "tid": tid}


def _event(track: Track, name: str, kind: str, start: float, end: float, args: Mapping[str, Any]) -> dict[str, Any]:
    pid, tid = track
    begin = _us(start)
    return {
        "ph": "X", "name": name, "cat": kind, "ts": begin, "dur": _us(end) - begin, "pid": pid, "tid": tid,
        "args": dict(args),
    }  # fmt: skip


def _name(what: str, track: Track, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": track[0], "tid": track[1], "args": {"name": name}}


def _args(row: RolloutRow) -> dict[str, Any]:
    names = (
        "life",
        "group_id",
        "environment",
        "state",
        "reward",
        "response_tokens",
        "turn_count",
        "staleness",
        "error",
    )
    return {name: value for name in names if (value := getattr(row, name)) not in (None, "")}


def _us(seconds: float) -> int:
    return round(seconds * 1e6)
