"""From what the user named to targets: detects which collector reads a URL or a path, and names runs."""

import asyncio
import difflib
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from urllib.parse import urlsplit

import httpx

import collectors
from collectors.detect import detect_page, detect_path
from collectors.formats import unreadable
from collectors.model import Collector, Limits, ScrapeError, Target
from collectors.transport.http import get
from server.config.discovery import BY_URL, KINDS, DiscoverSettings
from server.config.errors import ConfigError
from server.config.facts import as_option, stated
from server.config.run_names import check_name as check_name
from server.config.run_names import clean, place_of, shown_url
from server.config.run_names import run_name as run_name
from server.config.settings import HeartbeatSettings, RunSettings, TargetSettings
from server.targets.discovery import build, naming
from server.targets.outbound_policy import refuse_target
from server.targets.pending import PendingSource

# An agent of Ray shows a gauge once per report (10 s), so that a page may lack whatever tells whose it is.
RAY_LOOKS, RAY_PAUSE_SECONDS = 3, 4.0
Pairs = tuple[tuple[str, str], ...]
_RAY = re.compile(rb"^ray_", re.MULTILINE)
# A line of Prometheus' text format: a name, perhaps labels, a value.
_SAMPLE = re.compile(rb"^([a-zA-Z_:][a-zA-Z0-9_:]{0,199})(?:\{[^\n]*\})?[ \t]+[-+0-9.NI]", re.MULTILINE)
# A host and a port, which a URL begins with: `localhost:8000`, `gpu-node-1:8000/metrics`, `http:/localhost:8000`.
_WITHOUT_SCHEME = re.compile(r"(?:(https?):/?)?((?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\]):\d{1,5}(?:/.*)?)")


# What waiting helps against: neither a page of something else, nor an address that is not to be asked.
AWAITED = frozenset({"unreachable", "timeout", "status", "auth", "missing", "not_a_run", "locked"})
HINT = " (--wait waits for it)"
LOOKED_FOR = "; `rollscope check` lists what is looked for"


class Ambiguous(ConfigError):
    """A source of which only its user can say how it is to be read; waiting does not help."""

    def __init__(self, *problems: str) -> None:
        super().__init__(list(problems))


@dataclass(frozen=True, slots=True)
class Attached:
    """A run with targets ready to read, lists that name more of them, and what is still waited for.

    Attributes:
        notes: lines for the user, such as a source that was given twice and is read once.
    """

    name: str
    targets: tuple[Target, ...]
    facts: Mapping[str, str | float]
    named: bool = True
    heartbeats: tuple[HeartbeatSettings, ...] = ()
    discover: tuple[DiscoverSettings, ...] = ()
    awaited: tuple[PendingSource, ...] = ()
    notes: tuple[str, ...] = ()


def source_of(text: str) -> TargetSettings:
    """A source of the command line: a path, a URL, or either behind ``COLLECTOR=`` where nothing is to be guessed.

    Raises:
        Ambiguous: it is empty, a URL without its scheme, or names a collector there is none of.
    """
    if not text.strip():
        raise Ambiguous('a source is empty ("", often a shell variable that is not set): name a run directory or a URL')
    if (found := _WITHOUT_SCHEME.fullmatch(text)) and not Path(text).exists():
        raise Ambiguous(f"{text}: no such file or directory: did you mean {found[1] or 'http'}://{found[2]}?")
    if re.match(r"\w+://", text) and not re.match(r"https?://", text):
        raise Ambiguous(f"{text}: not a source: use an http:// or https:// URL, or a path")
    name, equals, source = text.partition("=")
    # Folders named lr=1e-6 are common; one named like a collector and a setting is taken for the folder it is.
    if not (equals and source) or Path(text).exists():
        return TargetSettings(text)
    if name in collectors.load() or name in KINDS:
        return TargetSettings(source, collector=name)
    # Behind the name stands what can only be a source.
    if re.fullmatch(r"\w+", name) and re.match(r"/|~|\.\.?/|\w+://", source):
        raise Ambiguous(f"{text}: {_no_collector(name)}; omit {name}= to detect the collector")
    return TargetSettings(text)


def _no_collector(name: str) -> str:
    known = sorted((*collectors.load(), *KINDS))
    near = difflib.get_close_matches(name, known, 1)
    return f"no collector is named {name}: " + (f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}")


def attach(
    settings: RunSettings, limits: Limits | None = None, *, wait: bool = False, hint: str = HINT
) -> Attached:  # fmt: skip
    """Resolve every target of a run.

    A URL that does not answer yet is kept when its collector was named or is the only one that reads URLs:
    an engine may start after us.

    Args:
        wait: a source that is not there yet goes to `Attached.awaited` instead of being an error. A run directory is
            there in any case, for logs that it does not hold yet.
        hint: what errors say of waiting.

    Raises:
        ConfigError: every source that cannot be read by anything, each with what was tried.
    """
    check_name(settings.name)
    problems: list[str] = []
    unclear: list[str] = []
    resolved: list[tuple[TargetSettings, Target]] = []
    awaited: list[PendingSource] = []
    notes: list[str] = []
    lists = list(settings.discover)
    for target in settings.targets:
        try:
            found = _with_facts(settings, _resolve(settings.name, target, limits or Limits()))
            resolved += [(target, one) for one in found if isinstance(one, Target)]
            if further := _further(settings, target, found):
                awaited.append(further)
            lists += [one for one in found if isinstance(one, DiscoverSettings)]
        except ScrapeError as error:
            words = f"{_shown(target)}: {error}"
            if wait and error.kind in AWAITED:
                alone = replace(settings, targets=(target,), discover=(), heartbeats=())
                same = next((one.source for one in awaited if _place(one.source) == _place(target)), None)
                if same is None:
                    awaited.append(PendingSource(alone, words, _name_of(target)))
                else:
                    notes.append(_twice(same, target, "source"))
            else:
                listed = LOOKED_FOR if error.kind == "not_a_run" and hint == HINT else ""
                problems.append(words + listed + hint * (error.kind in AWAITED))
        except Ambiguous as error:
            unclear += error.problems
    if unclear:
        raise Ambiguous(*unclear, *problems)
    if problems:
        raise ConfigError(problems)
    targets, doubled = _once(resolved)
    return Attached(
        settings.name, tuple(unique(targets, set())), stated(settings.facts), heartbeats=settings.heartbeats,
        discover=build.renamed(lists), awaited=tuple(awaited), notes=(*doubled, *notes),
    )  # fmt: skip


def _further(
    run: RunSettings, source: TargetSettings, found: Sequence[Target | DiscoverSettings]
) -> PendingSource | None:
    """A directory that is a run already, to be looked at again: other collectors may find their logs in it later."""
    path = Path(source.source).expanduser()
    targets = tuple(one for one in found if isinstance(one, Target))
    if source.is_url or source.collector or not targets or not path.is_dir():
        return None
    alone = replace(run, targets=(source,), discover=(), heartbeats=())
    return PendingSource(alone, "", _name_of(source), targets)


def _once(resolved: Iterable[tuple[TargetSettings, Target]]) -> tuple[list[Target], list[str]]:
    """Each page or path once: read twice, its numbers would be counted twice. Returns targets, and a line for each
    source that is left out."""
    first: dict[object, tuple[TargetSettings, Target]] = {}
    notes: dict[str, None] = {}
    for settings, target in resolved:
        kept, _ = first.setdefault(naming.target_identity(target), (settings, target))
        if kept is not settings:
            notes[_twice(kept, settings, "engine" if target.actor == "generator" else "source")] = None
    return [target for _, target in first.values()], list(notes)


def _place(settings: TargetSettings) -> object:
    """As `naming.target_identity`, of a source that does not answer."""
    place = naming.identity(settings.source) if settings.is_url else str(Path(settings.source).expanduser().resolve())
    return place, settings.collector, settings.options, settings.key, settings.bearer


def _twice(kept: TargetSettings, other: TargetSettings, noun: str) -> str:
    if _shown(kept) == _shown(other):
        return f"{_shown(other)} is given more than once: read once"
    return f"{_shown(other)} is the same {noun} as {_shown(kept)}: read once"


def _name_of(target: TargetSettings) -> str:
    """What a source is called while nobody knows what it is."""
    place = clean(place_of(target.source)) if target.is_url else Path(target.source).expanduser().resolve().name
    return target.name or place or "target"


def _with_facts(run: RunSettings, found: Sequence[Target | DiscoverSettings]) -> Sequence[Target | DiscoverSettings]:
    """Trainers' collectors work with what is stated of the run (the batch's size, its mode), not only signals."""
    given = as_option(run.facts)
    return [
        replace(one, options=(*one.options, *given)) if isinstance(one, Target) and one.actor == "trainer" else one
        for one in found
    ]


def _shown(target: TargetSettings) -> str:
    """A source as it may be printed."""
    return shown_url(target.source) if target.is_url else target.source


def _resolve(run: str, target: TargetSettings, limits: Limits) -> Sequence[Target | DiscoverSettings]:
    """The targets that a source is, or the list of targets."""
    if (listed := build.listed(target)) is not None:
        _may_be_asked(listed)
        return [listed]
    if not target.is_url:
        return _resolve_path(run, target)
    try:
        return _resolve_url(run, target, limits)
    except ScrapeError as error:
        # A router answers, and has no page of its own (slime's), or has it on another port (sglang's).
        known = error.kind in ("status", "garbage") and not target.collector
        if known and (router := build.routed(target)) is not None:
            return [router]
        raise


def _may_be_asked(listed: DiscoverSettings) -> None:
    """A list's address is checked like a target's; a file must be there, or `--wait` would have nothing to wait for."""
    source = listed.sources[0]
    if listed.kind in BY_URL:
        if refusal := refuse_target(source):
            raise ScrapeError("refused", refusal)
    elif "*" not in source and not Path(source).expanduser().exists():
        raise ScrapeError("missing", "no such file or directory")


def _resolve_path(run: str, settings: TargetSettings) -> list[Target]:
    path, known = Path(settings.source).expanduser(), collectors.load()
    if settings.collector:
        if known[settings.collector].tail is None:
            raise Ambiguous(f"{settings.source}: collector {settings.collector} reads a URL, not a path")
        found = [(settings.collector, "named")]
    elif not _there(path):
        raise ScrapeError("missing", "no such file or directory")
    else:
        found = detect_path(path)
    if not found:
        if why := build.broken(path):
            raise ScrapeError("not_a_run", why)
        if not os.access(path, os.R_OK):
            raise ScrapeError("not_a_run", "no permission to read this: allow it to the user that runs Rollscope")
        raise ScrapeError("not_a_run", f"no known run log is here{unreadable.words(path)}")
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


def _there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        # The folder it would be in may not be entered.
        raise ScrapeError("missing", f"cannot be read: {unreadable.reason(error)}") from None


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
        raise ScrapeError("refused", refusal)
    bearer = (("authorization", f"Bearer {settings.bearer}"),) if settings.bearer else ()
    source, names = settings.source, [settings.collector]
    if not settings.collector:
        source, names = _detect_url(settings.source, bearer, limits)
    settings = replace(settings, source=source)
    return [_url_target(run, settings, collectors.load()[name], bearer, first=name == names[0]) for name in names]


def _url_target(run: str, settings: TargetSettings, collector: Collector, bearer: Pairs, *, first: bool) -> Target:
    if collector.poll is None:
        raise Ambiguous(f"{_shown(settings)}: collector {collector.name} reads a run directory or a log, not a URL")
    headers = (*bearer, *_key_header(collector, settings))
    given = settings.name if first or not settings.name else f"{settings.name}-{collector.name}"
    return Target(
        given or f"{collector.name}-{clean(place_of(settings.source))}", run, collector.name, collector.actor,
        url=settings.source, interval_seconds=settings.interval_seconds, headers=headers, options=settings.options,
    )  # fmt: skip


def _key_header(collector: Collector, settings: TargetSettings) -> tuple[tuple[str, str], ...]:
    if not settings.key:
        return ()
    prefix = "Bearer " if collector.key_header == "authorization" else ""
    return ((collector.key_header, f"{prefix}{settings.key}"),)


def _detect_url(url: str, headers: Pairs, limits: Limits) -> tuple[str, list[str]]:
    """Where the page is, and whose: as `detect_url`, and the node's collector where a trainer shares its page with it.

    Not answering is no answer: where one collector alone reads URLs it is taken.
    """
    pollers = _pollers()
    try:
        return asyncio.run(_find(url, headers, limits))
    except ScrapeError as error:
        # A proxy answers 502 or 503 while the model loads.
        if error.kind in ("unreachable", "timeout", "status") and len(pollers) == 1:
            return url, pollers[:1]
        raise


async def _find(url: str, headers: Pairs, limits: Limits) -> tuple[str, list[str]]:
    """Below the URL, or at the root of its server: clients are given `.../v1`, the page is beside it."""
    parts = urlsplit(url)
    root = f"{parts.scheme}://{parts.netloc}"
    places = [url] if metrics_url(url) in (url, f"{root}/metrics") else [url, root]
    failed: list[ScrapeError] = []
    for place in places:
        try:
            return place, await _detect(place, headers, limits, collectors.load().keys())
        except ScrapeError as error:
            if error.kind not in ("status", "auth", "garbage"):
                raise  # the server does not answer, wherever it is asked
            failed.append(error)
    tried = " and ".join(urlsplit(metrics_url(place)).path for place in places)
    raise ScrapeError(failed[0].kind, f"{failed[0]} (tried {tried})") if len(places) > 1 else failed[0]


def _pollers() -> list[str]:
    # Providers are named, never guessed: asking a stranger with somebody's key would give the key away.
    return [name for name, collector in collectors.load().items() if collector.poll and collector.matches_page]


async def detect_listed(url: str, headers: Sequence[tuple[str, str]], limits: Limits) -> str:
    """As `detect_url`, of a page that a list names: a Prometheus or an MLflow in it is no source of the run's."""
    return await detect_url(url, headers, limits, _pollers())


async def detect_url(
    url: str, headers: Sequence[tuple[str, str]], limits: Limits, among: Collection[str] | None = None
) -> str:
    """Which collector (``among`` those named) reads the page at this URL.

    Raises:
        ScrapeError: ``garbage``: it belongs to none; else why it could not be asked.
    """
    return (await _detect(url, headers, limits, collectors.load().keys() if among is None else among))[0]


async def _detect(url: str, headers: Sequence[tuple[str, str]], limits: Limits, among: Collection[str]) -> list[str]:
    try:
        body = await _whole(url, headers, limits)
    except ScrapeError as error:
        if error.kind == "status" and (server := await _server(url, limits, among)) is not None:
            return [server]
        raise
    # trtllm-serve answers there too, with JSON: its page is elsewhere.
    name = detect_page(body) or await _server(url, limits, among)
    if name is None:
        raise ScrapeError("garbage", _unsupported(body))
    known = collectors.load()
    shared = known.values() if known[name].actor == "trainer" else ()
    return [name, *(one.name for one in shared if one.has_series is not None and one.has_series(body))]


def _unsupported(body: bytes) -> str:
    """What answers, where no collector reads it."""
    text = body.lstrip()
    if not text:
        return "it answers with an empty page"
    if text.startswith(b"<"):
        return "a web page (HTML) answers, not a metrics page: give the URL of the engine's /metrics"
    if text.startswith((b"{", b"[")):
        return "JSON answers, not a metrics page: give the URL of the engine's /metrics"
    if (sample := _SAMPLE.search(body)) is None:
        return "what answers is not a metrics page: give the URL of the engine's /metrics"
    return f"a metrics page answers, but of no system that Rollscope reads (it begins with {sample[1].decode()})"


async def _whole(url: str, headers: Sequence[tuple[str, str]], limits: Limits) -> bytes:
    """The page; of a Ray agent's that names no trainer and no engine, what several looks at it show together."""
    body = await _fetch(url, headers, limits)
    for _ in range(RAY_LOOKS - 1):
        name = detect_page(body)
        if not _RAY.search(body) or (name is not None and collectors.load()[name].has_series is None):
            break
        await asyncio.sleep(RAY_PAUSE_SECONDS)
        try:
            body += b"\n" + await _fetch(url, headers, limits)
        except ScrapeError:
            break  # what was seen before is still true
    return body


async def _fetch(url: str, headers: Sequence[tuple[str, str]], limits: Limits) -> bytes:
    async with httpx.AsyncClient(headers=dict(headers), follow_redirects=False, trust_env=False) as client:
        return await get(client, metrics_url(url), limits)


async def _server(url: str, limits: Limits, among: Collection[str]) -> str | None:
    """The collector that knows the server itself, which has no page of metrics. Asked without anybody's key."""
    root = url.removesuffix("/metrics")
    async with httpx.AsyncClient(base_url=root, follow_redirects=False, trust_env=False) as client:
        for collector in collectors.load().values():
            asks = collector.matches_server if collector.name in among else None
            if asks is not None and await asks(client, limits):
                return collector.name
    return None


def metrics_url(url: str) -> str:
    """Where an engine's page is, as it is polled: the URL itself when it names one, else `/metrics` below it."""
    parts = urlsplit(url)
    return url if parts.path.rstrip("/").endswith("metrics") or parts.query else f"{url.rstrip('/')}/metrics"


def unique(targets: Iterable[Target], taken: set[str]) -> list[Target]:
    """Names must tell targets apart: they are what every label and error shows. Those given are added to ``taken``."""
    found: list[Target] = []
    for target in targets:
        numbered = (f"{target.name}-{number}" for number in count(2))
        name = target.name if target.name not in taken else next(name for name in numbered if name not in taken)
        taken.add(name)
        found.append(replace(target, name=name))
    return found
