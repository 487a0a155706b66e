"""Settings of runs and targets, types of target lists, an address with Prometheus labels as a URL. Pure.

Source: prometheus.io/docs, `file_sd_config` and `relabel_config` (labels that begin with two underscores).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote_plus, urlsplit

from collectors.model import Labels, Target
from server.alerts.text import parse_duration
from server.lib.matchers import Matcher
from server.lib.outbound_policy import refuse_target
from server.lib.secret import NO_SECRET, Secret

# Most targets of one list, and of one run.
TARGETS = 10_000
# Largest list, bytes.
BYTES = 8 << 20
# Wrong entries reported per list.
PROBLEMS = 5
# Most labels of a target.
LABELS = 64
# Longest label, name and value together, characters.
LABEL_LENGTH = 500
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*", re.ASCII)
_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.%]+\]|[^\s/:@\[\]?#]+)(?::[0-9]{1,5})?", re.ASCII)
_PARAM = "__param_"
# Kinds of target lists; those that are read from a URL.
KINDS = ("file_sd", "http_sd", "prometheus_yml", "router", "run_dir")
BY_URL = frozenset({"http_sd", "router"})
# Seconds between reads of a list: a file costs one stat, a router one small response; an HTTP inventory changes rarely.
REFRESH_SECONDS: Mapping[str, float] = {
    "file_sd": 5.0, "prometheus_yml": 5.0, "run_dir": 5.0, "router": 15.0, "http_sd": 60.0,
}  # fmt: skip
REFRESH_MOST = 3600.0


@dataclass(frozen=True, slots=True)
class DiscoverSettings:
    """One list.

    Attributes:
        kind: of `KINDS`.
        sources: its URL, its paths (``*`` in the last part where it is `file_sd`), or the run's directory.
        name: the list's name in target rows, errors and `/metrics`.
        collector: the collector of its targets; "": detected for each page.
        interval_seconds: between two reads of a target, unless the list sets it.
        jobs, match: conditions that a target must meet; without any, all targets are used.
        headers, bearer: sent to every target; list_bearer: sent to the list's server.
        labels_as_name: labels whose values name a target, instead of job and instance.
    """

    kind: str
    sources: tuple[str, ...]
    name: str = ""
    collector: str = ""
    interval_seconds: float = 5.0
    refresh_seconds: float = 5.0
    jobs: tuple[str, ...] = ()
    match: tuple[Matcher, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    bearer: Secret = NO_SECRET
    list_bearer: Secret = NO_SECRET
    labels_as_name: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """A target as configured. ``collector``: "" if it must be detected."""

    source: str
    name: str = ""
    collector: str = ""
    interval_seconds: float = 5.0
    bearer: Secret = NO_SECRET
    key: Secret = NO_SECRET
    options: tuple[tuple[str, str], ...] = ()

    @property
    def is_url(self) -> bool:
        return "://" in self.source


@dataclass(frozen=True, slots=True)
class RunSettings:
    """A run: what to read, and the user's facts, which override those that collectors find."""

    name: str
    targets: tuple[TargetSettings, ...] = ()
    facts: Mapping[str, str | float] = field(default_factory=dict)
    discover: tuple[DiscoverSettings, ...] = ()


@dataclass(frozen=True, slots=True)
class PendingSource:
    """A source that is not available yet.

    Attributes:
        settings: a run with only this source, to be resolved again.
        error: why it could not be resolved; safe to display.
        name: its name until its kind is known.
        found: targets already found: a run directory whose further logs are pending.
    """

    settings: RunSettings
    error: str
    name: str
    found: tuple[Target, ...] = ()

    @property
    def source(self) -> TargetSettings:
        return self.settings.targets[0]


@dataclass(frozen=True, slots=True)
class Attached:
    """A run with targets ready to read, target lists, and sources that are still pending.

    Attributes:
        notes: lines for the user, such as a source that was given twice and is read once.
    """

    name: str
    targets: tuple[Target, ...]
    facts: Mapping[str, str | float] = field(default_factory=dict)
    named: bool = True
    discover: tuple[DiscoverSettings, ...] = ()
    awaited: tuple[PendingSource, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Found:
    """A target of a list.

    Attributes:
        url: of its metrics page; accepted by `server.lib.outbound_policy.refuse_target`.
        labels: from the list, sorted, without those that only describe how to reach the target.
        job: its scrape job; "" outside of Prometheus' files.
        interval_seconds: scrape interval from the list; 0 if none.
    """

    url: str
    labels: Labels = ()
    job: str = ""
    interval_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Listing:
    """Current content of a list.

    Attributes:
        changed: since the last call.
        error: why the list cannot be read, wholly or in part; safe to display, like `left_out`.
        left_out: refused entries of a readable list.
    """

    found: tuple[Found, ...] = ()
    changed: bool = False
    error: str = ""
    left_out: str = ""


class Provider(Protocol):
    """A source of targets. Queried at every step, so it is cheap while nothing has changed."""

    async def targets(self, now: float) -> Listing:
        """Returns the content at `now` (epoch s). Never raises for errors of the source."""


class DiscoveryError(Exception):
    """A list that is unusable as a whole. The message names the position in it and is safe to display."""


@dataclass(frozen=True, slots=True)
class Base:
    """Defaults of targets without own values."""

    job: str = ""
    scheme: str = "http"
    path: str = "/metrics"


@dataclass(slots=True)
class Parsed:
    """Parsed list: its targets, and refused entries with reasons."""

    found: list[Found] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def add(self, where: str, url: str, labels: Labels = (), job: str = "", interval: float = 0.0) -> None:
        """Adds a target, unless its URL is refused.

        Raises:
            DiscoveryError: too many targets.
        """
        if len(self.found) >= TARGETS:
            raise DiscoveryError(f"more than {TARGETS} targets")
        if refusal := refuse_target(url):
            self.leave_out(f"{where} {refusal}")
        else:
            self.found.append(Found(url, labels, job, interval))

    def leave_out(self, why: str) -> None:
        """Records why an entry is refused."""
        if len(self.problems) < PROBLEMS:
            self.problems.append(why)


def groups(data: Any, parsed: Parsed, base: Base | None = None, where: str = "") -> Parsed:
    """Parses `[{"targets": ["host:port"], "labels": {}}]`, the format of `file_sd`, `http_sd` and `static_configs`.

    Raises:
        DiscoveryError: not such a list.
    """
    if not isinstance(data, list) or len(data) > TARGETS:
        raise DiscoveryError(f"{where or 'it'} must be a list of at most {TARGETS} groups {{targets, labels}}")
    for number, group in enumerate(data):
        _group(group, parsed, base or Base(), f"{where}[{number}]")
    return parsed


def _group(group: Any, parsed: Parsed, base: Base, where: str) -> None:
    if not isinstance(group, dict) or not isinstance(group.get("targets", []), list):
        raise DiscoveryError(f"{where} must be a table with a list of targets")
    if unknown := group.keys() - {"targets", "labels"}:
        raise DiscoveryError(f"{where} has the unknown key {str(min(unknown, key=str))[:40]!r}")
    labels = _labels(group.get("labels") or {}, f"{where}.labels")
    for number, address in enumerate(group.get("targets") or []):
        item = f"{where}.targets[{number}]"
        if not isinstance(address, str) or _ADDRESS.fullmatch(address) is None:
            raise DiscoveryError(f'{item} must be "host:port", without scheme and path')
        parsed.add(item, url_of(address, labels, base), shown(labels), labels.get("job", base.job), _interval(labels))


def _labels(given: Any, where: str) -> Mapping[str, str]:
    if not isinstance(given, dict) or not all(isinstance(x, str) for pair in given.items() for x in pair):
        raise DiscoveryError(f"{where} must be a table of strings")
    if len(given) > LABELS or any(len(name) + len(value) > LABEL_LENGTH for name, value in given.items()):
        raise DiscoveryError(f"{where} holds more than {LABELS} labels, or one longer than {LABEL_LENGTH} characters")
    for name in given:
        if _LABEL_NAME.fullmatch(name) is None:
            raise DiscoveryError(f"{where}: {name[:40]!r} is not a valid label name")
    if given.get("__scheme__", "http") not in ("http", "https", ""):
        raise DiscoveryError(f"{where}.__scheme__ must be http or https")
    try:
        _interval(given)
    except ValueError as error:
        raise DiscoveryError(f"{where}.__scrape_interval__: {error}") from None
    return given


def _interval(labels: Mapping[str, str]) -> float:
    return parse_duration(labels.get("__scrape_interval__") or "0")


def url_of(address: str, labels: Mapping[str, str], base: Base) -> str:
    """Builds the URL of a target from scheme, address, path and parameters."""
    scheme, path = labels.get("__scheme__") or base.scheme, labels.get("__metrics_path__") or base.path
    path = path if path.startswith("/") else f"/{path}"
    params = sorted((name.removeprefix(_PARAM), value) for name, value in labels.items() if name.startswith(_PARAM))
    query = "&".join(f"{quote_plus(name)}={quote_plus(value)}" for name, value in params)
    return f"{scheme}://{address}{path}" + (f"{'&' if '?' in path else '?'}{query}" if query else "")


def shown(labels: Mapping[str, str]) -> Labels:
    """Returns the labels to store: without internal ones (`__metrics_path__`, `__meta_...`), `job` and empty ones."""
    return tuple(
        sorted(pair for pair in labels.items() if not pair[0].startswith("__") and pair[0] != "job" and pair[1])
    )


def servers(urls: Iterator[tuple[str, Any, Labels]], parsed: Parsed, path: str = "/metrics") -> Parsed:
    """Adds the metrics pages of servers, given as (position in the list, base URL, labels), each once."""
    seen: set[tuple[str, Labels]] = set()
    for where, url, labels in urls:
        if not isinstance(url, str):
            raise DiscoveryError(f"{where} must be a URL")
        # sglang-router appends a data-parallel rank after an @; all ranks share one page.
        base = re.sub(r"@\d+$", "", url).rstrip("/").removesuffix("/v1")
        if "@" in urlsplit(base).netloc:
            parsed.leave_out(f"{where} contains a password")
        elif (base, labels) not in seen:
            seen.add((base, labels))
            parsed.add(where, base + path, labels)
    return parsed
