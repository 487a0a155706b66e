"""A pushed body in exposition text -> what is taken of it and, line by line, what is refused and why. Pure."""

from dataclasses import dataclass, field
from typing import NoReturn

from collectors.catalog import METRICS, Metric
from collectors.formats.exposition import parser
from collectors.formats.exposition.parser import Grouper, Series
from collectors.model import Labels, Limits, Reading, Sample, ScrapeError
from server.push import names as push_names
from server.push.body import Body

# An answer names so many refused lines; how many there were it says too.
NAMED = 100
LIMITS = Limits(samples=50_000, labels=32, line_bytes=16 << 10)
_PARTS = ("_bucket", "_sum", "_count")
UNKNOWN_KEPT = 200


@dataclass(slots=True)
class ParsedText:
    """Outcome of one body. ``refused``: (line from 1, why) of the first `NAMED` ones; ``lost``: how many in all."""

    body: Body = field(default_factory=Body)
    refused: list[tuple[int, str]] = field(default_factory=list)
    lost: int = 0


@dataclass(slots=True)
class _Reader:
    """State of one pass over a body."""

    run: str
    step: int | None
    axis: str
    now: float
    taken: ParsedText = field(default_factory=ParsedText)
    samples: list[Sample] = field(default_factory=list)
    unmapped: dict[str, int] = field(default_factory=dict)
    grouper: Grouper = field(default_factory=Grouper)
    first: dict[tuple[str, Labels], tuple[int, int | None]] = field(default_factory=dict)

    def refuse(self, number: int, why: str) -> None:
        self.taken.lost += 1
        if len(self.taken.refused) < NAMED:
            self.taken.refused.append((number, why))

    def line(self, number: int, series: Series, value: float, stamp: int | None) -> None:
        """One sample, or a part of a histogram.

        Raises:
            ValueError: why it is refused.
        """
        metric = push_names.find(series.name)
        if metric is None:
            self.part(_histogram_of(series.name) or self.unknown(series.name), number, series, value, stamp)
            return
        labels = push_names.labels_of(series.labels, self.run)
        step = push_names.step_of(series.label("step")) if series.label("step") else self.step
        axis = push_names.axis_of(series.label("axis")) if series.label("axis") else self.axis
        ts = stamp / 1000 if stamp is not None else None
        self.samples.append(push_names.sample(metric, value, labels, ts, step, axis, self.now))

    def unknown(self, name: str) -> NoReturn:
        key = name[:200]
        if key in self.unmapped or len(self.unmapped) < UNKNOWN_KEPT:
            self.unmapped[key] = self.unmapped.get(key, 0) + 1
            raise ValueError(push_names.unknown(key))
        # Beyond that nobody reads them, and looking for near names takes a millisecond each.
        raise ValueError(f"no metric is named {name[:80]}")

    def part(self, metric: Metric, number: int, series: Series, value: float, stamp: int | None) -> None:
        family = next(series.name.removesuffix(part) for part in _PARTS if series.name.endswith(part))
        part, bound, labels = parser.split_bucket(series, family)
        if not part:
            raise ValueError("a bucket needs its bound, the label le")
        key = (metric.name, push_names.labels_of(labels, self.run, ("le",)))
        self.first.setdefault(key, (number, stamp))
        self.grouper.add(key, part, bound, value)

    def done(self) -> ParsedText:
        found = []
        for key, (edges, counts, total) in self.grouper.done():
            number, stamp = self.first.pop(key)
            ts = stamp / 1000 if stamp is not None else None
            try:
                found.append(push_names.histogram(METRICS[key[0]], edges, counts, total, key[1], ts, self.now))
            except ValueError as error:
                self.refuse(number, str(error))
        for key, (number, _) in self.first.items():
            self.refuse(number, self.grouper.flaws.get(key, f"{key[0]}: the histogram has no buckets"))
        return self._taken(Reading(samples=tuple(self.samples), histograms=tuple(found)))

    def _taken(self, reading: Reading) -> ParsedText:
        lost = self.taken.lost - sum(self.unmapped.values())
        self.taken.body = Body(
            Reading(
                samples=reading.samples, histograms=reading.histograms, unmapped=self.unmapped, dropped=max(0, lost),
                why_dropped=self._why(), samples_scraped=len(reading.samples) + self.taken.lost,
            )
        )  # fmt: skip
        return self.taken

    def _why(self) -> str:
        told = (why for _, why in self.taken.refused if not why.startswith("no metric is named"))
        return next(told, "")


def _histogram_of(name: str) -> Metric | None:
    """The histogram that a part belongs to."""
    family = next((name.removesuffix(part) for part in _PARTS if name.endswith(part)), "")
    metric = push_names.find(family) if family else None
    return metric if metric is not None and metric.kind == "histogram" else None


def parse(body: bytes, run: str, now: float, step: int | None = None, axis: str = "trainer") -> ParsedText:
    """Read a body.

    Args:
        now: epoch seconds, against which times of its own are checked.
        step, axis: of values of a step that have no labels of that name.

    Raises:
        ScrapeError: the body as a whole cannot be read (`parser.parse`).
    """
    reader = _Reader(run, step, axis, now)
    for number, found in parser.each(body, LIMITS):
        if isinstance(found, ScrapeError):
            reader.refuse(number, _words(str(found)))
            continue
        try:
            reader.line(number, *found)
        except ValueError as error:
            reader.refuse(number, str(error))
    return reader.done()


def _words(text: str) -> str:
    """Without "line 3": the number stands beside it."""
    head, _, rest = text.partition(" ")
    return text.split(" ", 2)[2].removeprefix("is ").removeprefix(": ") if head == "line" and rest else text
