"""Parses a pushed body in exposition text; reports refused lines with reasons. Pure."""

from dataclasses import dataclass, field
from typing import NoReturn

from collectors.catalog import METRICS, Metric
from collectors.formats.exposition import parser
from collectors.formats.exposition.parser import Grouper, Series
from collectors.model import Labels, Limits, Reading, Sample, ScrapeError
from server.push import names as push_names
from server.push.body import Body

# Refused lines listed in an answer; all are counted.
NAMED = 100
LIMITS = Limits(samples=50_000, labels=32, line_bytes=16 << 10)
_PARTS = ("_bucket", "_sum", "_count")
# Unknown names counted per body.
MAX_UNKNOWN = 200


@dataclass(slots=True)
class ParsedText:
    """Outcome of one body. ``refused``: (line from 1, reason) of the first `NAMED`; ``lost``: number of all."""

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
    result: ParsedText = field(default_factory=ParsedText)
    samples: list[Sample] = field(default_factory=list)
    unmapped: dict[str, int] = field(default_factory=dict)
    grouper: Grouper = field(default_factory=Grouper)
    first: dict[tuple[str, Labels], tuple[int, int | None]] = field(default_factory=dict)

    def refuse(self, number: int, why: str) -> None:
        self.result.lost += 1
        if len(self.result.refused) < NAMED:
            self.result.refused.append((number, why))

    def line(self, number: int, series: Series, value: float, stamp: int | None) -> None:
        """Adds one sample, or a part of a histogram.

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
        if key in self.unmapped or len(self.unmapped) < MAX_UNKNOWN:
            self.unmapped[key] = self.unmapped.get(key, 0) + 1
            raise ValueError(push_names.unknown(key))
        # Without suggestions, because a search for similar names takes a millisecond each.
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
        histograms = []
        for key, (edges, counts, total) in self.grouper.done():
            number, stamp = self.first.pop(key)
            ts = stamp / 1000 if stamp is not None else None
            try:
                histograms.append(push_names.histogram(METRICS[key[0]], edges, counts, total, key[1], ts, self.now))
            except ValueError as error:
                self.refuse(number, str(error))
        for key, (number, _) in self.first.items():
            self.refuse(number, self.grouper.flaws.get(key, f"{key[0]}: the histogram has no buckets"))
        return self._parsed_text(Reading(samples=tuple(self.samples), histograms=tuple(histograms)))

    def _parsed_text(self, reading: Reading) -> ParsedText:
        lost = self.result.lost - sum(self.unmapped.values())
        self.result.body = Body(
            Reading(
                samples=reading.samples, histograms=reading.histograms, unmapped=self.unmapped, dropped=max(0, lost),
                why_dropped=self._why(), samples_scraped=len(reading.samples) + self.result.lost,
            )
        )  # fmt: skip
        return self.result

    def _why(self) -> str:
        reasons = (why for _, why in self.result.refused if not why.startswith("no metric is named"))
        return next(reasons, "")


def _histogram_of(name: str) -> Metric | None:
    """Returns the histogram that a series is a part of."""
    family = next((name.removesuffix(part) for part in _PARTS if name.endswith(part)), "")
    metric = push_names.find(family) if family else None
    return metric if metric is not None and metric.kind == "histogram" else None


def parse(body: bytes, run: str, now: float, step: int | None = None, axis: str = "trainer") -> ParsedText:
    """Parses a body.

    Args:
        now: epoch seconds, against which times are checked.
        step, axis: of per-step values without labels of that name.

    Raises:
        ScrapeError: the body as a whole cannot be read (`parser.parse`).
    """
    reader = _Reader(run, step, axis, now)
    for number, family in parser.each(body, LIMITS):
        if isinstance(family, ScrapeError):
            reader.refuse(number, _without_line(str(family)))
            continue
        try:
            reader.line(number, *family)
        except ValueError as error:
            reader.refuse(number, str(error))
    return reader.done()


def _without_line(text: str) -> str:
    """Removes "line 3", because the number is reported separately."""
    head, _, rest = text.partition(" ")
    return text.split(" ", 2)[2].removeprefix("is ").removeprefix(": ") if head == "line" and rest else text
