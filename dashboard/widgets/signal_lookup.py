"""Finds a signal by name and labels among those of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product

from dashboard.widgets.format import series_name
from server.query.types import SignalNow

Labels = tuple[tuple[str, str], ...]


class Signals(tuple[SignalNow, ...]):
    """A run's signals, indexed by name: a page looks up two hundred of three hundred."""

    @cached_property
    def by_name(self) -> Mapping[str, Sequence[SignalNow]]:
        """Name -> those of that name, in their order."""
        found: dict[str, list[SignalNow]] = {}
        for one in self:
            found.setdefault(one.signal, []).append(one)
        return found


def _of(signals: Sequence[SignalNow], name: str) -> Sequence[SignalNow]:
    return signals.by_name.get(name, ()) if isinstance(signals, Signals) else [s for s in signals if s.signal == name]


@lru_cache(maxsize=1024)
def _choices(labels: Labels) -> Sequence[dict[str, str]]:
    keys = [key for key, _ in labels]
    return [dict(zip(keys, values, strict=True)) for values in product(*(value.split("|") for _, value in labels))]


@dataclass(frozen=True, slots=True)
class Want:
    """A signal and the labels it must carry; ``a|b`` accepts either value and prefers the first.

    Attributes:
        nth: takes the n-th of the signal's series by name, from 0, whatever their labels are.
    """

    signal: str
    labels: Labels = ()
    nth: int | None = None

    def choices(self) -> Sequence[dict[str, str]]:
        """Every accepted set of labels, the preferred first."""
        return _choices(self.labels)

    def find(self, signals: Sequence[SignalNow]) -> SignalNow | None:
        """The signal that fits best, or None."""
        same = _of(signals, self.signal)
        if self.nth is not None:
            return next(iter(sorted((s for s in same if s.labels), key=lambda s: s.name)[self.nth :]), None)
        for labels in self.choices():
            fits = [s for s in same if labels.items() <= s.labels.items()]
            if fits:
                return min(fits, key=lambda s: (len(s.labels), s.name))
        return None

    def explain(self, signals: Sequence[SignalNow]) -> SignalNow | None:
        """As `find`; else the signal without labels, which has the reason for the absence."""
        bare = (s for s in _of(signals, self.signal) if s.value is None)
        return self.find(signals) or next(bare, None)

    def names(self, signals: Sequence[SignalNow]) -> list[str]:
        """Series to read: the matching one, or (when the signal is silent now) all it could have been."""
        found = self.find(signals)
        if self.nth is not None and found is None:
            return []
        return [found.name] if found else [series_name(self.signal, labels) for labels in self.choices()]


def want(signal: str, **labels: str) -> Want:
    """A signal with these labels."""
    return Want(signal, tuple(labels.items()))
