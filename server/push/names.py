"""Validates names and values of pushed metrics against the catalogue. Pure.

Every refusal is a message for the client.
"""

import difflib
import math
from collections.abc import Collection, Sequence
from functools import lru_cache
from itertools import pairwise

from collectors.catalog import METRICS, Metric
from collectors.model import Histogram, Labels, Sample
from server.ingest.validation import AHEAD_SECONDS, FIRST_TIME, LAST_STEP

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
