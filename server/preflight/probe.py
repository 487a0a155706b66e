"""Reads every target of the configuration once through its own collector, and compares clocks.

Only reads, and stores nothing. A target that cannot be read is a finding of that target.
"""

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from itertools import count
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

import httpx
from msgspec import structs

import collectors
from collectors.model import ErrorKind, Limits, Reading, ScrapeError, Target
from collectors.transport import http
from server.lib.clock import Clock
from server.lib.errors import ConfigError
from server.preflight.model import Inputs, PathSeen, PreflightPlan, ReadTarget
from server.scrape.target_reader import TargetReader
from server.targets.model import RunSettings, TargetSettings
from server.targets.resolve import attach

T = TypeVar("T")

# Nothing waits for the next tick here, and a listing of 10,000 sandboxes should end within one reading.
LIMITS = Limits(timeout_seconds=20.0)
# How long a listing of many pages may go on: beyond it, its account is known in part.
LISTING_SECONDS = 60.0
AT_ONCE = 16
# Chunks of a trainer's history: the record of how a run ended is at its end.
CHUNKS_MAX = 50
VERSION_LIMITS = Limits(body_bytes=64 << 10, timeout_seconds=4.0)
PATH_SECONDS = 5.0
ENTRIES_MAX = 2_000
# A trainer that wrote this lately goes on.
ALIVE_SECONDS = 600.0
OVER = ("finished", "crashed")


@dataclass(slots=True)
class Dates:
    """Bounds of a target's clock minus ours in seconds, from its ``Date`` headers; each header narrows them."""

    clock: Clock
    least: float = -float("inf")
    greatest: float = float("inf")

    async def sent(self, request: httpx.Request) -> None:
        request.extensions["rollscope.sent"] = self.clock.now()

    async def answered(self, response: httpx.Response) -> None:
        """Skips error pages, which may come from a proxy, and cached answers with an old date."""
        date = parse_date(response.headers.get("date", ""))
        if date is None or not response.is_success or response.headers.get("age", "0").strip() != "0":
            return
        # It was stamped between our sending and now, and the header cuts the second short.
        self.least = max(self.least, date - self.clock.now())
        self.greatest = min(self.greatest, date + 1.0 - request_sent(response, self.clock))

    def skew(self) -> float | None:
        """The smallest difference that explains every answer; None without one."""
        if self.least == -float("inf"):
            return None
        return self.least if self.least > 0 else min(self.greatest, 0.0)


def request_sent(response: httpx.Response, clock: Clock) -> float:
    sent: float = response.request.extensions.get("rollscope.sent", clock.now())
    return sent


def parse_date(value: str) -> float | None:
    """Epoch seconds of an HTTP date; None for anything else."""
    try:
        return parsedate_to_datetime(value[:64]).replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError, IndexError, TypeError):
        return None


@dataclass
class _Reader(TargetReader):
    """A target's reader that also looks at the dates of the answers."""

    dates: Dates | None = field(default=None, kw_only=True)

    def _http(self) -> httpx.AsyncClient:
        client = super()._http()
        if self.dates is not None and not client.event_hooks["response"]:
            client.event_hooks = {"request": [self.dates.sent], "response": [self.dates.answered]}
        return client

    async def version(self, path: str) -> str:
        """Returns the version that the engine's server reports; "" if it reports none."""
        parts = urlsplit(self.target.url)
        try:
            body = await http.get(self._http(), f"{parts.scheme}://{parts.netloc}{path}", VERSION_LIMITS)
            answer = json.loads(body)
        except (ScrapeError, ValueError, RecursionError):
            return ""
        version = answer.get("version") if isinstance(answer, dict) else None
        return version.strip()[:80] if isinstance(version, str) and version.isprintable() else ""


def probe(runs: Sequence[tuple[RunSettings, PreflightPlan]], clock: Clock) -> list[Inputs]:
    """Everything the checks need, per run and in order. Must not be called from a running event loop.

    Args:
        runs: what is configured, each with its plan.
    """
    resolved = [(run, plan, _resolve(run)) for run, plan in runs]
    targets = [target for _, _, seen in resolved for target in seen]
    answers = iter(asyncio.run(_read_all(targets, clock)))
    inputs = [_inputs(run, plan, [next(answers) for _ in seen], clock.now()) for run, plan, seen in resolved]
    return [replace(inputs_of_run, alive=_alive(inputs_of_run, inputs)) for inputs_of_run in inputs]


def _alive(inputs_of_run: Inputs, inputs: Iterable[Inputs]) -> frozenset[str]:
    """Returns the names of the other configured runs that have not reported their end."""
    others = [other for other in inputs if other is not inputs_of_run and other.facts.get("lifecycle") not in OVER]
    return frozenset(key for other in others for key in other.keys) - inputs_of_run.keys


# ---- targets


def _resolve(run: RunSettings) -> list[ReadTarget]:
    """Attaches every target separately, so that one failure does not hide the others."""
    targets: list[ReadTarget] = []
    for target in run.targets:
        try:
            attached = attach(replace(run, targets=(target,))).targets
            targets += [ReadTarget(one) for one in attached]
        except ConfigError as error:
            targets.append(_unattached(run, target, error))
    return list(_named(targets))


def _unattached(run: RunSettings, settings: TargetSettings, problem: ConfigError) -> ReadTarget:
    """A target nothing could read: an engine by its URL, a trainer by its path, unless its collector is named."""
    collector = collectors.load().get(settings.collector)
    actor = collector.actor if collector else ("generator" if settings.is_url else "trainer")
    path = "" if settings.is_url else settings.source
    kind: ErrorKind = "unreachable" if settings.is_url else "not_a_run" if os.path.exists(path) else "missing"
    text = problem.problems[0].removesuffix(" (--wait waits for it)")
    location = text.partition(": ")[0] if settings.is_url else Path(path).name
    target = Target(settings.name or location, run.name, settings.collector or "unknown", actor, path=path)
    return ReadTarget(target, error=ScrapeError(kind, text.partition(": ")[2] or text))


def _named(targets: Iterable[ReadTarget]) -> Iterator[ReadTarget]:
    """Makes names unique, because only names are shown."""
    used_names: set[str] = set()
    for target in targets:
        numbered = (f"{target.name}-{number}" for number in count(2))
        name = (
            target.name if target.name not in used_names else next(name for name in numbered if name not in used_names)
        )
        used_names.add(name)
        yield replace(target, target=structs.replace(target.target, name=name))


# ---- reading


async def _read_all(targets: Sequence[ReadTarget], clock: Clock) -> list[ReadTarget]:
    slots = asyncio.Semaphore(AT_ONCE)

    async def read(seen: ReadTarget) -> ReadTarget:
        async with slots:
            return await _read(seen, clock)

    return list(await asyncio.gather(*(read(seen) for seen in targets)))


async def _read(seen: ReadTarget, clock: Clock) -> ReadTarget:
    if seen.target.path:
        path = await asyncio.to_thread(inspect_path, Path(seen.target.path).expanduser())
        seen = replace(seen, path=path)
    if seen.error is not None or (seen.path is not None and seen.path.why):
        return seen
    dates = Dates(clock)
    reader = _Reader(seen.target, collectors.load()[seen.target.collector], limits=LIMITS, dates=dates)
    try:
        outcome = await reader.read(clock.now())
        reading = outcome.reading and await _to_the_end(reader, outcome.reading, clock)
        version = ""
        version_path = collectors.load()[seen.target.collector].version_path
        if reading is not None and version_path and not seen.target.path:
            version = await reader.version(version_path)
    finally:
        await reader.close()
    return replace(
        seen, reading=reading, error=outcome.error, seconds=outcome.seconds, skew=dates.skew(), version=version,
        newest=_newest(reading) if reading is not None and seen.path is not None else None,
    )  # fmt: skip


async def _to_the_end(reader: TargetReader, reading: Reading, clock: Clock) -> Reading:
    """A file is read in chunks: facts of all of them, the rest of the last. A listing: everything of every poll."""
    if not reader.target.path:
        return await _listing(reader, reading, clock)
    facts, cursor = dict(reading.facts), reading.cursor
    for _ in range(CHUNKS_MAX):
        if not reading.more or cursor is None:
            break
        reader.cursor = cursor
        outcome = await reader.read(clock.now())
        if outcome.reading is None:
            break
        reading, cursor = outcome.reading, outcome.reading.cursor
        facts.update(reading.facts)
    return structs.replace(reading, facts=facts)


async def _listing(reader: TargetReader, reading: Reading, clock: Clock) -> Reading:
    """Polls until the listing is complete, a poll fails or the time is over; keeps the readings so far."""
    until = time.monotonic() + LISTING_SECONDS
    while reading.more and time.monotonic() < until:
        outcome = await reader.read(clock.now())
        if outcome.reading is None:
            return structs.replace(reading, partial=f"listing incomplete: {outcome.error}")
        reading = _joined(reading, outcome.reading)
    if reading.more:
        return structs.replace(reading, partial=f"listing incomplete: {len(reading.sandboxes)} so far")
    return reading


def _joined(first: Reading, then: Reading) -> Reading:
    """Two polls of one listing: the newest word on each sandbox and number. Limits and money come with some only."""
    sandboxes = {(sandbox.provider, sandbox.id): sandbox for sandbox in (*first.sandboxes, *then.sandboxes)}
    samples = {(sandbox.metric, sandbox.labels): sandbox for sandbox in (*first.samples, *then.samples)}
    return structs.replace(
        then, samples=tuple(samples.values()), sandboxes=tuple(sandboxes.values()),
        facts={**first.facts, **then.facts}, dropped=first.dropped + then.dropped,
        why_dropped=first.why_dropped or then.why_dropped, gaps=tuple(dict.fromkeys((*first.gaps, *then.gaps))),
    )  # fmt: skip


def _newest(reading: Reading) -> float | None:
    if reading.facts.get("times_estimated"):
        return None
    times = [*(item.ts for item in reading.samples), *(item.ts for item in reading.events)]
    return max((at for at in times if at is not None), default=None)


def _inputs(run: RunSettings, plan: PreflightPlan, seen: Sequence[ReadTarget], now: float) -> Inputs:
    facts: dict[str, str | float] = {}
    for target in seen:
        facts.update(target.reading.facts if target.reading else {})
    facts.update(run.facts)
    named = [target.target.option("run_key") for target in seen]
    keys = frozenset(name for name in (run.name, str(facts.get("run_name", "")), *named) if name)
    return Inputs(run.name, plan, tuple(seen), facts, now, keys, running=_goes_on(facts, seen, now))


def _goes_on(facts: Mapping[str, str | float], seen: Iterable[ReadTarget], now: float) -> bool:
    """Returns whether the run is already active: by its own report, else by recent writes of its trainer."""
    if facts.get("lifecycle"):
        return facts["lifecycle"] not in OVER
    written = [target.path.newest for target in seen if target.path is not None and target.path.newest is not None]
    return any(now - at < ALIVE_SECONDS for at in written)


# ---- paths


def inspect_path(path: Path) -> PathSeen:
    """Checks that a path exists and is readable, and when it was last written. Gives up if the file system hangs."""
    return _within(PATH_SECONDS, lambda: _inspect(path)) or PathSeen(True, False, why="the file system does not answer")


def _inspect(path: Path) -> PathSeen:
    try:
        entries = [path, *_below(path)]
        exists = path.exists()
    except PermissionError:
        return PathSeen(True, False)
    except OSError as error:
        return PathSeen(True, False, why=error.strerror or type(error).__name__)
    if not exists:
        return PathSeen(False, False)
    mode = os.R_OK | os.X_OK if path.is_dir() else os.R_OK
    return PathSeen(True, os.access(path, mode), max(filter(None, map(_written, entries)), default=None))


def _below(path: Path) -> Iterator[Path]:
    """Yields the first few thousand files and folders of two levels, enough to detect recent writes."""
    left = ENTRIES_MAX
    folders = [path] if path.is_dir() else []
    for level in range(2):
        inner: list[Path] = []
        for folder in folders:
            for entry in _entries(folder, strict=level == 0):
                if left == 0:
                    return
                left -= 1
                yield entry
                inner += [entry] if entry.is_dir() and not entry.is_symlink() else []
        folders = inner


def _entries(folder: Path, *, strict: bool) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        if strict:
            raise
        return []


def _written(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _within(seconds: float, call: Callable[[], T]) -> T | None:
    """Returns the result of `call`, or None if it takes longer; its thread is then abandoned."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(call())
        except Exception as error:  # noqa: BLE001  the caller handles every exception, not this thread
            done.set_exception(error)

    threading.Thread(target=run, name="preflight path", daemon=True).start()
    try:
        return done.result(seconds)
    except FutureTimeout:
        return None
