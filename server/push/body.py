"""What one push holds, and the bytes it waits as: in canonical names, already checked by whoever took it. Pure."""

import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from collectors.catalog import METRICS
from collectors.model import Actor, Histogram, Labels, Reading, Sample

# Most pushes are a few hundred bytes; of a large one the time to pack counts, and level 1 finds nearly all.
_LEVEL = 1
# One call into JSON holds every other thread up: a line takes it a few milliseconds, a whole body half a second.
_LINE_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class Grown:
    """A counter or histogram of one process among several that push the same: only its growth can be added up.

    Attributes:
        stream: stands for the process and the labels that were left away.
        delta: the value is what came since the one before; else since `start`, when the process began (epoch s).
    """

    stream: str
    delta: bool
    start: float
    value: Sample | Histogram


@dataclass(frozen=True, slots=True)
class Body:
    """One target's part of a push.

    Attributes:
        reading: values since the source began, and those of the moment or of a step.
        grown: what is to be added up with what other processes push, or with what came before.
    """

    reading: Reading = field(default_factory=Reading)
    grown: tuple[Grown, ...] = ()

    @property
    def rows(self) -> int:
        """How much it weighs in the inbox; at least 1."""
        return max(1, len(self.reading.samples) + len(self.reading.histograms) + len(self.grown))

    @property
    def empty(self) -> bool:
        """Does it say nothing at all, not even a name that nobody knows?"""
        reading = self.reading
        return not (reading.samples or reading.histograms or self.grown or reading.facts or reading.unmapped)

    def stated(self, facts: Mapping[str, str | float]) -> "Body":
        """The same, with facts of its run."""
        return replace(self, reading=replace(self.reading, facts=facts)) if facts else self

    def actor(self) -> Actor:
        """Whose numbers these are, mostly; a trainer's where they do not say."""
        values = (*self.reading.samples, *self.reading.histograms, *(one.value for one in self.grown))
        names = [value.metric for value in values]
        actors: list[Actor] = [METRICS[name].actor for name in names]
        return max(dict.fromkeys(actors), key=actors.count, default="trainer")


def pack(body: Body) -> bytes:
    """Bytes for the inbox: JSON lines, packed."""
    reading = body.reading
    head = {
        "facts": dict(reading.facts),
        "unmapped": dict(reading.unmapped),
        "dropped": reading.dropped,
        "why_dropped": reading.why_dropped,
        "scraped": reading.samples_scraped,
    }
    parts = {"samples": _samples(reading.samples), "histograms": _histograms(reading.histograms)}
    parts["grown"] = [_grown(one) for one in body.grown]
    lines = [json.dumps(head), *(_line(name, rows) for name, whole in parts.items() for rows in _chunks(whole))]
    return zlib.compress("\n".join(lines).encode(), _LEVEL)


def unpack(data: bytes) -> Body:
    """The reverse of `pack`.

    Raises:
        ValueError: not what `pack` made.
    """
    rows: dict[str, list[Any]] = {"samples": [], "histograms": [], "grown": []}
    try:
        first, *lines = zlib.decompress(data).decode().split("\n")
        head = json.loads(first)
        for line in lines:
            name, found = json.loads(line)
            rows[name] += found
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


def _grown(one: Grown) -> list[Any]:
    value = one.value
    rows = _samples([value]) if isinstance(value, Sample) else _histograms([value])
    return [one.stream, one.delta, one.start, isinstance(value, Sample), rows]


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
