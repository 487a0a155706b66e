"""The result of reading a page: its samples, its families' types, and what was left out. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from collectors.formats.exposition import layout as exposition_layout
from collectors.model import Labels


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """A parsed key. Compared by identity: a target's cache returns the same object for the same text."""

    name: str
    labels: Labels

    def label(self, name: str) -> str:
        """A label's value, empty when it has none."""
        return next((value for key, value in self.labels if key == name), "")


@dataclass(slots=True)
class Page:
    """One page.

    Attributes:
        types: family names as in the page -> Prometheus' type names.
        slow: characters that prometheus_client parsed.
        dropped: lines left out of an otherwise valid page, with the first reason in ``why``.
        open_metrics: the page ends in `# EOF`: prometheus_client checks its grammar, which is another.
        last_time: the latest timestamp a line may have, epoch ms.
        layout: the layout that it shares with other pages, if any.
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
        """A page with a cached layout; its samples are built on first use."""
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
        """Counts a line, or a histogram, that is left out."""
        self.dropped, self.why = self.dropped + 1, self.why or why

    def drop_all(self, flaws: Iterable[str]) -> None:
        """Counts each flaw."""
        for flaw in flaws:
            self.drop(flaw)

    def rows(self) -> list[tuple[str, Labels, float]]:
        """Name, sorted labels, value: for pushes, which are read once."""
        return [(series.name, series.labels, value) for series, value in self.samples]

    def family(self, name: str) -> tuple[str, str]:
        """The family of a sample, with its type ("untyped" if the page has none).

        `iteration_tokens_total` is a histogram's family: the full name is looked up before any suffix is removed.
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
