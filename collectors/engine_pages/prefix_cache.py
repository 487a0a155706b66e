"""Selects one of SGLang's two kinds of prefix-cache counters: live, or updated when a request ends.

The live counters (0.5.23) are preferred, but some engines have them and leave them at zero. Only the values show which
kind an engine uses. So the tables map the live counters to the intermediate names below, and `select_counters` renames
them to catalogue names or drops them.
"""

from collections.abc import Mapping
from dataclasses import replace

from collectors.model import Labels, Reading, Sample

QUERIES = "prefix:queries_total"
HITS = "prefix:hits_total"
_NAMES: Mapping[str, str] = {QUERIES: "prefix_cache_queries_total", HITS: "prefix_cache_hits_total"}
_FROM_ENDED_REQUESTS = frozenset(_NAMES.values())


def select_counters(reading: Reading) -> Reading:
    """The reading with the live counters of each process that uses them, else with those of its ended requests."""
    queries: dict[Labels, float] = {}
    for sample in reading.samples:
        if sample.metric == QUERIES:
            queries[_process(sample)] = queries.get(_process(sample), 0.0) + sample.value
    if not queries:
        return reading
    ended = {_process(sample) for sample in reading.samples if sample.metric in _FROM_ENDED_REQUESTS}
    live = {process for process, count in queries.items() if count > 0 or process not in ended}
    samples = [_renamed(sample) for sample in reading.samples if _selected(sample, live)]
    return replace(reading, samples=tuple(samples))


def _process(sample: Sample) -> Labels:
    return tuple(pair for pair in sample.labels if pair[0] == "replica")


def _selected(sample: Sample, live: set[Labels]) -> bool:
    if sample.metric in _NAMES:
        return _process(sample) in live
    return sample.metric not in _FROM_ENDED_REQUESTS or _process(sample) not in live


def _renamed(sample: Sample) -> Sample:
    return replace(sample, metric=_NAMES[sample.metric]) if sample.metric in _NAMES else sample
