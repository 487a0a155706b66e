"""Builds list readers from settings, and settings from a source of the command line."""

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx

from collectors.model import Labels, Limits
from server.targets.model import (
    BYTES,
    KINDS,
    REFRESH_SECONDS,
    Base,
    DiscoverSettings,
    DiscoveryError,
    Found,
    Listing,
    Parsed,
    Provider,
    TargetSettings,
    groups,
    servers,
)
from server.targets.naming import free_name
from server.targets.polling import LIMITS, HttpList, WatchedFile, document, from_json, from_yaml

# ---- file sd
# Prometheus' `file_sd`: target lists in JSON or YAML files, such as Ray's `prom_metrics_service_discovery.json`.


def parse(data: bytes, path: Path, base: Base | None = None) -> Parsed:
    """Parses one file; its extension determines the format, as in Prometheus.

    Raises:
        DiscoveryError: not a target list.
    """
    if path.suffix not in (".json", ".yml", ".yaml"):
        raise DiscoveryError("must end in .json, .yml or .yaml")
    return groups(from_json(data) if path.suffix == ".json" else from_yaml(data), Parsed(), base)


@dataclass(slots=True)
class FileSd:
    """Targets from files that may appear and disappear. ``patterns``: paths; the last part may contain ``*``."""

    patterns: Sequence[str]
    base: Base = field(default_factory=Base)
    _files: WatchedFile[Parsed] = field(init=False)
    _last: tuple[Found, ...] = ()

    def __post_init__(self) -> None:
        self._files = WatchedFile(self.patterns, lambda data, path: parse(data, path, self.base))

    async def targets(self, now: float) -> Listing:
        """See `Provider`."""
        try:
            await self._files.look(now)
        except DiscoveryError as error:
            return Listing(self._last, error=str(error))
        return self.listed()

    def listed(self) -> Listing:
        """Returns the content of the files at the last read."""
        pages, left_out = list[Found](), list[str]()
        for name, state in self._files.files.items():
            if state.value is not None:
                pages += state.value.found
                left_out += [f"{name}: {problem}" for problem in state.value.problems]
        listed = tuple(dict.fromkeys(pages))
        before, self._last = self._last, listed
        return Listing(listed, listed != before, self._files.error(), "; ".join(left_out))


# ---- http sd
# Prometheus' `http_sd`: the list format of `file_sd`, by GET (prometheus.io/docs/prometheus/latest/http_sd).


@dataclass(slots=True)
class HttpSd(HttpList):
    """A list at a URL: HTTP 200, `application/json`, `[]` if there is no target."""

    base: Base = field(default_factory=Base)

    def name(self) -> str:
        """Name of the list in errors."""
        return "http_sd"

    async def ask(self, client: httpx.AsyncClient) -> Parsed:
        """Requests the list; raises `DiscoveryError`."""
        headers = {
            **self.headers,
            "accept": "application/json",
            "x-prometheus-refresh-interval-seconds": f"{self.interval_seconds:g}",
        }
        answer = await document(client, self.url, headers, self.limits)
        if answer is None:
            raise DiscoveryError("HTTP 404 or 405")
        return groups(answer, Parsed(), self.base)


# ---- prometheus yml
# Reads the targets of a `prometheus.yml`.

# Most jobs of a file.
JOBS = 1_000
Key = tuple[Base, tuple[str, ...]]


@dataclass(slots=True)
class ScrapeJobs:
    """Content of one file: its static targets, and its files of targets with the defaults of their job."""

    static: Parsed = field(default_factory=Parsed)
    files: list[Key] = field(default_factory=list)


def parse_prometheus(data: bytes, path: Path) -> ScrapeJobs:
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
        self._file = WatchedFile([self.path], parse_prometheus)

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


# ---- router workers
# Engines behind a router: sglang-router and its forks (`GET /workers`, 0.3; `GET /list_workers`, 0.1), slime's router.

# /get_loads has more information but requires admin rights.
PATHS = ("/workers", "/list_workers")


@dataclass(slots=True)
class RouterWorkers(HttpList):
    """``url``: the router's own URL."""

    interval_seconds: float = 15.0

    def name(self) -> str:
        """Name of the list in errors."""
        return "the router's workers"

    async def ask(self, client: httpx.AsyncClient) -> Parsed:
        """Requests the current engines; raises `DiscoveryError`."""
        for path in PATHS:
            headers = {**self.headers, "accept": "application/json"}
            found = await document(client, self.url.rstrip("/") + path, headers, self.limits)
            if found is not None:
                return parse_workers(found)
        raise DiscoveryError(f"the router has neither {' nor '.join(PATHS)}")


def parse_workers(answer: Any) -> Parsed:
    """Parses either answer: `{"workers": [{"url", ...}]}` or `{"urls": [...]}`.

    Raises:
        DiscoveryError: neither.
    """
    parsed = Parsed()
    rows = answer.get("workers", answer.get("urls")) if isinstance(answer, dict) else None
    if not isinstance(rows, list):
        raise DiscoveryError("the answer holds neither workers nor urls")
    return servers(_urls(rows, parsed), parsed)


def _urls(rows: list[Any], parsed: Parsed) -> Iterator[tuple[str, Any, Labels]]:
    for number, row in enumerate(rows):
        url = row.get("url") if isinstance(row, dict) else row
        kind = row.get("worker_type") if isinstance(row, dict) else None
        if isinstance(url, str) and url.startswith("grpc://"):
            parsed.leave_out(f"workers[{number}] has only gRPC, so it has no metrics page")
            continue
        # Only prefill and decode engines get a label; "regular" ones need none.
        labelled = isinstance(kind, str) and kind in ("prefill", "decode")
        yield f"workers[{number}].url", url, (("worker_type", str(kind)),) if labelled else ()


# ---- prime rl
# Engines of a prime-rl run, from its resolved configurations (559b4477: `configs/rl.json`, `orchestrator.json`).

FILES = ("configs/rl.json", "configs/orchestrator.json")
# Newest first: in rl.json the orchestrator's section is below its name, in its own file it is at the top.
_CLIENTS = ("orchestrator.model.client", "model.client", "orchestrator.client", "client")


def parse_prime_rl(data: bytes, _: Path) -> Parsed:
    """Parses one configuration; without the list it has no engines.

    Raises:
        DiscoveryError: not a configuration.
    """
    document = from_json(data)
    if not isinstance(document, dict):
        raise DiscoveryError("must be an object")
    parsed = Parsed()
    return servers(_urls_of_config(document), parsed)


def _urls_of_config(document: Mapping[str, Any]) -> Iterator[tuple[str, Any, Labels]]:
    for path in _CLIENTS:
        listed = _dig(document, f"{path}.admin_base_url")
        if isinstance(listed, str):
            listed = [listed]
        if listed is not None:
            if not isinstance(listed, list):
                raise DiscoveryError(f"{path}.admin_base_url must be a list of URLs")
            yield from ((f"{path}.admin_base_url[{number}]", url, ()) for number, url in enumerate(listed))
            return


def _dig(document: Any, path: str) -> Any:
    for part in path.split("."):
        document = document.get(part) if isinstance(document, dict) else None
    return document


@dataclass(slots=True)
class PrimeRl:
    """Engines of the run in a directory. ``run_dir``: prime-rl's output directory."""

    run_dir: str
    _files: WatchedFile[Parsed] = field(init=False)
    _last: tuple[Found, ...] = ()

    def __post_init__(self) -> None:
        self._files = WatchedFile([str(Path(self.run_dir) / name) for name in FILES], parse_prime_rl)

    async def targets(self, now: float) -> Listing:
        """See `Provider`. One of the two files is sufficient; the first that lists engines counts."""
        try:
            await self._files.look(now)
        except DiscoveryError as error:
            return Listing(self._last, error=str(error))
        states = list(self._files.files.values())
        values = [state.value for state in states if state.value is not None]
        pages = next((tuple(value.found) for value in values if value.found), ())
        before, self._last = self._last, pages
        left_out = [problem for value in values for problem in value.problems]
        return Listing(pages, pages != before, self._errors(values, left_out), "; ".join(left_out))

    def _errors(self, values: list[Parsed], left_out: list[str]) -> str:
        """Returns errors in one line. If one of the two files never existed, that is no error."""
        states = self._files.files.values()
        errors = [
            state.error
            for state in states
            if state.error and (state.value or state.missing_since is None or not values)
        ]
        if not errors and not left_out and not self._last:
            errors.append(f"{self.run_dir}: no admin_base_url in its configs: give the engines' URLs")
        return "; ".join(errors)


# "router+http://host:30000": a server with its own metrics page that is queried for its engines.
_PREFIXES = {f"{kind}+": kind for kind in ("router", "http_sd")}


def provider(settings: DiscoverSettings, limits: Limits | None = None) -> Provider:
    """Returns a reader for a list."""
    first = settings.sources[0]
    if settings.kind in ("http_sd", "router"):
        kind: type[HttpList] = HttpSd if settings.kind == "http_sd" else RouterWorkers
        reader = kind(first, settings.refresh_seconds, limits or LIMITS)
        reader.headers = {"authorization": f"Bearer {settings.list_bearer}"} if settings.list_bearer else {}
        return reader
    paths = [str(Path(source).expanduser()) for source in settings.sources]
    if settings.kind == "file_sd":
        return FileSd(paths)
    return PrometheusYml(paths[0]) if settings.kind == "prometheus_yml" else PrimeRl(paths[0])


async def close(reader: Provider) -> None:
    """Closes the reader's connections, if it has any."""
    if isinstance(reader, HttpList):
        await reader.close()


def listed(target: TargetSettings) -> DiscoverSettings | None:
    """Returns the list that a source of the command line is; None: it is a target."""
    for prefix, kind in _PREFIXES.items():
        if target.source.startswith(prefix):
            return _settings(target, kind, target.source.removeprefix(prefix))
    if target.collector in KINDS:
        return _settings(target, target.collector, target.source)
    kind = "" if target.is_url or target.collector else _kind_of(Path(target.source).expanduser())
    return _settings(target, kind, target.source) if kind else None


def routed(target: TargetSettings) -> DiscoverSettings | None:
    """Returns the router that answers at a URL without a metrics page; None: no router."""
    settings = _settings(target, "router", target.source)
    return settings if not asyncio.run(_error(settings)) else None


async def _error(settings: DiscoverSettings) -> str:
    reader = provider(settings)
    try:
        return (await reader.targets(0.0)).error
    finally:
        await close(reader)


def _settings(target: TargetSettings, kind: str, source: str) -> DiscoverSettings:
    return DiscoverSettings(
        kind, (source,), target.name or kind, interval_seconds=target.interval_seconds,
        refresh_seconds=REFRESH_SECONDS[kind], bearer=target.bearer, list_bearer=target.bearer,
    )  # fmt: skip


def _kind_of(path: Path) -> str:
    """Returns the kind of a list file, by its content, because trainers' logs also end in .json."""
    if path.suffix not in (".json", ".yml", ".yaml") or not os.path.isfile(path):
        return ""
    try:
        with path.open("rb") as file:
            data = file.read(BYTES)
        if path.suffix != ".json" and _reads(parse_prometheus, data, path):
            return "prometheus_yml"
        return "file_sd" if _reads(parse_list, data, path) else ""
    except OSError:
        return ""


def broken(path: Path) -> str:
    """Returns why a file named JSON or YAML is invalid, or ""; a log with one JSON object per line is valid."""
    if path.suffix not in (".json", ".yml", ".yaml") or not os.path.isfile(path):
        return ""
    try:
        with path.open("rb") as file:
            data = file.read(BYTES)
        first, _, more = data.partition(b"\n")
        if path.suffix == ".json" and more and _reads(lambda line, _: from_json(line), first, path):
            return ""
        from_json(data) if path.suffix == ".json" else from_yaml(data)
    except DiscoveryError as error:
        return str(error)
    except OSError:
        return ""  # its reader reports the error
    return ""


def _reads(parse: Callable[[bytes, Path], object], data: bytes, path: Path) -> bool:
    try:
        parse(data, path)
    except DiscoveryError:
        return False
    return True


def renamed(settings: Iterable[DiscoverSettings]) -> tuple[DiscoverSettings, ...]:
    """Makes list names unique."""
    sources: list[DiscoverSettings] = []
    for source in settings:
        sources.append(replace(source, name=free_name(source.name, {other.name for other in sources})))
    return tuple(sources)


parse_list = parse
