"""Builds list readers from settings, and settings from a source of the command line."""

import asyncio
import os
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from collectors.model import Limits
from server.targets.discovery.file_sd import FileSd
from server.targets.discovery.file_sd import parse as parse_list
from server.targets.discovery.http_polling import LIMITS, HttpList
from server.targets.discovery.http_sd import HttpSd
from server.targets.discovery.model import (
    BYTES,
    KINDS,
    REFRESH_SECONDS,
    DiscoverSettings,
    DiscoveryError,
    Provider,
    TargetSettings,
)
from server.targets.discovery.parsing import from_json, from_yaml
from server.targets.discovery.prime_rl import PrimeRl
from server.targets.discovery.prometheus_yml import PrometheusYml
from server.targets.discovery.prometheus_yml import parse as parse_prometheus
from server.targets.discovery.router_workers import RouterWorkers

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
    """Makes list names unique: a second ``router`` becomes ``router-2``."""
    sources: list[DiscoverSettings] = []
    for source in settings:
        used_names = {other.name for other in sources}
        name = next(n for n in (source.name, *(f"{source.name}-{i}" for i in range(2, 1000))) if n not in used_names)
        sources.append(replace(source, name=name))
    return tuple(sources)
