"""Engines that tell blocks and tokens per block instead of tokens: the two multiplied.

The collectors' tables map both to names of this file, which leave it again only as tokens.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from collectors.model import Labels, Reading, Sample

SIZE, MOST, USED = "blocks:size", "blocks:most", "blocks:used"
TOKENS: Mapping[str, str] = {MOST: "kv_cache_capacity_tokens", USED: "kv_cache_used_tokens"}


def in_tokens(reading: Reading) -> Reading:
    """The reading with blocks as tokens; blocks of unknown size are left out."""
    sizes = {sample.labels: sample.value for sample in reading.samples if sample.metric == SIZE}
    return replace(reading, samples=tuple(_samples(reading.samples, sizes)))


def _samples(samples: tuple[Sample, ...], sizes: Mapping[Labels, float]) -> Iterator[Sample]:
    for sample in samples:
        if not sample.metric.startswith("blocks:"):
            yield sample
        elif sample.metric in TOKENS and sample.labels in sizes:
            yield replace(sample, metric=TOKENS[sample.metric], value=sample.value * sizes[sample.labels])
