"""Samples that are ready for the trainer, from a queue in samples or in groups."""

from collections.abc import Callable

from server.signals.model import View
from server.signals.window import Gauge

INPUTS = ("queue_samples", "queue_groups")


def waiting(view: View, fold: Callable[[list[Gauge]], float]) -> float | None:
    """Samples in the queue; None when no source reports it.

    SkyRL reports the queue live in groups and once per step in samples; groups are preferred, the two are never added.
    """
    size, groups = view.fact("group_size"), view.fresh("queue_groups")
    if size and groups:
        return fold(groups) * size
    samples = view.fresh("queue_samples")
    return fold(samples) if samples else None
