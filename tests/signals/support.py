"""Views for signal tests, written as one would say them."""

from collections.abc import Mapping, Sequence

from collectors.model import Histogram, Labels
from server.signals.model import TargetState, View
from server.signals.observed_histograms import Histograms
from server.signals.window import Gauge, StepBook

NOW = 1_000_000.0


def book(rows: list[Mapping[str, float]], axis: str = "trainer", seconds: float = 30.0) -> StepBook:
    """One step per row, `seconds` apart, the last one at NOW."""
    steps = StepBook()
    add(steps, rows, axis, seconds)
    return steps


def add(steps: StepBook, rows: list[Mapping[str, float]], axis: str, seconds: float = 30.0) -> None:
    for number, row in enumerate(rows, 1):
        ts = NOW - (len(rows) - number) * seconds
        steps.put(axis, 1, number, ts, {(metric, ()): value for metric, value in row.items()})


def gauge(
    metric: str, *values: float, target: str = "e0", labels: Labels = (), every: float = 5.0, age: float = 0.0
) -> Gauge:
    """A series with one sample per value, `every` seconds apart, the newest `age` seconds old."""
    made = Gauge(target, metric, labels, carry=15.0)
    for number, value in enumerate(values, 1):
        made.add(NOW - age - (len(values) - number) * every, value)
    return made


Reading = tuple[Sequence[float], float]
"""(cumulative counts, sum) of one page."""


def histogram(
    histograms: Histograms, metric: str, edges: tuple[float, ...], *readings: Reading, target: str = "e0",
    labels: Labels = (), every: float = 5.0, age: float = 0.0,
) -> None:  # fmt: skip
    """Feed one reading per page, `every` seconds apart, the newest `age` seconds old."""
    for number, (counts, total) in enumerate(readings, 1):
        ts = NOW - age - (len(readings) - number) * every
        histograms.read(ts, target, Histogram(metric, edges, tuple(counts), total, labels), carry=15.0)


def health(name: str, actor: str, ok_age: float | None, *, up: bool = True, complete: bool = True) -> TargetState:
    """A target asked every 5 s; ``ok_age``: seconds since its last good answer (None: never)."""
    last_ok = NOW - ok_age if ok_age is not None else None
    return TargetState(name, "vllm", actor, up, NOW, last_ok, "" if complete else "cut")


def view(
    *gauges: Gauge, steps: StepBook | None = None, mode: str = "async", lifecycle: str = "running",
    targets: tuple[TargetState, ...] = (), histograms: Histograms | None = None, **facts: float | str,
) -> View:  # fmt: skip
    by_metric: dict[str, list[Gauge]] = {}
    for one in gauges:
        by_metric.setdefault(one.metric, []).append(one)
    observed = (histograms or Histograms()).by_metric()
    return View(NOW, mode, lifecycle, facts, by_metric, steps or StepBook(), targets, observed=observed)
