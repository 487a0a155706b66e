"""A source that began anew, told by the time its process began.

A counter that shows less than before says so itself; one that has grown beyond its old value by the next page does not.
Pure.
"""

from collections.abc import Iterator, Mapping

from collectors.catalog import METRICS
from collectors.model import Labels
from server.signals.observed_histograms import Histograms
from server.signals.window import Gauge

STARTED = "generator_start_time_seconds"
# Some work their start time out of the machine's clock anew for each page.
JITTER_SECONDS = 1.0

Series = Mapping[str, Mapping[tuple[str, Labels], Gauge]]


def begun(
    gauges: Series, histograms: Histograms, ts: float, target: str, labels: Labels, since: float
) -> list[tuple[float, str, str, Labels, float]]:
    """What a page of `ts` that tells this start time says of the time before it: each counter was zero at the start.

    Nothing where the process is one of those known. The next reading of its histograms counts whole.
    """
    at = _began(gauges.get(STARTED, {}).get((target, labels)), ts, since)
    if at is None:
        return []
    histograms.begin(target, labels)
    return [(at, target, metric, own, 0.0) for metric, own in _counting(gauges, target, labels)]


def _began(known: Gauge | None, ts: float, since: float) -> float | None:
    """When, on the clock of the pages, a process other than those known began; None: it is one of them.

    Two that answer by turns are no restarts: it must be younger than all of the last minutes.
    """
    if known is None or since == known.last or since <= max(value for _, value in known.points) + JITTER_SECONDS:
        return None
    # By its own machine's clock, where that can be right: after the last page of the one before.
    return since if known.last_ts < since < ts else (known.last_ts + ts) / 2


def _counting(gauges: Series, target: str, labels: Labels) -> Iterator[tuple[str, Labels]]:
    """(metric, labels) of the counters that the process tells: those of its page, or of its replica."""
    for metric, series in gauges.items():
        if metric in METRICS and METRICS[metric].kind == "counter":
            for name, own in series:
                if name == target and set(labels) <= set(own):
                    yield metric, own
