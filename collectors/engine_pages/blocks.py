"""Converts KV-cache blocks to tokens, for engines that report blocks and tokens per block.

The collectors' tables map both to the intermediate names below; `in_tokens` replaces them by token metrics.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from collectors.model import Labels, Reading, Sample

SIZE = "blocks:size"
CAPACITY = "blocks:capacity"
USED = "blocks:used"
TOKENS: Mapping[str, str] = {CAPACITY: "kv_cache_capacity_tokens", USED: "kv_cache_used_tokens"}


def in_tokens(reading: Reading) -> Reading:
    """The reading with blocks converted to tokens. Blocks of unknown size are dropped."""
    sizes = {sample.labels: sample.value for sample in reading.samples if sample.metric == SIZE}
    return replace(reading, samples=tuple(_samples(reading.samples, sizes)))


def _samples(samples: tuple[Sample, ...], sizes: Mapping[Labels, float]) -> Iterator[Sample]:
    for sample in samples:
        if not sample.metric.startswith("blocks:"):
            yield sample
        elif sample.metric in TOKENS and sample.labels in sizes:
            yield replace(sample, metric=TOKENS[sample.metric], value=sample.value * sizes[sample.labels])
