"""Validates names and values of pushed metrics against the catalogue. Pure.

Every refusal is a message for the client.
"""

import difflib
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import NoReturn

from collectors.catalog import METRICS, Metric
from collectors.formats import exposition
from collectors.formats.exposition import Grouper, Series
from collectors.model import FIRST_TIME, Histogram, Labels, Limits, Reading, Sample, ScrapeError
from server.ingest.readings import AHEAD_SECONDS, LAST_STEP
from server.push.inbox import Body

PREFIX = "rollscope_"
# Most labels of a sample.
LABELS = 16
# Longest label value, characters. A label with unbounded values (a rollout id) would make one series each.
LABEL_LENGTH = 200
# Longest axis name, characters.
AXIS_LENGTH = 40
# Most buckets of a histogram.
EDGES = 500
# Labels that Rollscope writes, or that only determine where a value belongs.
_OURS = frozenset({"target", "run", "step", "axis"})


def find(name: str) -> Metric | None:
    """Returns the catalogue row of a name with or without the prefix."""
    return METRICS.get(name) or METRICS.get(name.removeprefix(PREFIX))


@lru_cache(maxsize=1024)
def unknown(name: str) -> str:
    """Returns why a name is refused, with similar names."""
    near = difflib.get_close_matches(name[:80].removeprefix(PREFIX), _names(), 3, 0.5)
    hint = f"; did you mean {', '.join(near)}?" if near else "; the names are those of /api/v1/metrics"
    return f"no metric is named {name[:80]}{hint}"


@lru_cache(maxsize=1)
def _names() -> Sequence[str]:
    return tuple(METRICS)


def labels_of(pairs: Labels, run: str, drop: Collection[str] = ()) -> Labels:
    """Returns the labels to store: without those that only determine where a value belongs.

    Raises:
        ValueError: too many, too long, or of another run.
    """
    labels: list[tuple[str, str]] = []
    for name, value in pairs:
        if name == "run" and value != run:
            raise ValueError(f"its label run is {value[:80]!r}, the request's run is {run!r}")
        if name not in _OURS and name not in drop and value:
            if len(value) > LABEL_LENGTH:
                raise ValueError(f"label {name[:80]} is longer than {LABEL_LENGTH} characters")
            labels.append((name, value.replace("\0", "")))
    if len(labels) > LABELS:
        raise ValueError(f"more than {LABELS} labels")
    return tuple(sorted(labels))


def sample(
    metric: Metric, value: float, labels: Labels, ts: float | None, step: int | None, axis: str, now: float
) -> Sample:
    """Returns a validated sample. ``step``: None, or as `step_of` parses it.

    Raises:
        ValueError: why the catalogue rules the value out.
    """
    if metric.kind == "histogram":
        raise ValueError(f"{metric.name} is a histogram: send {metric.name}_bucket, _sum and _count")
    if not math.isfinite(value):
        raise ValueError("not a finite number: omit values that are unknown")
    if why := metric.cannot_be(value):
        raise ValueError(why)
    if metric.reduction == "per_step" and step is None:
        raise ValueError(f"{metric.name} is a value of one step: give it a label step, or ?step=N to the request")
    if metric.kind == "counter":
        step = None  # a counter is cumulative since process start, so it belongs to no step
    return Sample(metric.name, value, labels, time_of(ts, now), step, axis if step is not None else "")


def step_of(text: str) -> int:
    """Parses a step number.

    Raises:
        ValueError: not a step number.
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= 13 and int(text) <= LAST_STEP):
        raise ValueError("step must be a whole number from 0 to 10^12")
    return int(text)


def axis_of(text: str) -> str:
    """Validates the name of the counter that numbers steps.

    Raises:
        ValueError: not a short identifier.
    """
    if not (text.isascii() and text.isidentifier() and len(text) <= AXIS_LENGTH):
        raise ValueError(f"axis must be a word of at most {AXIS_LENGTH} letters, such as trainer or orchestrator")
    return text


def time_of(ts: float | None, now: float) -> float | None:
    """Validates a value's own time, epoch seconds.

    Raises:
        ValueError: implausible time.
    """
    if ts is not None and not FIRST_TIME <= ts <= now + AHEAD_SECONDS:
        raise ValueError("its time is before 2000 or more than a day ahead (expected: milliseconds since 1970)")
    return ts


def histogram(
    metric: Metric, edges: Sequence[float], counts: Sequence[float], total: float, labels: Labels, ts: float | None,
    now: float,
) -> Histogram:  # fmt: skip
    """Returns a validated histogram with its own edges; ``counts`` are cumulative, one more than edges.

    Raises:
        ValueError: why it is refused.
    """
    if len(edges) > EDGES:
        raise ValueError(f"more than {EDGES} buckets")
    if len(counts) != len(edges) + 1 or not all(map(math.isfinite, (*edges, *counts, total))):
        raise ValueError(f"{metric.name}: the buckets are not complete and finite")
    if any(a >= b for a, b in pairwise(edges)) or any(a > b for a, b in pairwise((0.0, *counts))):
        raise ValueError(f"{metric.name}: edges must grow, and counts must be cumulative")
    return Histogram(metric.name, tuple(edges), tuple(counts), total, labels, time_of(ts, now))


# ---- exposition text
# Parses a pushed body in exposition text; reports refused lines with reasons.

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
        metric = find(series.name)
        if metric is None:
            self.part(_histogram_of(series.name) or self.unknown(series.name), number, series, value, stamp)
            return
        labels = labels_of(series.labels, self.run)
        step = step_of(series.label("step")) if series.label("step") else self.step
        axis = axis_of(series.label("axis")) if series.label("axis") else self.axis
        ts = stamp / 1000 if stamp is not None else None
        self.samples.append(sample(metric, value, labels, ts, step, axis, self.now))

    def unknown(self, name: str) -> NoReturn:
        key = name[:200]
        if key in self.unmapped or len(self.unmapped) < MAX_UNKNOWN:
            self.unmapped[key] = self.unmapped.get(key, 0) + 1
            raise ValueError(unknown(key))
        # Without suggestions, because a search for similar names takes a millisecond each.
        raise ValueError(f"no metric is named {name[:80]}")

    def part(self, metric: Metric, number: int, series: Series, value: float, stamp: int | None) -> None:
        family = next(series.name.removesuffix(part) for part in _PARTS if series.name.endswith(part))
        part, bound, labels = exposition.split_bucket(series, family)
        if not part:
            raise ValueError("a bucket needs its bound, the label le")
        key = (metric.name, labels_of(labels, self.run, ("le",)))
        self.first.setdefault(key, (number, stamp))
        self.grouper.add(key, part, bound, value)

    def done(self) -> ParsedText:
        histograms = []
        for key, (edges, counts, total) in self.grouper.done():
            number, stamp = self.first.pop(key)
            ts = stamp / 1000 if stamp is not None else None
            try:
                histograms.append(histogram(METRICS[key[0]], edges, counts, total, key[1], ts, self.now))
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
    metric = find(family) if family else None
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
    for number, family in exposition.each(body, LIMITS):
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
