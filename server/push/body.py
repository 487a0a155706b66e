"""Contents of one push in canonical, validated names, and their packed form in the inbox. Pure."""

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msgspec import structs

from collectors.catalog import METRICS
from collectors.model import Actor, Histogram, Labels, Reading, Sample

# zlib level: level 1 finds nearly all redundancy, and for large pushes the time to pack matters.
_LEVEL = 1
# Rows of one JSON line. Parsing blocks all other threads: a line takes some milliseconds, a whole body half a second.
_LINE_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class Grown:
    """A counter or histogram of one of several processes that push the same metric: only increases are added up.

    Attributes:
        stream: id of the process and of the dropped labels.
        delta: the value counts since the previous push; otherwise since `start`, the process start (epoch s).
    """

    stream: str
    delta: bool
    start: float
    value: Sample | Histogram


@dataclass(frozen=True, slots=True)
class Body:
    """One target's part of a push.

    Attributes:
        reading: gauges, values of steps, and totals since the source began.
        grown: values to be added up over processes or pushes.
    """

    reading: Reading = field(default_factory=Reading)
    grown: tuple[Grown, ...] = ()

    @property
    def rows(self) -> int:
        """Weight in the inbox, at least 1."""
        return max(1, len(self.reading.samples) + len(self.reading.histograms) + len(self.grown))

    @property
    def empty(self) -> bool:
        """Is there nothing at all, not even an unknown name?"""
        reading = self.reading
        return not (reading.samples or reading.histograms or self.grown or reading.facts or reading.unmapped)

    def stated(self, facts: Mapping[str, str | float]) -> "Body":
        """Returns a copy with facts of its run."""
        return replace(self, reading=structs.replace(self.reading, facts=facts)) if facts else self

    def actor(self) -> Actor:
        """Returns the actor of most of the values; the trainer if there are none."""
        values = (*self.reading.samples, *self.reading.histograms, *(item.value for item in self.grown))
        names = [value.metric for value in values]
        actors: list[Actor] = [METRICS[name].actor for name in names]
        return max(dict.fromkeys(actors), key=actors.count, default="trainer")


def pack(body: Body) -> bytes:
    """Returns bytes for the inbox: compressed JSON lines."""
    reading = body.reading
    head = {
        "facts": dict(reading.facts),
        "unmapped": dict(reading.unmapped),
        "dropped": reading.dropped,
        "why_dropped": reading.why_dropped,
        "scraped": reading.samples_scraped,
    }
    parts = {"samples": _samples(reading.samples), "histograms": _histograms(reading.histograms)}
    parts["grown"] = [_grown(item) for item in body.grown]
    lines = [json.dumps(head), *(_line(name, rows) for name, whole in parts.items() for rows in _chunks(whole))]
    return zlib.compress("\n".join(lines).encode(), _LEVEL)


def unpack(data: bytes) -> Body:
    """Returns the body that `pack` packed.

    Raises:
        ValueError: not made by `pack`.
    """
    rows: dict[str, list[Any]] = {"samples": [], "histograms": [], "grown": []}
    try:
        first, *lines = zlib.decompress(data).decode().split("\n")
        head = json.loads(first)
        for line in lines:
            name, value = json.loads(line)
            rows[name] += value
        reading = Reading(
            samples=_samples_of(rows["samples"]), histograms=_histograms_of(rows["histograms"]),
            facts=head["facts"], unmapped=head["unmapped"], dropped=head["dropped"],
            why_dropped=head["why_dropped"], samples_scraped=head["scraped"],
        )  # fmt: skip
        return Body(reading, tuple(_grown_of(*row) for row in rows["grown"]))
    except (zlib.error, KeyError, TypeError) as error:
        raise ValueError(f"not a packed push: {type(error).__name__}") from None


def _line(name: str, rows: Sequence[Any]) -> str:
    return json.dumps([name, rows], separators=(",", ":"))


def _chunks(rows: Sequence[Any]) -> Iterator[Sequence[Any]]:
    return (rows[at : at + _LINE_ROWS] for at in range(0, len(rows), _LINE_ROWS))


def _samples(samples: Iterable[Sample]) -> list[list[Any]]:
    return [[s.metric, s.value, s.labels, s.ts, s.step, s.axis] for s in samples]


def _histograms(histograms: Iterable[Histogram]) -> list[list[Any]]:
    return [[h.metric, h.edges, h.counts, h.total, h.labels, h.ts] for h in histograms]


def _grown(item: Grown) -> list[Any]:
    value = item.value
    rows = _samples([value]) if isinstance(value, Sample) else _histograms([value])
    return [item.stream, item.delta, item.start, isinstance(value, Sample), rows]


def _grown_of(stream: str, delta: bool, start: float, plain: bool, rows: Iterable[Sequence[Any]]) -> Grown:
    values: Sequence[Sample | Histogram] = _samples_of(rows) if plain else _histograms_of(rows)
    return Grown(stream, delta, start, values[0])


def _samples_of(rows: Iterable[Sequence[Any]]) -> tuple[Sample, ...]:
    return tuple(
        Sample(metric, value, _labels(labels), ts, step, axis) for metric, value, labels, ts, step, axis in rows
    )


def _histograms_of(rows: Iterable[Sequence[Any]]) -> tuple[Histogram, ...]:
    return tuple(
        Histogram(metric, tuple(edges), tuple(counts), total, _labels(labels), ts)
        for metric, edges, counts, total, labels, ts in rows
    )


def _labels(pairs: Iterable[Sequence[str]]) -> Labels:
    return tuple((name, value) for name, value in pairs)
