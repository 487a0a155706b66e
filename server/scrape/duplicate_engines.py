"""Drops samples of an engine read through a router or Prometheus if the engine is also scraped directly.

Otherwise sums would count it twice, and its own page has more metrics. Engines are matched by host:port, so an engine
listed under another host name is not detected.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from urllib.parse import urlsplit

import collectors
from collectors.model import Labels, Reading, Target

log = logging.getLogger("rollscope.collect")

_LOOPBACK = frozenset({"127.0.0.1", "::1", "0.0.0.0", "localhost"})


@dataclass(slots=True)
class DuplicateEngineFilter:
    """Filter for the targets of one run. ``_logged``: (target, engine) pairs that were logged, once each."""

    _logged: set[tuple[str, str]] = field(default_factory=set)

    def without(self, target: Target, reading: Reading, others: Iterable[Target]) -> Reading:
        """Returns the reading without engines that are targets of their own."""
        if not _is_merged(target):
            return reading
        direct_names = {_address(one.url): one.name for one in others if one.url and not _is_merged(one)}
        seen = {one.labels for one in reading.samples} | {one.labels for one in reading.histograms}
        doubled = {labels: direct_names[key] for labels in seen if (key := _address(_replica(labels))) in direct_names}
        if not doubled:
            return reading
        self._log(target.name, set(doubled.values()))
        return replace(
            reading,
            samples=tuple(one for one in reading.samples if one.labels not in doubled),
            histograms=tuple(one for one in reading.histograms if one.labels not in doubled),
        )

    def _log(self, through: str, names: set[str]) -> None:
        for name in sorted(names - {name for target, name in self._logged if target == through}):
            self._logged.add((through, name))
            log.info("target %s is also read through %s: its own page counts", name, through)


def _is_merged(target: Target) -> bool:
    """Does the page contain several servers, each labelled with its address?"""
    path = urlsplit(target.url).path.rstrip("/")
    collector = collectors.load().get(target.collector)
    merged = collector is not None and collector.merges_servers
    return merged or (path.endswith("metrics") and not path.endswith("/metrics"))


def _replica(labels: Labels) -> str:
    # Behind Ray and in a Prometheus the label contains more than the address; the address comes first.
    return next((value.partition("/")[0] for name, value in labels if name == "replica"), "")


def _address(text: str) -> str:
    """Returns host:port of a URL or an address; "" without a port, because that is another kind of name."""
    parts = urlsplit(text if "//" in text else f"//{text}")
    try:
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return ""
    host = (parts.hostname or "").lower()
    return f"{'localhost' if host in _LOOPBACK else host}:{port}" if host and port else ""
