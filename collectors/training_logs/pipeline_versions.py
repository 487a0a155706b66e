"""Policy versions of PipelineRL. Its own number of a weight update is the count of samples the trainer had processed.

The stream `weight_update_request` has each update in order, the first before any training (58d393458:
finetune_loop.py, `send_weight_update`). The n-th update (from 0) is policy version n. A resumed trainer publishes
numbers again that it published before; those are the same versions.
"""

from collections.abc import Iterable
from typing import Any

Runs = list[list[int]]
"""``[samples of the first, samples between two, count, version of the first]``, oldest first. Updates are regular, so
a long run has few entries. JSON-able."""

# More entries are another writer's; rollouts are of the newest versions.
RUNS_MAX = 4_096


def add(runs: Runs, published: Iterable[int]) -> None:
    """Adds updates in the order they were published."""
    for samples in published:
        _add(runs, samples)
        del runs[:-RUNS_MAX]


def _add(runs: Runs, samples: int) -> None:
    if not runs:
        runs.append([samples, 0, 1, 0])
        return
    start, interval, count, version = last = runs[-1]
    newest = start + interval * (count - 1)
    if samples > newest and (count == 1 or samples - newest == interval):
        last[1], last[2] = samples - newest, count + 1
    elif samples != newest:
        same = version_of(runs, samples)
        runs.append([samples, 0, 1, same if same is not None else version + count])


def version_of(runs: Runs, samples: int) -> int | None:
    """The version whose weights had seen this number of samples, by the newest incarnation; None: not published."""
    for start, interval, count, version in reversed(runs):
        if samples == start:
            return version
        if interval and 0 < samples - start <= interval * (count - 1) and (samples - start) % interval == 0:
            return version + (samples - start) // interval
    return None


def published(row: dict[str, Any]) -> int | None:
    """The published number of samples in a record of the stream; None for other records."""
    version = row.get("version")
    valid = row.get("kind") == "weight_update_success" and isinstance(version, int) and not isinstance(version, bool)
    return version if valid and isinstance(version, int) and version >= 0 else None
