"""Which target is it, and what is it called? Pure.

Every label, error and alert shows a target's name, and its counters are kept under it: it must be the same tomorrow,
after a restart of ours, and when the list is in another order.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from collectors.model import Target
from server.config.discovery import DiscoverSettings
from server.targets.discovery.model import Found

# As long as a person can read and a label should be.
LENGTH = 200
_PORTS = {"http": 80, "https": 443}
# One machine's own names for itself: whoever listens under one of them and not under the others is rare.
_HERE = frozenset({"localhost", "::1", "0.0.0.0"})


def identity(url: str) -> str:
    """A page's address in the one spelling of many: two lists that name it name one target."""
    parts = urlsplit(url)
    host = (parts.hostname or "").rstrip(".")
    host = "127.0.0.1" if host in _HERE else host
    port = parts.port or _PORTS.get(parts.scheme, 0)
    query = f"?{parts.query}" if parts.query else ""
    return f"{parts.scheme}://{host}:{port}{parts.path.rstrip('/') or '/metrics'}{query}"


def target_identity(target: Target) -> object:
    """What a target reads, in the one spelling of many: equal for two targets that read the same thing.

    One address of a provider is several accounts: its credentials and options belong to it.
    """
    place = identity(target.url) if target.url else str(Path(target.path).resolve())
    return target.collector, place, target.options, target.headers if target.actor == "sandbox" else ()


@lru_cache(maxsize=32_768)
def digest(url: str) -> str:
    """`identity` as it may be stored and shown: an address may hold a secret."""
    return hashlib.sha256(identity(url).encode()).hexdigest()[:12]


def address(url: str) -> str:
    """``host:port``, as it was written."""
    return urlsplit(url).netloc.rpartition("@")[2]


def labels(found: Found) -> dict[str, str]:
    """Its labels with ``job`` and ``instance``, as Prometheus would have them."""
    return {"instance": address(found.url), **dict(found.labels), "job": found.job}


def wanted(found: Found, settings: DiscoverSettings) -> bool:
    """Does the list's filter let it through?"""
    if settings.jobs and found.job not in settings.jobs:
        return False
    return not settings.match or all(one.matches(labels(found)) for one in settings.match)


def usual_name(found: Found, settings: DiscoverSettings) -> str:
    """``job/instance``, or what `labels_as_name` says; without a job the list's name."""
    known = labels(found)
    words = [known.get(label, "") for label in settings.labels_as_name]
    if not any(words):
        words = [found.job or settings.name, known["instance"]]
    return clean("/".join(filter(None, words)))


def clean(text: str) -> str:
    """Printable, and bounded."""
    return (text if text.isprintable() else "".join(char if char.isprintable() else "?" for char in text))[:LENGTH]


@dataclass(slots=True)
class TargetNames:
    """Names by addresses: one that was given stays. Not thread-safe.

    Args:
        known: digest -> name, of what was found before (by an earlier process).
        taken: is it a name of something else: a target configured by hand, or pushed?
    """

    known: dict[str, str] = field(default_factory=dict)
    taken: Callable[[str], bool] = lambda name: False

    def name(self, key: str, usual: str, used: Mapping[str, str]) -> str:
        """Its name: what it was, else the usual one, else the usual one and a part of its digest.

        Args:
            used: name -> digest, of the targets that are there now.
        """
        for name in (self.known.get(key, usual), usual, f"{usual}-{key[:6]}", f"{usual}-{key}"):
            if not self.taken(name) and used.get(name, key) == key:
                self.known[key] = name
                return name
        return f"{usual}-{key}"
