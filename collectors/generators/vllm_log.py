"""Printed log of a vLLM server (V0, V1 to 0.33; also prime-rl's inference log), where its port cannot be reached.

Every 10 s one line per engine: throughputs, requests, KV cache, prefix cache. Several API servers of one process group
each print their own part of an engine's requests, so the parts are added up; the cache is the engine's.

An idle engine prints one line of zeros and then nothing. It counts as idle for `IDLE_SECONDS`; then its values become
unknown, because a dead server prints nothing, too. After an abort the requests stay in the last line, and are unknown
from 30 s on.

Not read: lines that Ray forwards from a trainer's engines (the engines' pages have more), and folders below the given
one, because the log of a run's engines would count them a second time next to their pages.

Prompt tokens are a counter elsewhere. Here they are added up from the rate of each line, which covers the time since
the line before.
"""

import re
import time
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Any

from collectors.formats import console, jsonl
from collectors.formats.log_times import CLOCK, LogClock, anchor_backwards
from collectors.formats.rows import walk
from collectors.model import Collector, Cursor, Labels, Limits, Reading, Sample, ScrapeError
from collectors.training_logs import clocks
from collectors.transport import bytetail

LOOKED_FOR = "the printed log of a vLLM server (lines with `Avg generation throughput`)"
# Seconds between two lines of an engine, unless VLLM_LOG_STATS_INTERVAL changes them.
REPORT_SECONDS = 10.0
# A part of an API server that has not been printed for this many intervals is not added any more.
PART_INTERVALS = 2.5
# Seconds for which an engine counts as idle after a line of zeros: longer than a training step of most runs.
IDLE_SECONDS = 600.0
# Bytes at the start and at the end of a log in which a line of an engine is searched; loading a model prints 100 kB.
PEEK_BYTES = 1 << 20
# Logs of one folder. A folder with more is no folder of servers.
MAX_LOGS = 64

# Digits are bounded, because int() of very many digits is slow and then fails.
_NUMBER = r"(\d{1,15}(?:\.\d{1,6})?)"
_STATS = re.compile(
    rf"(?:Engine (\d{{1,6}}): )?Avg prompt throughput: {_NUMBER} tokens/s, "
    rf"Avg generation throughput: {_NUMBER} tokens/s, "
    r"Running: (\d{1,15}) reqs, (?:Swapped: (\d{1,15}) reqs, )?(?:Waiting|Pending): (\d{1,15}) reqs"
)
_KV_CACHE = re.compile(rf"GPU KV cache usage: {_NUMBER}%")
_PREFIX_CACHE = re.compile(rf"Prefix cache hit rate: (?:GPU: )?{_NUMBER}%")
_PROCESS = re.compile(r"\(([^()\s]+)(?: [^()\s=]+)? pid=(\d{1,10})(?:, ip=[^()\s]+)?\)")
_OF_VLLM = re.compile(r"(?:APIServer|EngineCore)(?:_\w+)?", re.IGNORECASE)
# `INFO 11-25 09:46:50`, with the year in other configurations of its logger; a time of day in prime-rl's.
_DATE = re.compile(r"(?<!\d)(?:(\d{4})-)?(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?!\d)")
_TIME = re.compile(r"(?<![\d:.])\d\d:\d\d:\d\d(?!\d)")
# Characters. A date further in belongs to the message.
_DATE_WITHIN = 64


@dataclass(frozen=True, slots=True)
class _Line:
    """What one API server printed of one engine. ``engine``: "" if the line names none."""

    engine: str
    process: str
    prompt_rate: float
    token_rate: float
    running: int
    waiting: int
    kv_cache: float | None
    prefix_cache: float | None


def tail(path: Path, cursor: Cursor, limits: Limits, now: float) -> Reading:
    """Gauges of each engine since ``cursor``. With several logs in a folder each is a replica.

    Raises:
        ScrapeError: ``missing``, ``not_a_run``.
    """
    with bytetail.readable("the log"):
        logs = _logs(path, cursor)
        if not logs:
            if not path.exists():
                raise ScrapeError("missing", f"{path.name} does not exist")
            raise ScrapeError("not_a_run", f"no engine in {path.name}: looked for {LOOKED_FOR}")
        return _tail(path, logs, cursor, limits, now)


def _tail(path: Path, logs: list[Path], cursor: Cursor, limits: Limits, now: float) -> Reading:
    part = replace(limits, tail_bytes=limits.tail_bytes // len(logs), tail_rows=max(1, limits.tail_rows // len(logs)))
    memory: dict[str, Any] = {}
    facts: dict[str, str | float] = {}
    samples: list[Sample] = []
    more, dropped, why, rows = False, 0, "", 0
    for log in logs:
        before = cursor.get(log.name, {})
        read = jsonl.read_text(log, before.get("at", {}), part)
        state: dict[str, Any] = {} if read.restarted else deepcopy(before.get("state", {}))
        replica: Labels = (("replica", log.stem),) if len(logs) > 1 else ()
        samples += _samples(read, state, log.stat().st_mtime, now, replica)
        samples += _idle(state, now, replica) if not read.more else ()
        if offset := state.get("offset"):
            facts["clock_offset_seconds"] = offset
        memory[log.name] = {"at": read.cursor, "state": state}
        more, dropped, why = more or read.more, dropped + read.dropped, why or read.why
        rows += len(read.lines)
    return Reading(
        samples=tuple(sorted(samples, key=lambda sample: sample.ts or now)),
        cursor=memory,
        facts=facts,
        more=more,
        dropped=dropped,
        why_dropped=why,
        samples_scraped=rows,
        origins={sample.metric: "the engine's printed line" for sample in samples},
        reader=", ".join(log.name for log in logs),
    )


def _samples(read: jsonl.Text, state: dict[str, Any], modified: float, now: float, replica: Labels) -> Iterator[Sample]:
    """The last value of each second. ``state``: JSON-able memory of this log."""
    found = [(*jsonl.unlabelled(line)[1:], stats) for line in read.lines if (stats := _parse(line)) is not None]
    values: dict[tuple[str, Labels, float], float] = {}
    dated, offset = list(_dated(found, state, min(modified, now))), state.get("offset", 0.0)
    # Before its end a log has only older times.
    if dated and not read.more:
        is_local = found[-1][1] is None
        state["offset"] = offset = offset + clocks.offset(dated[-1][0] - offset, modified, now, is_local)
    for ts, stats in ((stamp - offset, stats) for stamp, stats in dated):
        engine: Labels = ((("engine", stats.engine),) if stats.engine else ()) + replica
        for metric, value in _engine(stats, ts, state.setdefault("engines", {}).setdefault(stats.engine, {})):
            values[metric, engine, ts] = value
    for (metric, labels, ts), value in values.items():
        yield Sample(metric, value, labels, ts)


def _idle(state: Mapping[str, Any], now: float, replica: Labels) -> Iterator[Sample]:
    """Zeros of engines whose newest lines are zeros, at the time of this call."""
    for name, engine in state.get("engines", {}).items():
        parts = engine["parts"].values()
        last = max(part["ts"] for part in parts)
        is_zero = all(part["running"] + part["waiting"] + part["tokens"] == 0 for part in parts)
        if is_zero and REPORT_SECONDS <= now - last <= IDLE_SECONDS:
            labels: Labels = ((("engine", name),) if name else ()) + replica
            for metric in ("generator_requests_running", "generator_requests_waiting", "generator_token_throughput"):
                yield Sample(metric, 0.0, labels, now)


def _engine(stats: _Line, ts: float, engine: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Metrics of one engine after one more line."""
    parts: dict[str, dict[str, float]] = engine.setdefault("parts", {})
    before = parts.get(stats.process)
    gap = ts - before["ts"] if before is not None else 0.0
    if gap > 0:
        engine["interval"] = min(gap, engine.get("interval", gap))
    interval = engine.get("interval", REPORT_SECONDS)
    # After a silence (an idle engine) the rate covers the last interval only.
    seconds = 0.0 if before is None else gap if gap < 1.5 * interval else interval
    engine["prompt_tokens"] = engine.get("prompt_tokens", 0.0) + stats.prompt_rate * seconds
    parts[stats.process] = {
        "ts": ts, "running": stats.running, "waiting": stats.waiting, "tokens": stats.token_rate,
    }  # fmt: skip
    for process in [name for name, part in parts.items() if ts - part["ts"] > PART_INTERVALS * interval]:
        del parts[process]
    yield "generator_requests_running", sum(part["running"] for part in parts.values())
    yield "generator_requests_waiting", sum(part["waiting"] for part in parts.values())
    yield "generator_token_throughput", sum(part["tokens"] for part in parts.values())
    yield "generator_prompt_tokens_total", engine["prompt_tokens"]
    if stats.kv_cache is not None:
        yield "kv_cache_usage_ratio", stats.kv_cache
    if stats.prefix_cache is not None:
        yield "prefix_cache_hit_ratio", stats.prefix_cache


def _parse(line: str) -> _Line | None:
    match = _STATS.search(line)
    if match is None:
        return None
    process = _PROCESS.search(line, 0, match.start())
    if process is not None and _OF_VLLM.fullmatch(process[1]) is None:
        return None
    rest = line[match.end() :]
    kv_cache, prefix_cache = _KV_CACHE.search(rest), _PREFIX_CACHE.search(rest)
    return _Line(
        engine=str(int(match[1])) if match[1] is not None else "",
        process=process[2] if process is not None else "",
        prompt_rate=float(match[2]),
        token_rate=float(match[3]),
        running=int(match[4]),
        # V0 moves requests to the host's memory when the cache is full; they wait, too.
        waiting=int(match[6]) + int(match[5] or 0),
        kv_cache=float(kv_cache[1]) / 100 if kv_cache is not None else None,
        prefix_cache=float(prefix_cache[1]) / 100 if prefix_cache is not None else None,
    )


def _dated(
    found: list[tuple[str, float | None, _Line]], state: dict[str, Any], modified: float
) -> Iterator[tuple[float, _Line]]:
    """Lines with their times, ascending. Of lines without any time only the last of each engine and process counts.

    The time of a container's runtime beside a line has a zone, so it counts more than the line's own.
    """
    times = [match[0] for line, _, _ in found if not _DATE.search(line[:_DATE_WITHIN]) and (match := _time(line))]
    previous = state.get("ts")
    clock = (
        LogClock(previous)
        if previous is not None
        else LogClock(anchor_backwards(times, modified, clocks.is_other_zone), anchored=True)
    )
    untimed: dict[tuple[str, str], _Line] = {}
    for line, stamp, stats in found:
        if stamp is not None:
            clock.now = stamp
        elif (date := _DATE.search(line[:_DATE_WITHIN])) is not None:
            clock.now = _epoch(date, modified)
        elif (timed := _time(line)) is not None:
            clock.date(*map(int, timed[0].split(":")))
        else:
            untimed[stats.engine, stats.process] = stats
            continue
        state["ts"] = clock.now
        yield clock.now, stats
    for stats in untimed.values():
        yield modified, stats


def _time(line: str) -> re.Match[str] | None:
    match = _TIME.search(line, 0, _DATE_WITHIN)
    return match if match is not None and CLOCK.match(match[0]) else None


def _epoch(match: re.Match[str], modified: float) -> float:
    """Epoch seconds of a local date; without a year the last such date before the modification of the file."""
    year = int(match[1] or time.localtime(modified + 86400).tm_year)
    month, day, hour, minute, second = map(int, match.groups()[1:])
    try:
        stamp = time.mktime((year, month, day, hour, minute, second, 0, 0, -1))
        if match[1] or stamp <= modified + 86400:
            # A day of difference: the clock of another time zone.
            return stamp
        return time.mktime((year - 1, month, day, hour, minute, second, 0, 0, -1))
    except (OverflowError, ValueError):
        return modified


def _logs(path: Path, cursor: Cursor) -> list[Path]:
    """The logs with lines of engines: the file, or the files of the folder (not below it).

    Logs of the cursor were recognised before.
    """
    if path.is_file():
        return [path] if path.name in cursor or (console.is_named_as_log(path) and _has_engines(path)) else []
    names = walk(path, lambda file: any(fnmatch(file.name, pattern) for pattern in console.PATTERNS), 0)
    candidates = [file for file in names if file.suffix not in console.FOREIGN][:MAX_LOGS]
    # While a folder is read, its other logs are examined again only when their size has doubled.
    recognised = (lambda file: _cached(file, file.stat().st_size.bit_length())) if cursor else _has_engines
    return sorted(file for file in candidates if file.name in cursor or recognised(file))


@lru_cache(maxsize=1024)
def _cached(path: Path, _size: int) -> bool:
    return _has_engines(path)


def _has_engines(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(PEEK_BYTES)
        file.seek(max(len(head), path.stat().st_size - PEEK_BYTES))
        text = (head + b"\n" + file.read(PEEK_BYTES)).decode(errors="replace")
    return any(_parse(line) is not None for line in text.split("\n") if "Avg prompt throughput" in line)


def matches_path(path: Path) -> str | None:
    """The logs in which engines report."""
    try:
        logs = _logs(path, {})
    except OSError:
        return None
    return f"{', '.join(log.name for log in logs[:3])} with lines of vLLM's engines" if logs else None


COLLECTOR = Collector(
    name="vllm_log",
    actor="generator",
    reads="vLLM servers over their printed log, where the port cannot be reached",
    versions="0.6 to 0.33 by printed lines",
    tail=tail,
    matches_path=matches_path,
    report_seconds=REPORT_SECONDS,
    looks_for=(LOOKED_FOR,),
)
