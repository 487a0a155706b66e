"""From what the user named to targets: detects which collector reads a URL or a path, and names runs."""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import httpx

import collectors
from collectors.detect import detect_page, detect_path
from collectors.model import Collector, Limits, ScrapeError, Target
from collectors.readers.http import get
from server.config import HeartbeatSettings, RunSettings, TargetSettings
from server.problems import ConfigError
from server.security import refuse_target

# Folders that every project has: two runs in them must not become one.
COMMON_NAMES = frozenset({"output", "outputs", "run", "runs", "results", "checkpoints", "trainer", "logs", "trackio"})


class Ambiguous(ConfigError):
    """A source of which only its user can say how it is to be read; waiting does not help."""

    def __init__(self, *problems: str) -> None:
        super().__init__(list(problems))


@dataclass(frozen=True, slots=True)
class Attached:
    """A run with targets ready to read."""

    name: str
    targets: tuple[Target, ...]
    facts: Mapping[str, str | float]
    named: bool = True
    heartbeats: tuple[HeartbeatSettings, ...] = ()


def source_of(text: str) -> TargetSettings:
    """A source of the command line: a path, a URL, or either behind ``COLLECTOR=`` where nothing is to be guessed."""
    name, equals, source = text.partition("=")
    # Folders named lr=1e-6 are common; one named like a collector and a setting is taken for the folder it is.
    if equals and source and name in collectors.load() and not Path(text).exists():
        return TargetSettings(source, collector=name)
    return TargetSettings(text)


def run_name(sources: Iterable[str]) -> str:
    """A name for a run nobody named: its directory's, else its first host's."""
    sources = list(sources)
    paths = [Path(source).resolve() for source in sources if "://" not in source]
    if paths:
        path = paths[0] if not paths[0].is_file() else paths[0].parent
        named = path.name if path.name not in COMMON_NAMES else f"{path.parent.name}-{path.name}"
        return _clean(named) or "run"
    return (_clean(_place(sources[0])) if sources else "") or "run"


def _place(url: str) -> str:
    """Host and port of a URL: never its credentials."""
    try:
        parts = urlsplit(url)
        return f"{parts.hostname or ''}-{parts.port}" if parts.port else parts.hostname or ""
    except ValueError:
        return ""


def check_name(name: str) -> None:
    """Refuse a run name that no URL, label or screen could carry.

    Raises:
        ConfigError: with the rule.
    """
    if not name.isprintable() or not 0 < len(name) <= 200 or "/" in name or name in (".", ".."):
        raise ConfigError([f"run name {ascii(name)[:80]}: 1 to 200 printable characters without /"])


def _clean(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-")


def attach(settings: RunSettings, limits: Limits | None = None) -> Attached:
    """Resolve every target of a run.

    A URL that does not answer yet is kept when its collector was named or is the only one that reads URLs:
    an engine may start after us.

    Raises:
        ConfigError: every source that cannot be read by anything, each with what was tried.
    """
    check_name(settings.name)
    problems: list[str] = []
    unclear: list[str] = []
    targets: list[Target] = []
    for target in settings.targets:
        try:
            targets += _resolve(settings.name, target, limits or Limits())
        except ScrapeError as error:
            problems.append(f"{_shown(target)}: {error} (--wait waits for it)")
        except Ambiguous as error:
            unclear += error.problems
    if unclear:
        raise Ambiguous(*unclear, *problems)
    if problems:
        raise ConfigError(problems)
    return Attached(settings.name, tuple(_unique(targets)), settings.facts, heartbeats=settings.heartbeats)


def _shown(target: TargetSettings) -> str:
    """A source as it may be printed: a URL without credentials and query."""
    if not target.is_url:
        return target.source
    return f"{target.source.partition('://')[0]}://{_place(target.source).replace('-', ':')}"


def _resolve(run: str, target: TargetSettings, limits: Limits) -> list[Target]:
    return _resolve_url(run, target, limits) if target.is_url else _resolve_path(run, target)


def _resolve_path(run: str, settings: TargetSettings) -> list[Target]:
    path, known = Path(settings.source).expanduser(), collectors.load()
    if settings.collector:
        if known[settings.collector].tail is None:
            raise Ambiguous(f"{settings.source}: collector {settings.collector} reads a URL, not a path")
        found = [(settings.collector, "named")]
    elif not path.exists():
        raise ScrapeError("missing", "no such file or directory")
    else:
        found = detect_path(path)
    if not found:
        asked = ", ".join(sorted(name for name, c in known.items() if c.tail))
        raise ScrapeError("not_a_run", f"nothing here that a collector knows ({asked} were asked)")
    _one_framework(settings.source, [one for one in found if known[one[0]].actor == "trainer"])
    # Trainer first: the target named like the run is its.
    ordered = sorted((known[name] for name, _ in found), key=lambda collector: collector.actor != "trainer")
    base = settings.name or path.resolve().name
    return [
        Target(
            base if collector is ordered[0] else f"{base}-{collector.name}", run, collector.name, collector.actor,
            path=str(path), interval_seconds=settings.interval_seconds, options=settings.options,
        )
        for collector in ordered
    ]  # fmt: skip


def _one_framework(source: str, trainers: Sequence[tuple[str, str]]) -> None:
    """A directory is one run of one framework (and whatever else writes there): two that know it are not chosen from.

    Raises:
        Ambiguous: with the candidates and how to name one.
    """
    if len(trainers) > 1:
        candidates = ", ".join(f"{name} ({reason})" for name, reason in trainers)
        raise Ambiguous(
            f"{source}: more than one framework's: {candidates}; name one: {trainers[0][0]}={source}, "
            f'or collector = "{trainers[0][0]}" in the configuration'
        )


def _resolve_url(run: str, settings: TargetSettings, limits: Limits) -> list[Target]:
    refusal = refuse_target(settings.source)
    if refusal:
        raise ScrapeError("unreachable", refusal)
    bearer = (("authorization", f"Bearer {settings.bearer}"),) if settings.bearer else ()
    name = settings.collector or _detect_url(settings.source, bearer, limits)
    collector = collectors.load()[name]
    if collector.poll is None:
        raise Ambiguous(f"{_shown(settings)}: collector {name} reads a run directory or a log, not a URL")
    headers = (*bearer, *_key_header(collector, settings))
    named = settings.name or f"{collector.name}-{_clean(_place(settings.source))}"
    return [
        Target(
            named, run, collector.name, collector.actor,
            url=settings.source, interval_seconds=settings.interval_seconds, headers=headers, options=settings.options,
        )
    ]  # fmt: skip


def _key_header(collector: Collector, settings: TargetSettings) -> tuple[tuple[str, str], ...]:
    if not settings.key:
        return ()
    prefix = "Bearer " if collector.key_header == "authorization" else ""
    return ((collector.key_header, f"{prefix}{settings.key}"),)


def _detect_url(url: str, headers: Sequence[tuple[str, str]], limits: Limits) -> str:
    """Which collector reads this URL's page. Not answering is not an answer: vLLM is then assumed, and said so."""
    # Providers are named, never guessed: asking a stranger with somebody's key would give the key away.
    pollers = [name for name, collector in collectors.load().items() if collector.poll and collector.matches_page]
    try:
        body = asyncio.run(_fetch(url, headers, limits))
    except ScrapeError as error:
        if error.kind == "status" and (server := asyncio.run(_server(url, limits))) is not None:
            return server
        # A proxy answers 502 or 503 while the model loads.
        if error.kind in ("unreachable", "timeout", "status") and len(pollers) == 1:
            return pollers[0]
        raise
    name = detect_page(body)
    if name is None:
        raise ScrapeError("garbage", f"its /metrics page belongs to no known engine ({', '.join(pollers)} were asked)")
    return name


async def _fetch(url: str, headers: Sequence[tuple[str, str]], limits: Limits) -> bytes:
    async with httpx.AsyncClient(headers=dict(headers), follow_redirects=False, trust_env=False) as client:
        return await get(client, metrics_url(url), limits)


async def _server(url: str, limits: Limits) -> str | None:
    """The collector that knows the server itself, which has no page of metrics. Asked without anybody's key."""
    async with httpx.AsyncClient(base_url=url, follow_redirects=False, trust_env=False) as client:
        for name, collector in collectors.load().items():
            if collector.matches_server is not None and await collector.matches_server(client, limits):
                return name
    return None


def metrics_url(url: str) -> str:
    """Where an engine's page is: the URL itself when it has a path, else `/metrics` below it."""
    parts = urlsplit(url)
    return url if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/metrics"


def _unique(targets: Iterable[Target]) -> list[Target]:
    """Names must tell targets apart: they are what every label and error shows."""
    found: list[Target] = []
    taken: set[str] = set()
    for target in targets:
        numbered = (f"{target.name}-{number}" for number in count(2))
        name = target.name if target.name not in taken else next(name for name in numbered if name not in taken)
        taken.add(name)
        found.append(replace(target, name=name))
    return found
