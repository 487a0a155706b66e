"""From what the user named to targets: detects which collector reads a URL or a path, and names runs."""

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from collectors.detect import detect_page, detect_path

import collectors
from collectors.model import Limits, ScrapeError, Target
from collectors.readers.http import get
from server.config import ConfigError, RunSettings, TargetSettings
from server.security import refuse_target


@dataclass(frozen=True, slots=True)
class Attached:
    """A run with targets ready to read."""

    name: str
    targets: tuple[Target, ...]
    facts: Mapping[str, str | float]


def run_name(sources: Iterable[str]) -> str:
    """A name for a run nobody named: its directory's, else its first host's."""
    sources = list(sources)
    paths = [Path(source).resolve() for source in sources if "://" not in source]
    if paths:
        path = paths[0] if not paths[0].is_file() else paths[0].parent
        return _clean(path.name) or "run"
    return _clean(urlsplit(sources[0]).netloc) if sources else "run"


def _clean(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-")


def attach(settings: RunSettings, limits: Limits | None = None) -> Attached:
    """Resolve every target of a run.

    A URL that does not answer yet is kept when its collector was named or is the only one that reads URLs:
    an engine may start after us.

    Raises:
        ConfigError: every source that cannot be read by anything, each with what was tried.
    """
    problems: list[str] = []
    targets: list[Target] = []
    for number, target in enumerate(settings.targets):
        try:
            targets += _resolve(settings.name, number, target, limits or Limits())
        except ScrapeError as error:
            problems.append(f"{_shown(target)}: {error}")
    if problems:
        raise ConfigError(problems)
    return Attached(settings.name, tuple(_unique(targets)), settings.facts)


def _shown(target: TargetSettings) -> str:
    """A source as it may be printed: a URL without credentials and query."""
    if not target.is_url:
        return target.source
    parts = urlsplit(target.source)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname or ''}{port}{parts.path}"


def _resolve(run: str, number: int, target: TargetSettings, limits: Limits) -> list[Target]:
    return _resolve_url(run, number, target, limits) if target.is_url else _resolve_path(run, target)


def _resolve_path(run: str, settings: TargetSettings) -> list[Target]:
    path = Path(settings.source).expanduser()
    if settings.collector:
        names = [settings.collector]
    elif not path.exists():
        raise ScrapeError("missing", "no such file or directory")
    else:
        names = [name for name, _ in detect_path(path)]
    if not names:
        known = ", ".join(sorted(name for name, c in collectors.load().items() if c.tail))
        raise ScrapeError("not_a_run", f"nothing here that a collector knows ({known} were asked)")
    # The most specific match first; a directory is one run of one framework.
    collector = collectors.load()[names[0]]
    name = settings.name or path.resolve().name
    return [
        Target(name, run, collector.name, collector.actor, path=str(path), interval_seconds=settings.interval_seconds)
    ]


def _resolve_url(run: str, number: int, settings: TargetSettings, limits: Limits) -> list[Target]:
    refusal = refuse_target(settings.source)
    if refusal:
        raise ScrapeError("unreachable", refusal)
    headers = (("authorization", f"Bearer {settings.bearer}"),) if settings.bearer else ()
    name = settings.collector or _detect_url(settings.source, headers, limits)
    collector = collectors.load()[name]
    return [
        Target(
            settings.name or f"{collector.actor}-{number}", run, collector.name, collector.actor,
            url=settings.source, interval_seconds=settings.interval_seconds, headers=headers,
        )
    ]  # fmt: skip


def _detect_url(url: str, headers: Sequence[tuple[str, str]], limits: Limits) -> str:
    """Which collector reads this URL's page. Not answering is not an answer: vLLM is then assumed, and said so."""
    pollers = [name for name, collector in collectors.load().items() if collector.poll]
    try:
        body = asyncio.run(_fetch(url, headers, limits))
    except ScrapeError as error:
        if error.kind in ("unreachable", "timeout") and len(pollers) == 1:
            return pollers[0]
        raise
    name = detect_page(body)
    if name is None:
        raise ScrapeError("garbage", f"its /metrics page belongs to no known engine ({', '.join(pollers)} were asked)")
    return name


async def _fetch(url: str, headers: Sequence[tuple[str, str]], limits: Limits) -> bytes:
    async with httpx.AsyncClient(headers=dict(headers), follow_redirects=False, trust_env=False) as client:
        return await get(client, metrics_url(url), limits)


def metrics_url(url: str) -> str:
    """Where an engine's page is: the URL itself when it has a path, else `/metrics` below it."""
    parts = urlsplit(url)
    return url if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}/metrics"


def _unique(targets: Iterable[Target]) -> list[Target]:
    """Names must tell targets apart: they are what every label and error shows."""
    seen: dict[str, int] = {}
    found = []
    for target in targets:
        seen[target.name] = seen.get(target.name, 0) + 1
        if seen[target.name] > 1:
            target = Target(**{**_fields(target), "name": f"{target.name}-{seen[target.name]}"})  # type: ignore[arg-type]
        found.append(target)
    return found


def _fields(target: Target) -> dict[str, object]:
    return {name: getattr(target, name) for name in Target.__slots__}
