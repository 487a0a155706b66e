"""Engines of a prime-rl run, from its resolved configurations (559b4477: `configs/rl.json`, `orchestrator.json`).

`admin_base_url` lists every engine. `base_url` alone is the router's, which has no engine page.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from collectors.model import Labels
from server.targets.discovery.files import WatchedFile
from server.targets.discovery.model import DiscoveryError, Found, Listing, Parsed, servers
from server.targets.discovery.parsing import from_json

FILES = ("configs/rl.json", "configs/orchestrator.json")
# Newest first: in rl.json the orchestrator's section is below its name, in its own file it is at the top.
_CLIENTS = ("orchestrator.model.client", "model.client", "orchestrator.client", "client")


def parse(data: bytes, _: Path) -> Parsed:
    """Parses one configuration; without the list it has no engines.

    Raises:
        DiscoveryError: not a configuration.
    """
    document = from_json(data)
    if not isinstance(document, dict):
        raise DiscoveryError("must be an object")
    parsed = Parsed()
    return servers(_urls(document), parsed)


def _urls(document: Mapping[str, Any]) -> Iterator[tuple[str, Any, Labels]]:
    for path in _CLIENTS:
        listed = _dig(document, f"{path}.admin_base_url")
        if isinstance(listed, str):
            listed = [listed]
        if listed is not None:
            if not isinstance(listed, list):
                raise DiscoveryError(f"{path}.admin_base_url must be a list of URLs")
            yield from ((f"{path}.admin_base_url[{number}]", url, ()) for number, url in enumerate(listed))
            return


def _dig(document: Any, path: str) -> Any:
    for part in path.split("."):
        document = document.get(part) if isinstance(document, dict) else None
    return document


@dataclass(slots=True)
class PrimeRl:
    """Engines of the run in a directory. ``run_dir``: prime-rl's output directory."""

    run_dir: str
    _files: WatchedFile[Parsed] = field(init=False)
    _last: tuple[Found, ...] = ()

    def __post_init__(self) -> None:
        self._files = WatchedFile([str(Path(self.run_dir) / name) for name in FILES], parse)

    async def targets(self, now: float) -> Listing:
        """See `Provider`. One of the two files is sufficient; the first that lists engines counts."""
        try:
            await self._files.look(now)
        except DiscoveryError as error:
            return Listing(self._last, error=str(error))
        states = list(self._files.files.values())
        values = [state.value for state in states if state.value is not None]
        pages = next((tuple(value.found) for value in values if value.found), ())
        before, self._last = self._last, pages
        left_out = [problem for value in values for problem in value.problems]
        return Listing(pages, pages != before, self._errors(values, left_out), "; ".join(left_out))

    def _errors(self, values: list[Parsed], left_out: list[str]) -> str:
        """Returns errors in one line. If one of the two files never existed, that is no error."""
        states = self._files.files.values()
        errors = [
            state.error
            for state in states
            if state.error and (state.value or state.missing_since is None or not values)
        ]
        if not errors and not left_out and not self._last:
            errors.append(f"{self.run_dir}: no admin_base_url in its configs: give the engines' URLs")
        return "; ".join(errors)
