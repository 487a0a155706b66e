"""Reads the targets of a `prometheus.yml`.

Reads `scrape_configs[*].{job_name,metrics_path,scheme,static_configs,file_sd_configs}`, which verl 0.9.1
(`workers/rollout/utils.py`, at every start of a rollout server) and Ray write. Relabelling and other kinds of discovery
are not supported; a job with them is read without them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from server.targets.discovery.file_sd import FileSd
from server.targets.discovery.files import WatchedFile
from server.targets.discovery.model import Base, DiscoveryError, Found, Listing, Parsed, groups
from server.targets.discovery.parsing import from_yaml

# Most jobs of a file.
JOBS = 1_000
Key = tuple[Base, tuple[str, ...]]


@dataclass(slots=True)
class ScrapeJobs:
    """Content of one file: its static targets, and its files of targets with the defaults of their job."""

    static: Parsed = field(default_factory=Parsed)
    files: list[Key] = field(default_factory=list)


def parse(data: bytes, path: Path) -> ScrapeJobs:
    """Parses the jobs of a file. Relative paths in it are relative to it.

    Raises:
        DiscoveryError: invalid, with the position.
    """
    document = from_yaml(data)
    jobs = document.get("scrape_configs") if isinstance(document, dict) else None
    if not isinstance(jobs, list):
        # No Prometheus runs without jobs; a file that ends before them is incomplete.
        raise DiscoveryError("has no scrape_configs")
    if len(jobs) > JOBS:
        raise DiscoveryError(f"more than {JOBS} scrape_configs")
    plan = ScrapeJobs()
    for number, job in enumerate(jobs):
        _job(job, f"scrape_configs[{number}]", path.parent, plan)
    return plan


def _job(job: Any, where: str, folder: Path, plan: ScrapeJobs) -> None:
    if not isinstance(job, dict):
        raise DiscoveryError(f"{where} must be a table")
    base = Base(
        _text(job, "job_name", "", where),
        _text(job, "scheme", "http", where),
        _text(job, "metrics_path", "/metrics", where),
    )
    if base.scheme not in ("http", "https"):
        raise DiscoveryError(f"{where}.scheme must be http or https")
    groups(job.get("static_configs") or [], plan.static, base, f"{where}.static_configs")
    listed = job.get("file_sd_configs") or []
    if not isinstance(listed, list):
        raise DiscoveryError(f"{where}.file_sd_configs must be a list")
    for number, entry in enumerate(listed):
        files = entry.get("files") if isinstance(entry, dict) else None
        if not isinstance(files, list) or not all(isinstance(name, str) for name in files):
            raise DiscoveryError(f"{where}.file_sd_configs[{number}].files must be a list of paths")
        plan.files.append((base, tuple(str(folder / name) for name in files)))


def _text(job: Mapping[Any, Any], key: str, default: str, where: str) -> str:
    value = job.get(key, default)
    if not isinstance(value, str):
        raise DiscoveryError(f"{where}.{key} must be a string")
    return value


@dataclass(slots=True)
class PrometheusYml:
    """Targets of a `prometheus.yml`, and of the files that its jobs name."""

    path: str
    _file: WatchedFile[ScrapeJobs] = field(init=False)
    _nested: dict[Key, FileSd] = field(default_factory=dict)
    _last: tuple[Found, ...] = ()

    def __post_init__(self) -> None:
        self._file = WatchedFile([self.path], parse)

    async def targets(self, now: float) -> Listing:
        """See `Provider`."""
        try:
            await self._file.look(now)
        except DiscoveryError as error:
            return Listing(self._last, error=str(error))
        state = self._file.files[self.path]
        plan = state.value if state.value is not None else ScrapeJobs()
        self._nested = {key: self._nested.get(key) or FileSd(key[1], key[0]) for key in plan.files}
        pages, errors = list(plan.static.found), [state.error]
        left_out = [f"{self.path}: {problem}" for problem in plan.static.problems]
        for problem in self._nested.values():
            listing = await problem.targets(now)
            pages += listing.found
            errors.append(listing.error)
            left_out.append(listing.left_out)
        before, self._last = self._last, tuple(dict.fromkeys(pages))
        texts = ("; ".join(filter(None, parts)) for parts in (errors, left_out))
        return Listing(self._last, self._last != before, *texts)
