"""What is ready for the trainer, in samples, whoever counts it in what."""

from collections.abc import Callable

from server.signals.model import View
from server.signals.window import Gauge

INPUTS = ("queue_samples", "queue_groups")


def waiting(view: View, fold: Callable[[list[Gauge]], float]) -> float | None:
    """Samples in the queue; None when nobody reports it.

    Groups are counted live (SkyRL), the same queue in samples once per step: one of the two is taken, never both.
    """
    size, groups = view.fact("group_size"), view.fresh("queue_groups")
    if size and groups:
        return fold(groups) * size
    samples = view.fresh("queue_samples")
    return fold(samples) if samples else None
