"""Resolves sources that the user named to targets: detects which collector reads a URL or a path."""

import asyncio
import json
import os
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import httpx
from msgspec import structs

import collectors
from collectors.detect import detect_page, detect_path
from collectors.formats import unreadable
from collectors.model import Collector, Limits, ScrapeError, Target
from collectors.transport.http import get
from server.lib.errors import ConfigError, suggestion
from server.lib.outbound_policy import refuse_target
from server.targets import lists as targets_lists
from server.targets import naming
from server.targets.model import BY_URL, KINDS, Attached, DiscoverSettings, PendingSource, RunSettings, TargetSettings
from server.targets.naming import check_name as check_name
from server.targets.naming import clean_name as clean
from server.targets.naming import place_of, shown_url
from server.targets.naming import run_name as run_name

# Requests for a Ray agent's page at detection. The agent shows a gauge once per report (10 s), so one page may lack the
# metrics that identify its owner.
RAY_LOOKS = 3
# Pause between those requests, s.
RAY_PAUSE_SECONDS = 4.0
Pairs = tuple[tuple[str, str], ...]
_RAY = re.compile(rb"^ray_", re.MULTILINE)
# A line of Prometheus' text format: a name, perhaps labels, a value.
_SAMPLE = re.compile(rb"^([a-zA-Z_:][a-zA-Z0-9_:]{0,199})(?:\{[^\n]*\})?[ \t]+[-+0-9.NI]", re.MULTILINE)
# A host and a port, which a URL begins with: `localhost:8000`, `gpu-node-1:8000/metrics`, `http:/localhost:8000`.
_WITHOUT_SCHEME = re.compile(r"(?:(https?):/?)?((?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\]):\d{1,5}(?:/.*)?)")


# Errors that may disappear while waiting; a page of another system and a refused address do not.
AWAITED = frozenset({"unreachable", "timeout", "status", "auth", "missing", "not_a_run", "locked"})
HINT = " (--wait waits for it)"
NOT_RECOGNISED = "no run log was recognised here"
LOOKED_FOR = "; `rollscope check` lists what is looked for"


class Ambiguous(ConfigError):
    """A source that only the user can disambiguate; waiting does not help."""

    def __init__(self, *problems: str) -> None:
        super().__init__(list(problems))


def source_of(text: str) -> TargetSettings:
    """Parses a source of the command line: a path, a URL, or either of them after ``COLLECTOR=``.

    Raises:
        Ambiguous: empty, a URL without its scheme, or an unknown collector.
    """
    if not text.strip():
        raise Ambiguous('a source is empty ("", often a shell variable that is not set): name a run directory or a URL')
    if (match := _WITHOUT_SCHEME.fullmatch(text)) and not os.path.exists(text):
        raise Ambiguous(f"{text}: no such file or directory: did you mean {match[1] or 'http'}://{match[2]}?")
    if re.match(r"\w+://", text) and not re.match(r"https?://", text):
        raise Ambiguous(f"{text}: not a source: use an http:// or https:// URL, or a path")
    name, equals, source = text.partition("=")
    # Directories named lr=1e-6 are common, so an existing directory wins over the prefix COLLECTOR=.
    if not (equals and source) or os.path.exists(text):
        return TargetSettings(text)
    if name in collectors.load() or name in KINDS:
        return TargetSettings(source, collector=name)
    # The part after the name can only be a source.
    if re.fullmatch(r"\w+", name) and re.match(r"/|~|\.\.?/|\w+://", source):
        raise Ambiguous(f"{text}: {_no_collector(name)}; omit {name}= to detect the collector")
    return TargetSettings(text)


def _no_collector(name: str) -> str:
    return f"no collector is named {name}: {suggestion(name, (*collectors.load(), *KINDS))}"


def attach(
    settings: RunSettings, limits: Limits | None = None, *, wait: bool = False, hint: str = HINT
) -> Attached:  # fmt: skip
    """Resolves every target of a run.

    A URL that does not answer yet is accepted if its collector was named, or if only one collector reads URLs, because
    an engine may start later.

    Args:
        wait: a source that is missing goes to `Attached.awaited` instead of being an error. A run directory goes there
            in any case, for logs that it does not contain yet.
        hint: text about waiting, appended to errors.

    Raises:
        ConfigError: all sources that no collector reads, each with what was tried.
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
            resolved_items = _with_facts(settings, _resolve(settings.name, target, limits or Limits()))
            resolved += [(target, one) for one in resolved_items if isinstance(one, Target)]
            if further := _further(settings, target, resolved_items):
                awaited.append(further)
            lists += [one for one in resolved_items if isinstance(one, DiscoverSettings)]
        except ScrapeError as error:
            message = f"{_shown(target)}: {error}"
            if wait and error.kind in AWAITED:
                alone = replace(settings, targets=(target,), discover=())
                same = next((item.source for item in awaited if _identity(item.source) == _identity(target)), None)
                if same is None:
                    awaited.append(PendingSource(alone, message, _name_of(target)))
                else:
                    notes.append(_duplicate_note(same, target, "source"))
            else:
                listed = LOOKED_FOR if str(error) == NOT_RECOGNISED and hint == HINT else ""
                problems.append(message + listed + hint * (error.kind in AWAITED))
        except Ambiguous as error:
            unclear += error.problems
    if unclear:
        raise Ambiguous(*unclear, *problems)
    if problems:
        raise ConfigError(problems)
    targets, doubled = _once(resolved)
    return Attached(
        settings.name, tuple(unique(targets, set())), settings.facts,
        discover=targets_lists.renamed(lists), awaited=tuple(awaited), notes=(*doubled, *notes),
    )  # fmt: skip


def _further(
    run: RunSettings, source: TargetSettings, items: Sequence[Target | DiscoverSettings]
) -> PendingSource | None:
    """Returns a recognised run directory as pending, because its further logs may appear later."""
    path = Path(source.source).expanduser()
    targets = tuple(item for item in items if isinstance(item, Target))
    if source.is_url or source.collector or not targets or not os.path.isdir(path):
        return None
    alone = replace(run, targets=(source,), discover=())
    return PendingSource(alone, "", _name_of(source), targets)


def _once(resolved: Iterable[tuple[TargetSettings, Target]]) -> tuple[list[Target], list[str]]:
    """Removes duplicate targets, whose numbers would count twice. Returns targets, and a line for each removed
    source."""
    first: dict[object, tuple[TargetSettings, Target]] = {}
    notes: dict[str, None] = {}
    for settings, target in resolved:
        first_settings, _ = first.setdefault(naming.target_identity(target), (settings, target))
        if first_settings is not settings:
            notes[_duplicate_note(first_settings, settings, "engine" if target.actor == "generator" else "source")] = (
                None
            )
    return [target for _, target in first.values()], list(notes)


def _identity(settings: TargetSettings) -> object:
    """Returns an identity like `naming.target_identity`, for a source that does not answer."""
    address = naming.identity(settings.source) if settings.is_url else str(Path(settings.source).expanduser().resolve())
    return address, settings.collector, settings.options, settings.key, settings.bearer


def _duplicate_note(first_settings: TargetSettings, other: TargetSettings, noun: str) -> str:
    if _shown(first_settings) == _shown(other):
        return f"{_shown(other)} is given more than once: read once"
    return f"{_shown(other)} is the same {noun} as {_shown(first_settings)}: read once"


def _name_of(target: TargetSettings) -> str:
    """Returns the name of a source whose kind is unknown yet."""
    base = clean(place_of(target.source)) if target.is_url else Path(target.source).expanduser().resolve().name
    return target.name or base or "target"


def _with_facts(run: RunSettings, items: Sequence[Target | DiscoverSettings]) -> Sequence[Target | DiscoverSettings]:
    """Passes configured facts of the run (batch size, mode) to the trainers' collectors as options."""
    given = (("facts", json.dumps(dict(run.facts), sort_keys=True)),) if run.facts else ()
    return [
        structs.replace(item, options=(*item.options, *given))
        if isinstance(item, Target) and item.actor == "trainer"
        else item
        for item in items
    ]


def _shown(target: TargetSettings) -> str:
    """Returns a source without its credentials."""
    return shown_url(target.source) if target.is_url else target.source


def _resolve(run: str, target: TargetSettings, limits: Limits) -> Sequence[Target | DiscoverSettings]:
    """Returns the targets of a source, or the target list that it is."""
    if (listed := targets_lists.listed(target)) is not None:
        _check_list(listed)
        return [listed]
    if not target.is_url:
        return _resolve_path(run, target)
    try:
        return _resolve_url(run, target, limits)
    except ScrapeError as error:
        # Some routers answer without a metrics page (slime) or have it on another port (sglang).
        is_server = error.kind in ("status", "garbage") and not target.collector
        if is_server and (router := targets_lists.routed(target)) is not None:
            return [router]
        raise


def _check_list(listed: DiscoverSettings) -> None:
    """Checks a list's address like a target's. A file must exist; otherwise `--wait` would not wait for it."""
    source = listed.sources[0]
    if listed.kind in BY_URL:
        if refusal := refuse_target(source):
            raise ScrapeError("refused", refusal)
    elif "*" not in source and not os.path.exists(Path(source).expanduser()):
        raise ScrapeError("missing", "no such file or directory")


def _resolve_path(run: str, settings: TargetSettings) -> list[Target]:
    path, all_collectors = Path(settings.source).expanduser(), collectors.load()
    if settings.collector:
        if all_collectors[settings.collector].tail is None:
            raise Ambiguous(f"{settings.source}: collector {settings.collector} reads a URL, not a path")
        matches = [(settings.collector, "named")]
    elif not _exists(path):
        raise ScrapeError("missing", "no such file or directory")
    else:
        matches = detect_path(path)
    if not matches:
        if why := targets_lists.broken(path):
            raise ScrapeError("not_a_run", why)
        if not os.access(path, os.R_OK):
            raise ScrapeError(
                "not_a_run", "no permission to read this; give read access to the user that runs Rollscope"
            )
        raise ScrapeError("not_a_run", f"{NOT_RECOGNISED}{unreadable.suffix(path)}")
    _one_framework(settings.source, [match for match in matches if all_collectors[match[0]].actor == "trainer"])
    # Trainer first: it gets the run's name without a suffix.
    ordered = sorted((all_collectors[name] for name, _ in matches), key=lambda collector: collector.actor != "trainer")
    base = settings.name or path.resolve().name
    return [
        Target(
            base if collector is ordered[0] else f"{base}-{collector.name}", run, collector.name, collector.actor,
            path=str(path), interval_seconds=settings.interval_seconds, options=settings.options,
        )
        for collector in ordered
    ]  # fmt: skip


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError as error:
        # Its parent directory may not be readable.
        raise ScrapeError("missing", f"cannot be read: {unreadable.reason(error)}") from None


def _one_framework(source: str, trainers: Sequence[tuple[str, str]]) -> None:
    """Refuses a directory with logs of several frameworks: a directory is one run of one framework.

    Raises:
        Ambiguous: with the candidates and how to name one.
    """
    if len(trainers) > 1:
        candidates = ", ".join(f"{name} ({reason})" for name, reason in trainers)
        raise Ambiguous(
            f"{source}: logs of more than one framework: {candidates}; name one: {trainers[0][0]}={source}, "
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
    """Detects the page's URL and collectors: a trainer may share its page with the Ray node's collector.

    A URL that does not answer is accepted if only one collector reads URLs.
    """
    pollers = _pollers()
    try:
        return asyncio.run(_find(url, headers, limits))
    except ScrapeError as error:
        # A proxy answers 502 or 503 while the model is loading.
        if error.kind in ("unreachable", "timeout", "status") and len(pollers) == 1:
            return url, pollers[:1]
        raise


async def _find(url: str, headers: Pairs, limits: Limits) -> tuple[str, list[str]]:
    """Looks below the URL, or at the server's root: clients use `.../v1`, while the page is at the root."""
    parts = urlsplit(url)
    root = f"{parts.scheme}://{parts.netloc}"
    candidates = [url] if metrics_url(url) in (url, f"{root}/metrics") else [url, root]
    failed: list[ScrapeError] = []
    for candidate in candidates:
        try:
            return candidate, await _detect(candidate, headers, limits, collectors.load().keys())
        except ScrapeError as error:
            if error.kind not in ("status", "auth", "garbage"):
                raise  # the server does not answer at all
            failed.append(error)
    tried = " and ".join(urlsplit(metrics_url(candidate)).path for candidate in candidates)
    raise ScrapeError(failed[0].kind, f"{failed[0]} (tried {tried})") if len(candidates) > 1 else failed[0]


def _pollers() -> list[str]:
    # Providers are never guessed, because a request with the user's key to an unknown server would reveal the key.
    return [name for name, collector in collectors.load().items() if collector.poll and collector.matches_page]


async def detect_listed(url: str, headers: Sequence[tuple[str, str]], limits: Limits) -> str:
    """Like `detect_url`, for a page of a target list: a Prometheus or an MLflow in it is no source of the run."""
    return await detect_url(url, headers, limits, _pollers())


async def detect_url(
    url: str, headers: Sequence[tuple[str, str]], limits: Limits, among: Collection[str] | None = None
) -> str:
    """Returns the collector (``among`` those named) that reads the page at this URL.

    Raises:
        ScrapeError: ``garbage``: no collector reads it; otherwise why the request failed.
    """
    return (await _detect(url, headers, limits, collectors.load().keys() if among is None else among))[0]


async def _detect(url: str, headers: Sequence[tuple[str, str]], limits: Limits, among: Collection[str]) -> list[str]:
    try:
        body = await _whole(url, headers, limits)
    except ScrapeError as error:
        # An engine that works may have a page that fails, never ends or is too large.
        if (
            error.kind in ("status", "timeout", "too_large")
            and (server := await _server(url, limits, among)) is not None
        ):
            return [server]
        raise
    # trtllm-serve answers with JSON here; its metrics page has another path.
    name = detect_page(body) or await _server(url, limits, among)
    if name is None:
        raise ScrapeError("garbage", _unsupported(body))
    all_collectors = collectors.load()
    others = (collector for collector in all_collectors.values() if collector.name != name)
    return [name, *(other.name for other in others if other.has_series is not None and other.has_series(body))]


def _unsupported(body: bytes) -> str:
    """Describes a page that no collector reads."""
    text = body.lstrip()
    if not text:
        return "it answers with an empty page"
    if text.startswith(b"<"):
        return "the answer is a web page (HTML), not a metrics page: pass the URL of the engine's /metrics"
    if text.startswith((b"{", b"[")):
        return "the answer is JSON, not a metrics page: pass the URL of the engine's /metrics"
    if (sample := _SAMPLE.search(body)) is None:
        return "the answer is not a metrics page: pass the URL of the engine's /metrics"
    return f"this is a metrics page of a system that Rollscope does not read (it begins with {sample[1].decode()})"


async def _whole(url: str, headers: Sequence[tuple[str, str]], limits: Limits) -> bytes:
    """Returns the page. A Ray agent's page without a trainer or engine is requested several times and concatenated."""
    body = await _fetch(url, headers, limits)
    for _ in range(RAY_LOOKS - 1):
        name = detect_page(body)
        if not _RAY.search(body) or (name is not None and collectors.load()[name].has_series is None):
            break
        await asyncio.sleep(RAY_PAUSE_SECONDS)
        try:
            body += b"\n" + await _fetch(url, headers, limits)
        except ScrapeError:
            break  # earlier answers remain valid
    return body


async def _fetch(url: str, headers: Sequence[tuple[str, str]], limits: Limits) -> bytes:
    async with httpx.AsyncClient(headers=dict(headers), follow_redirects=False, trust_env=False) as client:
        return await get(client, metrics_url(url), limits)


async def _server(url: str, limits: Limits, among: Collection[str]) -> str | None:
    """Returns the collector that recognises a server without a metrics page. Sends no credentials."""
    root = url.removesuffix("/metrics")
    async with httpx.AsyncClient(base_url=root, follow_redirects=False, trust_env=False) as client:
        for collector in collectors.load().values():
            matches = collector.matches_server if collector.name in among else None
            if matches is not None and await matches(client, limits):
                return collector.name
    return None


def metrics_url(url: str) -> str:
    """Returns the URL of an engine's page: the URL itself if it names a page, else `/metrics` below it."""
    parts = urlsplit(url)
    return url if parts.path.rstrip("/").endswith("metrics") or parts.query else f"{url.rstrip('/')}/metrics"


def unique(targets: Iterable[Target], used_names: set[str]) -> list[Target]:
    """Makes names unique, because labels and errors identify targets by name. Adds the names to ``used_names``."""
    found: list[Target] = []
    for target in targets:
        found.append(structs.replace(target, name=naming.free_name(target.name, used_names)))
        used_names.add(found[-1].name)
    return found
