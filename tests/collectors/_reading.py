"""Readings as JSON, for comparison with expected.json; and the paths of recorded bodies."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from collectors.model import Labels, Reading, Sample

TESTDATA = Path(__file__).parents[1] / "testdata"


def key(metric: str, labels: Labels) -> str:
    """As Prometheus would write it."""
    inside = ",".join(f'{name}="{value}"' for name, value in labels)
    return f"{metric}{{{inside}}}" if inside else metric


def page_json(reading: Reading) -> dict[str, Any]:
    """A page's reading: every value, every histogram with its edges, every unmapped family."""
    return {
        "samples": {key(s.metric, s.labels): s.value for s in reading.samples},
        "histograms": {
            key(h.metric, h.labels): {"edges": list(h.edges), "counts": list(h.counts), "total": h.total}
            for h in reading.histograms
        },
        "unmapped": dict(reading.unmapped),
        "samples_scraped": reading.samples_scraped,
    }


def steps_json(reading: Reading, steps: Iterable[int]) -> dict[str, Any]:
    """A tail's reading: the values of some steps, facts, events by kind."""
    wanted = set(steps)
    rows: dict[str, dict[str, float]] = defaultdict(dict)
    for sample in reading.samples:
        if sample.step in wanted:
            rows[f"{sample.axis} {sample.step}"][key(sample.metric, sample.labels)] = sample.value
    kinds: dict[str, int] = defaultdict(int)
    for event in reading.events:
        kinds[event.kind] += 1
    return {"steps": rows, "facts": dict(reading.facts), "events": kinds, "unmapped": dict(reading.unmapped)}


def by_step(samples: Iterable[Sample], metric: str, labels: Labels = (), axis: str = "trainer") -> dict[int, float]:
    """One metric's values by step."""
    return {
        sample.step: sample.value
        for sample in samples
        if (sample.metric, sample.labels, sample.axis) == (metric, labels, axis) and sample.step is not None
    }


def value(reading: Reading, metric: str, labels: Labels = ()) -> float:
    """The one value of a metric; fails when there are none or two."""
    (found,) = [s.value for s in reading.samples if (s.metric, s.labels) == (metric, labels)]
    return found
