"""The state of the queue over a window: whether both sides move, as Burrow judges the lag of a consumer. Pure.

Producer and consumer are sampled at the same instant. A window that is not full gives no state.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from server.verdict.thresholds import (
    QUEUE_HELD,
    QUEUE_KEPT,
    QUEUE_LEAST,
    QUEUE_PER_STEP,
    QUEUE_SPACING,
    STILL_SECONDS,
    STILL_STEPS,
)

State = Literal["unknown", "ok", "starved", "stall", "stop", "rewind", "gated"]

TEXTS: dict[State, str] = {
    "unknown": "the queue's window is not full yet",
    "ok": "samples arrive in the queue and are taken",
    "starved": "less than one batch waits when the trainer is ready",
    "stall": "batches wait and the trainer takes none",
    "stop": "no samples arrive and none are taken",
    "rewind": "the policy version went back: the trainer restarted",
    "gated": "production is held although the trainer waits or takes",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """Both sides at one instant: samples in the queue, the published policy version, samples per batch."""

    ts: float
    queue: float
    version: float
    batch: float


def spacing(step: float | None) -> float:
    """Returns the seconds between two samples."""
    return max(QUEUE_SPACING, (step or 0.0) / QUEUE_PER_STEP)


def add(samples: Sequence[Sample], new: Sample, step: float | None) -> list[Sample]:
    """Returns the samples of the window with the newest one, if the spacing has passed."""
    if samples and new.ts - samples[-1].ts < spacing(step):
        return list(samples)
    return [*samples, new][-QUEUE_KEPT:]


def state(samples: Sequence[Sample], step: float | None, hold_ratio: float | None, wait: float | None) -> State:
    """Returns the state that the window shows.

    Args:
        step: seconds of a step; hold_ratio: share of the time production was held; wait: the trainer's.
    """
    gaps = [after.ts - before.ts for before, after in pairwise(samples)]
    if len(samples) < QUEUE_LEAST or max(gaps) > 3 * spacing(step):
        return "unknown"
    if any(after.version < before.version for before, after in pairwise(samples)):
        return "rewind"
    if _still(samples, step):
        return "stall" if min(sample.queue / sample.batch for sample in samples) >= 1 else "stop"
    if (hold_ratio or 0.0) >= QUEUE_HELD:
        return "gated"
    return "starved" if _starved(samples) and (wait or 0.0) > 0.05 else "ok"


def _still(samples: Sequence[Sample], step: float | None) -> bool:
    """Returns whether no version was published and no batch was taken for longer than a step can take."""
    newest = samples[-1].ts
    limit = max(STILL_SECONDS, STILL_STEPS * (step or 0.0))
    within = [sample for sample in samples if newest - sample.ts <= limit]
    if newest - samples[0].ts < limit:
        return False
    is_consumed = any(after.queue < before.queue for before, after in pairwise(within))
    return not is_consumed and within[0].version == within[-1].version


def _starved(samples: Sequence[Sample]) -> bool:
    """Returns whether the queue mostly holds less than a batch just before one is taken: 500 of 512 is starved."""
    before_updates = [before for before, after in pairwise(samples) if after.version > before.version]
    ready = before_updates or samples
    return sum(sample.queue < sample.batch for sample in ready) > len(ready) / 2
