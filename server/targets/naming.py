"""Identities and names of targets. Pure.

Labels, errors and alerts show a target's name, and its counters are stored under it. So the name must not change after
a restart of Rollscope or with the order of a list.
"""

import hashlib
import os
import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, count
from pathlib import Path
from urllib.parse import urlsplit

from collectors.model import Target
from server.lib.errors import ConfigError
from server.targets.model import DiscoverSettings, Found

# Longest name, characters.
LENGTH = 200
_PORTS = {"http": 80, "https": 443}
# Names of this machine. A server that listens under only one of them is rare.
_HERE = frozenset({"localhost", "::1", "0.0.0.0"})


def identity(url: str) -> str:
    """Returns a page's address in a canonical spelling, so that equal targets of two lists are equal."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    host = "127.0.0.1" if host in _HERE else host
    port = parts.port or _PORTS.get(parts.scheme, 0)
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/') or '/metrics'}{query}"


def target_identity(target: Target) -> object:
    """Returns an identity that is equal for two targets that read the same thing.

    One address of a provider serves several accounts, so credentials and options belong to the identity.
    """
    address_ = identity(target.url) if target.url else str(Path(target.path).resolve())
    return target.collector, address_, target.options, target.headers if target.actor == "sandbox" else ()


@lru_cache(maxsize=32_768)
def digest(url: str) -> str:
    """Returns a hash of `identity` that is safe to store and display, because an address may contain a secret."""
    return hashlib.sha256(identity(url).encode()).hexdigest()[:12]


def address(url: str) -> str:
    """Returns ``host:port`` as it was written."""
    return urlsplit(url).netloc.rpartition("@")[2]


def labels(page: Found) -> dict[str, str]:
    """Returns the labels with ``job`` and ``instance``, as Prometheus would set them."""
    return {"instance": address(page.url), **dict(page.labels), "job": page.job}


def is_wanted(page: Found, settings: DiscoverSettings) -> bool:
    """Does the list's filter accept the target?"""
    if settings.jobs and page.job not in settings.jobs:
        return False
    return not settings.match or all(matcher.matches(labels(page)) for matcher in settings.match)


def usual_name(page: Found, settings: DiscoverSettings) -> str:
    """Returns ``job/instance``, or the labels of `labels_as_name`; without a job the list's name replaces it."""
    values = labels(page)
    parts = [values.get(label, "") for label in settings.labels_as_name]
    if not any(parts):
        parts = [page.job or settings.name, values["instance"]]
    return clean("/".join(filter(None, parts)))


def clean(text: str) -> str:
    """Returns the text printable and bounded in length."""
    return (text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text))[:LENGTH]


def free_name(name: str, taken: Container[str]) -> str:
    """Returns the name; if it is taken, with the lowest number from 2 on that makes it unique: ``router-2``."""
    return next(one for one in chain([name], (f"{name}-{number}" for number in count(2))) if one not in taken)


@dataclass(slots=True)
class TargetNames:
    """Assigns permanent names to addresses. Not thread-safe.

    Args:
        known: digest -> name, of targets found earlier (by an earlier process).
        taken: is the name used by a configured or pushed target?
    """

    known: dict[str, str] = field(default_factory=dict)
    taken: Callable[[str], bool] = lambda name: False

    def name(self, key: str, usual: str, used: Mapping[str, str]) -> str:
        """Returns the previous name, else the default name, else the default name with a part of the digest.

        Args:
            used: name -> digest, of the current targets.
        """
        for name in (self.known.get(key, usual), usual, f"{usual}-{key[:6]}", f"{usual}-{key}"):
            if not self.taken(name) and used.get(name, key) == key:
                self.known[key] = name
                return name
        return f"{usual}-{key}"


# ---- run names
# Names of runs: derived for runs without a name, and checked.

# Folders that many projects have: two runs in such folders must not get the same name.
COMMON_NAMES = frozenset({"output", "outputs", "run", "runs", "results", "checkpoints", "trainer", "logs", "trackio"})


def run_name(sources: Iterable[str]) -> str:
    """The name of a run without one: its directory's, or else its first host's."""
    sources = list(sources)
    paths = [Path(source).resolve() for source in sources if "://" not in source]
    if paths:
        path = paths[0].parent if os.path.isfile(paths[0]) else paths[0]
        named = path.name if path.name not in COMMON_NAMES else f"{path.parent.name}-{path.name}"
        return clean_name(named) or "run"
    return (clean_name(place_of(sources[0])) if sources else "") or "run"


def place_of(url: str) -> str:
    """Host and port of a URL, without credentials."""
    try:
        parts = urlsplit(url)
        return f"{parts.hostname or ''}-{parts.port}" if parts.port else parts.hostname or ""
    except ValueError:
        return ""


def shown_url(url: str) -> str:
    """A URL as it may be printed: scheme, host and port as written, without credentials, path and query."""
    scheme, slashes, rest = url.partition("://")
    if not slashes:
        scheme, rest = "", url
    return f"{scheme}{slashes}{re.split('[/?#]', rest)[0].rpartition('@')[2]}"


def check_name(name: str) -> None:
    """Refuse a run name that does not fit into a URL, a label or a screen.

    Raises:
        ConfigError: with the rule.
    """
    if not name.isprintable() or not 0 < len(name) <= 200 or "/" in name or name in (".", ".."):
        raise ConfigError([f"run name {ascii(name)[:80]}: 1 to 200 printable characters without /"])


def clean_name(text: str) -> str:
    """Replaces characters that are special in a shell, a URL or a label by a dash."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-")
