"""Finds what can be watched on this machine: engines on the usual ports, run directories. For a first start.

Read-only: one GET per port, and the same detection of directories as in `rollscope watch`. Both are bounded.
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
"""Default ports of engines and routers (docs/get-started/attach.md)."""

# Ray writes the addresses of its nodes' pages to this file (`PROMETHEUS_SERVICE_DISCOVERY_FILE` of ray_constants.py).
RAY_LIST = Path("/tmp/ray/prom_metrics_service_discovery.json")
# A local page that takes longer belongs to an engine that is loading; the next scan finds it.
LIMITS = Limits(body_bytes=4 << 20, timeout_seconds=1.5)
# The source tree of Rollscope: the recorded runs in its tests/ are test data.
CHECKOUT = Path(__file__).resolve().parents[2]
# Levels of directories below the start that are scanned; a home directory may contain millions of files.
DEPTH = 3
# Most directories scanned.
FOLDERS = 200
# Longest scan of directories, s.
SECONDS = 4.0
# Subdirectories of one run, as frameworks and their loggers name them; the run is the directory around them.
INSIDE = frozenset(
    {
        "checkpoints", "ckpt", "configs", "dashboard", "events", "finetune", "logs", "orchestrator", "rollouts",
        "streams", "tb", "tensorboard", "trackio", "trainer", "wandb",
    }
)  # fmt: skip
# A scan's result is cached for this long, s.
KEPT_SECONDS = 15.0
# Most runs listed, newest first.
SHOWN = 6


@dataclass(frozen=True, slots=True)
class Candidate:
    """A source that can be watched. ``command`` watches it from the start directory."""

    source: str
    collector: str
    actor: str
    command: str


@dataclass(frozen=True, slots=True)
class ScanResult:
    """Result of a scan, best candidates first. ``more``: number left out; ``partial``: why the scan is incomplete."""

    candidates: tuple[Candidate, ...] = ()
    more: int = 0
    partial: str = ""

    @property
    def together(self) -> str:
        """One command for a run and its engines if there is exactly one run; else ""."""
        runs = [candidate for candidate in self.candidates if candidate.actor == "trainer"]
        engines = [candidate for candidate in self.candidates if candidate.actor == "generator"]
        return _command(*(candidate.source for candidate in [*engines, *runs])) if len(runs) == 1 and engines else ""


def scan(root: Path, ports: Sequence[int] = PORTS, clock: Callable[[], float] = time.monotonic) -> ScanResult:
    """Finds everything that can be watched from ``root``. Never raises, because a first start must not fail."""
    engines = asyncio.run(_engines(ports))
    lists = [_candidate(str(RAY_LIST), "file_sd", "generator")] if RAY_LIST.is_file() else []
    search = _Search(clock() + SECONDS, clock)
    runs = sorted(search.below(root), key=_age)
    candidates = [*engines, *lists, *(_candidate(_named(path, root), name, "trainer") for path, name in runs)]
    return ScanResult(tuple(candidates[: len(engines) + len(lists) + SHOWN]), max(0, len(runs) - SHOWN), search.partial)


def _candidate(source: str, collector: str, actor: str) -> Candidate:
    return Candidate(source, collector, actor, _command(source))


def _command(*sources: str) -> str:
    return f"rollscope watch {shlex.join(sources)}"


# ---- engines


async def _engines(ports: Sequence[int]) -> list[Candidate]:
    engines = await asyncio.gather(*(_engine(port) for port in ports))
    return [candidate for candidate in engines if candidate is not None]


async def _engine(port: int) -> Candidate | None:
    url = f"http://127.0.0.1:{port}"
    try:
        name = await detect_listed(url, (), LIMITS)
    except ScrapeError:
        return None  # nothing answers, or no known system
    return _candidate(url, name, collectors.load()[name].actor)


# ---- run directories


class _Search:
    """Finds directories with one run each, from the top down, bounded in time and number."""

    def __init__(self, deadline: float, clock: Callable[[], float]) -> None:
        self._deadline, self._clock, self._inspected = deadline, clock, 0
        self.partial = ""

    def below(self, root: Path) -> list[tuple[Path, str]]:
        """Returns (directory, collector) of runs at or below ``root``: the deepest that are no part of a run.

        Level by level, because the limits must not end the search in the first folder. Not every collector recognizes
        the folders above a run, so folders above the first match are searched whatever they hold.
        """
        found: dict[Path, str] = {}
        level = [(root, False)]  # with: is it below a match
        for depth in range(DEPTH + 1):
            below: list[tuple[Path, bool]] = []
            for folder, inside in level:
                if name := self._trainer(folder):
                    found[folder] = name
                if depth < DEPTH and (name or not inside):
                    below += [(child, bool(name) or inside) for child in self._children(folder)]
            level = below
        above = {parent for folder in found for parent in folder.parents}
        return [
            (folder, name) for folder, name in found.items() if folder not in above and folder.absolute() != CHECKOUT
        ]

    def _trainer(self, folder: Path) -> str:
        self._inspected += 1
        if self._inspected > FOLDERS or self._clock() > self._deadline:
            self.partial = f"the scan stopped after {FOLDERS} folders or {SECONDS:.0f} s"
            return ""
        catalogue = collectors.load()
        try:
            names = [name for name, _ in detect_path(folder) if catalogue[name].actor == "trainer"]
        except (ScrapeError, OSError):
            return ""  # a database being written, or a directory without permission
        # `rollscope watch` refuses logs of several frameworks: the folder is above runs of different frameworks.
        return names[0] if len(names) == 1 else ""

    def _children(self, folder: Path) -> Iterator[Path]:
        if self.partial:
            return
        try:
            below, _, _ = rows.entries(folder)
        except OSError:
            return
        names = (name for name in below if name not in rows.SKIPPED | INSIDE and not name.startswith("."))
        yield from (folder / name for name in names if (folder / name).absolute() != CHECKOUT / "tests")


def _age(candidate: tuple[Path, str]) -> tuple[float, str]:
    try:
        return -os.stat(candidate[0]).st_mtime, str(candidate[0])
    except OSError:
        return 0.0, str(candidate[0])


def _named(path: Path, root: Path) -> str:
    """Returns the path relative to the root; `./` ensures that it is not parsed as an option."""
    inside = path.relative_to(root)
    return "." if inside == Path() else f"./{inside}"


class CachedScan:
    """Caches the last scan for some seconds, because an empty page requests it repeatedly."""

    def __init__(self, root: Path, ports: Sequence[int] = PORTS, clock: Callable[[], float] = time.monotonic) -> None:
        self._root, self._ports, self._clock = root, ports, clock
        self._lock, self._result, self._at = threading.Lock(), ScanResult(), -math.inf

    def __call__(self) -> ScanResult:
        with self._lock:
            if self._clock() - self._at > KEPT_SECONDS:
                self._result = scan(self._root, self._ports, self._clock)
                self._at = self._clock()
            return self._result

    def pairs(self) -> list[tuple[str, str]]:
        """Returns (description, command) pairs, for a page without data."""
        result = self()
        together = [("Everything found on this machine", result.together)] if result.together else []
        return [*together, *((f"{item.collector} at {item.source}", item.command) for item in result.candidates)]


# ---- output


def lines(result: ScanResult) -> list[str]:
    """Returns lines for a terminal: each candidate with its command, or what to do if there is none."""
    if not result.candidates:
        return [NOTHING, *filter(None, [result.partial])]
    width = max(len(candidate.command) for candidate in result.candidates)
    listed = [f"  {item.command:{width}}   # {item.collector}, {item.actor}" for item in result.candidates]
    more = [f"  and {result.more} older runs"] if result.more else []
    both = ["together:", f"  {result.together}"] if result.together else []
    partial = [result.partial] if result.partial else []
    return ["found on this machine:", *listed, *more, *both, *partial]


NOTHING = (
    "found nothing to watch: no engine on the usual ports of this machine, no run directory in this folder. "
    "Name a source: rollscope watch http://HOST:8000 ./outputs/my-run (or see a simulated run: rollscope demo)"
)
