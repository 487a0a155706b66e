"""Caches the keys of a run's derived series by series id; ids are permanent."""

from collections.abc import Iterable, Mapping

from server.store import Store
from server.store.types import SeriesKey

# A server shows few runs at a time; old runs that a script reads need not stay cached.
RUNS = 64


class SeriesNames:
    """Thread-safe: a run's table is replaced as a whole, never changed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, Mapping[int, SeriesKey]] = {}

    def of(self, run: str, numbers: Iterable[int]) -> Mapping[int, SeriesKey]:
        """Number -> key, with all of ``numbers`` that are series of the run's own."""
        known = self._known.get(run, {})
        if all(number in known for number in numbers):
            return known
        known = dict(self._store.series(run, target=""))
        if len(self._known) >= RUNS:
            self._known.clear()
        self._known[run] = known
        return known
