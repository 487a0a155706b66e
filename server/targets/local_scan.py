"""What of a run is already on this machine: engines on the usual ports, run directories below. For a first start.

It only looks: one GET of each port's page, and the detection that `rollscope watch` does of a folder. Both bounded.
"""

import asyncio
import math
import os
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import collectors
from collectors.detect import detect_path
from collectors.formats import rows
from collectors.model import Limits, ScrapeError
from server.targets.resolve import detect_listed

PORTS = (
    8000,  # vLLM, trtllm-serve, Dynamo; the router of prime-rl
    8001,  # the router of vLLM's production stack
    8002,  # Triton
    8081,  # Dynamo's workers
    *range(8100, 8108),  # prime-rl's engines behind its router
    9400,  # DCGM exporter
    29000,  # the page of sglang-router and vllm-router
    *range(30000, 30008),  # SGLang
)
"""Where engines listen unless they were told otherwise (their own defaults; docs/get-started/attach.md)."""

# Ray writes the addresses of its nodes' pages there (`PROMETHEUS_SERVICE_DISCOVERY_FILE` of ray_constants.py).
RAY_LIST = Path("/tmp/ray/prom_metrics_service_discovery.json")
# On this machine: a page that takes longer is of an engine that is busy loading, and is named on the next look.
LIMITS = Limits(body_bytes=4 << 20, timeout_seconds=1.5)
# A home directory may hold millions of files: what lies deeper is for its user to name.
DEPTH, FOLDERS, SECONDS = 3, 200, 4.0
# Parts of one run, in the names that frameworks and their loggers give them; a run is the folder around them.
INSIDE = frozenset(
    {
        "checkpoints", "ckpt", "configs", "dashboard", "events", "finetune", "logs", "orchestrator", "rollouts",
        "streams", "tb", "tensorboard", "trackio", "trainer", "wandb",
    }
)  # fmt: skip
KEPT_SECONDS = 15.0
# A person reads a few; the newest are the likeliest.
SHOWN = 6


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that can be watched. ``command`` does it when typed where we were started."""

    source: str
    collector: str
    actor: str
    command: str


@dataclass(frozen=True, slots=True)
class ScanResult:
    """What a look found, the likeliest first. ``more``: how many were left out; ``partial``: why it is not all."""

    candidates: tuple[Candidate, ...] = ()
    more: int = 0
    partial: str = ""

    @property
    def together(self) -> str:
        """One command for a run and its engines, where it is plain which belong together; else ""."""
        runs = [one for one in self.candidates if one.actor == "trainer"]
        engines = [one for one in self.candidates if one.actor == "generator"]
        return _command(*(one.source for one in [*engines, *runs])) if len(runs) == 1 and engines else ""


def scan(root: Path, ports: Sequence[int] = PORTS, clock: Callable[[], float] = time.monotonic) -> ScanResult:
    """Everything that can be watched from ``root``. Never raises: a first start must not fail for what lies around."""
    engines = asyncio.run(_engines(ports))
    lists = [_candidate(str(RAY_LIST), "file_sd", "generator")] if RAY_LIST.is_file() else []
    search = _Search(clock() + SECONDS, clock)
    runs = sorted(search.below(root), key=_age)
    found = [*engines, *lists, *(_candidate(_named(path, root), name, "trainer") for path, name in runs)]
    return ScanResult(tuple(found[: len(engines) + len(lists) + SHOWN]), max(0, len(runs) - SHOWN), search.partial)


def _candidate(source: str, collector: str, actor: str) -> Candidate:
    return Candidate(source, collector, actor, _command(source))


def _command(*sources: str) -> str:
    return f"rollscope watch {shlex.join(sources)}"


# ---- engines


async def _engines(ports: Sequence[int]) -> list[Candidate]:
    found = await asyncio.gather(*(_engine(port) for port in ports))
    return [one for one in found if one is not None]


async def _engine(port: int) -> Candidate | None:
    url = f"http://127.0.0.1:{port}"
    try:
        name = await detect_listed(url, (), LIMITS)
    except ScrapeError:
        return None  # nobody there, or nobody we know
    return _candidate(url, name, collectors.load()[name].actor)


# ---- run directories


class _Search:
    """Folders that hold one run each, from the top down until the time or the number is used up."""

    def __init__(self, deadline: float, clock: Callable[[], float]) -> None:
        self._deadline, self._clock, self._looked = deadline, clock, 0
        self.partial = ""

    def below(self, folder: Path, level: int = 0) -> list[tuple[Path, str]]:
        """(folder, collector) of each run at or below ``folder``: the deepest folders that are no part of a run."""
        if not (name := self._trainer(folder)):
            return []
        parts = [one for child in self._children(folder, level) for one in self.below(child, level + 1)]
        return parts or [(folder, name)]

    def _trainer(self, folder: Path) -> str:
        self._looked += 1
        if self._looked > FOLDERS or self._clock() > self._deadline:
            self.partial = f"only the first {FOLDERS} folders were looked at, for {SECONDS:.0f} s at most"
            return ""
        known = collectors.load()
        try:
            names = [name for name, _ in detect_path(folder) if known[name].actor == "trainer"]
        except (ScrapeError, OSError):
            return ""  # a database that is being written, a folder that may not be entered
        return names[0] if names else ""

    def _children(self, folder: Path, level: int) -> Iterator[Path]:
        if level >= DEPTH:
            return
        try:
            below, _, _ = rows.entries(folder)
        except OSError:
            return
        names = (name for name in below if name not in rows.SKIPPED | INSIDE and not name.startswith("."))
        yield from (folder / name for name in names)


def _age(found: tuple[Path, str]) -> tuple[float, str]:
    try:
        return -os.stat(found[0]).st_mtime, str(found[0])
    except OSError:
        return 0.0, str(found[0])


def _named(path: Path, root: Path) -> str:
    """As one would type it from there; a path that begins with `./` is never taken for an option."""
    inside = path.relative_to(root)
    return "." if inside == Path() else f"./{inside}"


class CachedScan:
    """The last look, for all who ask within a few seconds: an empty page asks again and again."""

    def __init__(self, root: Path, ports: Sequence[int] = PORTS, clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._ports, self._clock = root, ports, clock
        self._lock, self._found, self._at = threading.Lock(), ScanResult(), -math.inf

    def __call__(self) -> ScanResult:
        with self._lock:
            if self._clock() - self._at > KEPT_SECONDS:
                self._found = scan(self._root, self._ports, self._clock)
                self._at = self._clock()
            return self._found

    def pairs(self) -> list[tuple[str, str]]:
        """(what it is, the command that watches it): for a page that has nothing to show yet."""
        found = self()
        together = [("all of it together", found.together)] if found.together else []
        return [*together, *((f"{one.collector} at {one.source}", one.command) for one in found.candidates)]


# ---- words


def lines(found: ScanResult) -> list[str]:
    """For a terminal: what was found, each with its command; what to do when nothing was."""
    if not found.candidates:
        return [NOTHING]
    width = max(len(one.command) for one in found.candidates)
    told = [f"  {one.command:{width}}   # {one.collector}, {one.actor}" for one in found.candidates]
    more = [f"  and {found.more} older runs"] if found.more else []
    both = ["together:", f"  {found.together}"] if found.together else []
    partial = [found.partial] if found.partial else []
    return ["found on this machine:", *told, *more, *both, *partial]


NOTHING = (
    "nothing to watch was found here: no engine on the usual ports, no run directory below. "
    "Name one: rollscope watch http://HOST:8000 ./outputs/my-run (or try it out: rollscope demo)"
)
