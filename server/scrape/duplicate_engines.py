"""Engines that are read twice: by themselves, and through a router's merged page or a Prometheus.

Their own page is nearer, and says more: what the other tells of them is left out, or every sum would hold them twice.
Known by the address: a router that calls an engine by another host's name than its target does is not known.
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
    """What one run's targets have in common. ``_told``: what was said in the log, once."""

    _told: set[tuple[str, str]] = field(default_factory=set)

    def without(self, target: Target, reading: Reading, others: Iterable[Target]) -> Reading:
        """The reading without engines that are targets of their own."""
        if not _is_merged(target):
            return reading
        own = {_address(one.url): one.name for one in others if one.url and not _is_merged(one)}
        seen = {one.labels for one in reading.samples} | {one.labels for one in reading.histograms}
        doubled = {labels: own[where] for labels in seen if (where := _address(_replica(labels))) in own}
        if not doubled:
            return reading
        self._tell(target.name, set(doubled.values()))
        return replace(
            reading,
            samples=tuple(one for one in reading.samples if one.labels not in doubled),
            histograms=tuple(one for one in reading.histograms if one.labels not in doubled),
        )

    def _tell(self, through: str, names: set[str]) -> None:
        for name in sorted(names - {name for place, name in self._told if place == through}):
            self._told.add((through, name))
            log.info("target %s is also read through %s: its own page counts", name, through)


def _is_merged(target: Target) -> bool:
    """Does it tell of several servers, each by its address?"""
    path = urlsplit(target.url).path.rstrip("/")
    collector = collectors.load().get(target.collector)
    merged = collector is not None and collector.merges_servers
    return merged or (path.endswith("metrics") and not path.endswith("/metrics"))


def _replica(labels: Labels) -> str:
    # Behind Ray and in a Prometheus more than the address may be in it: that comes first.
    return next((value.partition("/")[0] for name, value in labels if name == "replica"), "")


def _address(place: str) -> str:
    """host:port of a URL or an address; "" where it has no port, for that is a name of something else."""
    parts = urlsplit(place if "//" in place else f"//{place}")
    try:
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return ""
    host = (parts.hostname or "").lower()
    return f"{'localhost' if host in _LOOPBACK else host}:{port}" if host and port else ""
