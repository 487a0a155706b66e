"""A page as read: its samples, its families' types, and what was left out. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from collectors.formats.exposition import layout as exposition_layout
from collectors.model import Labels


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """A parsed key. Compared by identity: a target's cache hands out the same object for the same text."""

    name: str
    labels: Labels

    def label(self, name: str) -> str:
        """A label's value, empty when it has none."""
        return next((value for key, value in self.labels if key == name), "")


@dataclass(slots=True)
class Page:
    """One page.

    Attributes:
        types: family names as on the wire -> Prometheus' type words.
        slow: characters that went to prometheus_client.
        dropped: lines left out of a page that is good else, with the first reason in ``why``.
        open_metrics: it ends in `# EOF`: its grammar is another, which prometheus_client judges.
        last_time: the latest time a line may carry, epoch ms.
        layout: what it shares with other pages, where it does.
    """

    types: dict[str, str] = field(default_factory=dict)
    slow: int = 0
    dropped: int = 0
    why: str = ""
    open_metrics: bool = False
    last_time: float = inf
    layout: "exposition_layout.Layout[Series] | None" = None
    _samples: list[tuple[Series, float]] = field(default_factory=list)
    _values: Sequence[float] = ()

    @classmethod
    def by(cls, layout: "exposition_layout.Layout[Series]", values: Sequence[float]) -> "Page":
        """Of a known layout: its samples are put together when somebody asks for them."""
        return cls(layout.types, layout=layout, _values=values)

    @property
    def samples(self) -> list[tuple[Series, float]]:
        """Series and value, in the page's order."""
        if self._values and not self._samples and self.layout is not None:
            self._samples = list(zip(self.layout.series, self._values, strict=True))
        return self._samples

    @samples.setter
    def samples(self, found: list[tuple[Series, float]]) -> None:
        self._samples = found

    @property
    def values(self) -> Sequence[float]:
        """The samples' values."""
        return self._values or [value for _, value in self._samples]

    def drop(self, why: str) -> None:
        """Count a line, or a histogram, that is left out."""
        self.dropped, self.why = self.dropped + 1, self.why or why

    def drop_all(self, flaws: Iterable[str]) -> None:
        """Count each."""
        for flaw in flaws:
            self.drop(flaw)

    def rows(self) -> list[tuple[str, Labels, float]]:
        """Name, sorted labels, value: for pushes, where nobody scrapes twice."""
        return [(series.name, series.labels, value) for series, value in self.samples]

    def family(self, name: str) -> tuple[str, str]:
        """The family a sample belongs to, with its type ("untyped" when the page does not say).

        `iteration_tokens_total` is a histogram's family: its own type is asked before any suffix is taken off.
        """
        for suffix in ("", "_bucket", "_sum", "_count", "_total"):
            base = name.removesuffix(suffix) if suffix else name
            kind = self.types.get(base)
            if kind is not None and suffix in _SUFFIXES.get(kind, ("",)):
                return base, kind
        return name, "untyped"


_SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "histogram": ("_bucket", "_sum", "_count"),
    "summary": ("", "_sum", "_count"),
    "counter": ("", "_total"),
}
