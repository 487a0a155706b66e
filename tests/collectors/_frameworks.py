"""Runs of trainer frameworks as their collectors read them: whole, live, rewritten."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from collectors.model import Collector, Limits, Reading, ScrapeError
from tests.collectors._reading import key

NOW = 1_795_260_000.0
Values = dict[tuple[str, int, str], float]


def tail(collector: Collector, path: Path, cursor: Any = None, now: float = NOW, **limits: int) -> Reading:
    """One call, with a cursor that has been through JSON as the store's is."""
    assert collector.tail is not None
    return collector.tail(path, json.loads(json.dumps(cursor or {})), Limits(**limits), now)


def values(reading: Reading, step: int, axis: str = "trainer") -> dict[str, float]:
    """Values of one step."""
    return {name: value for (a, s, name), value in collected([reading]).items() if (a, s) == (axis, step)}


def collected(readings: Iterable[Reading]) -> Values:
    """Every value by axis, step and metric; the later word wins, as in the store."""
    found: Values = {}
    for sample in (sample for reading in readings for sample in reading.samples):
        if sample.step is not None:
            found[sample.axis, sample.step, key(sample.metric, sample.labels)] = sample.value
    return found


def live(collector: Collector, source: Path, target: Path, chunk: int = 997) -> list[Reading]:
    """Readings of a file that grows in odd pieces; before there is anything to know, it is no run."""
    readings: list[Reading] = []
    cursor: Any = {}
    for part in _parts(source.read_bytes(), chunk):
        with target.open("ab") as file:
            file.write(part)
        try:
            readings.append(tail(collector, target, cursor))
        except ScrapeError as error:
            assert error.kind == "not_a_run" and not cursor
            continue
        cursor = readings[-1].cursor
    return readings


def counts(readings: Iterable[Reading], metric: str) -> dict[int, int]:
    """How often a metric was told for each step."""
    found: dict[int, int] = {}
    for sample in (sample for reading in readings for sample in reading.samples):
        if sample.metric == metric and sample.step is not None:
            found[sample.step] = found.get(sample.step, 0) + 1
    return found


def in_parts(collector: Collector, path: Path, rows: int) -> list[Reading]:
    """Readings of a whole run, so many rows at a time."""
    readings: list[Reading] = []
    cursor: Any = {}
    while not readings or readings[-1].more:
        readings.append(tail(collector, path, cursor, tail_rows=rows))
        cursor = readings[-1].cursor
    assert tail(collector, path, cursor).samples == ()
    return readings


def _parts(data: bytes, size: int) -> Iterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]
