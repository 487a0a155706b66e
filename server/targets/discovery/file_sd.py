"""Prometheus' `file_sd`: target lists in JSON or YAML files, such as Ray's `prom_metrics_service_discovery.json`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from server.targets.discovery.files import WatchedFile
from server.targets.discovery.model import Base, DiscoveryError, Found, Listing, Parsed, groups
from server.targets.discovery.parsing import from_json, from_yaml


def parse(data: bytes, path: Path, base: Base | None = None) -> Parsed:
    """Parses one file; its extension determines the format, as in Prometheus.

    Raises:
        DiscoveryError: not a target list.
    """
    if path.suffix not in (".json", ".yml", ".yaml"):
        raise DiscoveryError("must end in .json, .yml or .yaml")
    return groups(from_json(data) if path.suffix == ".json" else from_yaml(data), Parsed(), base)


@dataclass(slots=True)
class FileSd:
    """Targets from files that may appear and disappear. ``patterns``: paths; the last part may contain ``*``."""

    patterns: Sequence[str]
    base: Base = field(default_factory=Base)
    _files: WatchedFile[Parsed] = field(init=False)
    _last: tuple[Found, ...] = ()

    def __post_init__(self) -> None:
        self._files = WatchedFile(self.patterns, lambda data, path: parse(data, path, self.base))

    async def targets(self, now: float) -> Listing:
        """See `Provider`."""
        try:
            await self._files.look(now)
        except DiscoveryError as error:
            return Listing(self._last, error=str(error))
        return self.listed()

    def listed(self) -> Listing:
        """Returns the content of the files at the last read."""
        pages, left_out = list[Found](), list[str]()
        for name, state in self._files.files.items():
            if state.value is not None:
                pages += state.value.found
                left_out += [f"{name}: {problem}" for problem in state.value.problems]
        listed = tuple(dict.fromkeys(pages))
        before, self._last = self._last, listed
        return Listing(listed, listed != before, self._files.error(), "; ".join(left_out))
