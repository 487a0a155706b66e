"""SGLang counts what it looked up in the prefix cache twice: live, and when a request ends. One of them counts.

The live counters (0.5.23) come first, but some engines have them and leave them at zero. Who counts there by itself or
by the requests' ends is only known by the values: the tables map the live ones to names of this file, which leave it
again as those of the catalogue, or not at all.
"""

from collections.abc import Mapping
from dataclasses import replace

from collectors.model import Labels, Reading, Sample

QUERIES, HITS = "prefix:queries_total", "prefix:hits_total"
_NAMES: Mapping[str, str] = {QUERIES: "prefix_cache_queries_total", HITS: "prefix_cache_hits_total"}
_AT_THE_END = frozenset(_NAMES.values())


def counted_once(reading: Reading) -> Reading:
    """The reading with the live counters of each process that moves them, else with those of its ended requests."""
    queries: dict[Labels, float] = {}
    for sample in reading.samples:
        if sample.metric == QUERIES:
            queries[_process(sample)] = queries.get(_process(sample), 0.0) + sample.value
    if not queries:
        return reading
    ended = {_process(sample) for sample in reading.samples if sample.metric in _AT_THE_END}
    live = {process for process, count in queries.items() if count > 0 or process not in ended}
    kept = [_named(sample) for sample in reading.samples if _counts(sample, live)]
    return replace(reading, samples=tuple(kept))


def _process(sample: Sample) -> Labels:
    return tuple(pair for pair in sample.labels if pair[0] == "replica")


def _counts(sample: Sample, live: set[Labels]) -> bool:
    if sample.metric in _NAMES:
        return _process(sample) in live
    return sample.metric not in _AT_THE_END or _process(sample) not in live


def _named(sample: Sample) -> Sample:
    return replace(sample, metric=_NAMES[sample.metric]) if sample.metric in _NAMES else sample
