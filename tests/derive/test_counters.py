"""Counters of ours: each thing once, whoever tells of it."""

from server import signals
from server.derive.deriver import Counters
from server.signals import Counter

KEY = ("otlp", (("cause", "image"), ("region", "eu")))


def failures(counting: Counters) -> dict[tuple[tuple[str, str], ...], float]:
    return {value.labels: value.value for name, value in counting.values() if name == "sandbox_failures_total"}


def counting() -> Counters:
    return Counters(item for item in signals.load() if isinstance(item, Counter))


def test_failures_that_a_source_only_counts() -> None:
    """OTLP of ROCK and Daytona: 3, then 2 more, a process that began anew with 1; regions are added up."""
    found = counting()
    for ts, value in enumerate((0.0, 3.0, 5.0, 1.0)):
        found.sample("sandbox_failures_total", float(ts), KEY, value, counted=False)
    other = ("otlp", (("cause", "image"), ("region", "us")))
    for ts, value in enumerate((2.0, 4.0)):
        found.sample("sandbox_failures_total", float(ts), other, value, counted=False)
    assert failures(found) == {(("cause", "image"),): 8.0}


def test_where_records_are_read_they_count_and_count_once() -> None:
    found = counting()
    found.recorded = True
    for ts, value in enumerate((0.0, 3.0)):
        found.sample("sandbox_failures_total", float(ts), KEY, value, counted=False)
    assert sum(failures(found).values()) == 0.0
    # What came while records were read stays theirs when they end: it is the base of what comes after.
    found.recorded = False
    found.sample("sandbox_failures_total", 9.0, KEY, 4.0, counted=False)
    assert failures(found) == {(("cause", "image"),): 1.0}
