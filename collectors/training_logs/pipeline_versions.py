"""PipelineRL's weight updates as policy versions: its own number is how many samples the trainer had processed.

`weight_update_request` tells of each update in order, the first before anything was trained (58d393458:
finetune_loop.py, `send_weight_update`). The n-th (from 0) is policy version n; a resumed trainer publishes a number it
has published before, and that is the same version again.
"""

from collections.abc import Iterable
from typing import Any

Runs = list[list[int]]
"""``[samples of the first, samples between two, how many, version of the first]``, oldest first: updates are regular,
so a long run takes a few. JSON-able."""

RUNS_MAX = 4_096


def add(runs: Runs, published: Iterable[int]) -> None:
    """Take updates in, in the order they were published."""
    for samples in published:
        _add(runs, samples)
        # So many would be another writer's; the newest are what rollouts are of.
        del runs[:-RUNS_MAX]


def _add(runs: Runs, samples: int) -> None:
    if not runs:
        runs.append([samples, 0, 1, 0])
        return
    start, each, count, version = last = runs[-1]
    newest = start + each * (count - 1)
    if samples > newest and (count == 1 or samples - newest == each):
        last[1], last[2] = samples - newest, count + 1
    elif samples != newest:
        known = version_of(runs, samples)
        runs.append([samples, 0, 1, known if known is not None else version + count])


def version_of(runs: Runs, samples: int) -> int | None:
    """The version whose weights had seen so many samples, by the newest life that published it; None: nobody told."""
    for start, each, count, version in reversed(runs):
        if samples == start:
            return version
        if each and 0 < samples - start <= each * (count - 1) and (samples - start) % each == 0:
            return version + (samples - start) // each
    return None


def published(row: dict[str, Any]) -> int | None:
    """The samples a record of the stream says were published; None for other records."""
    version = row.get("version")
    told = row.get("kind") == "weight_update_success" and isinstance(version, int) and not isinstance(version, bool)
    return version if told and isinstance(version, int) and version >= 0 else None
