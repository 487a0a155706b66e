"""Sandboxes that live on although the run they belong to does not: they hold quota, and cost."""

from server.signals._model import Answer, Signal, Value, View
from server.signals._sandboxes import NO_SOURCE, missing


def _compute(view: View) -> Answer:
    over = len(view.sandboxes.own) if view.lifecycle in ("finished", "crashed") else 0
    return missing(view) or [Value(float(len(view.sandboxes.foreign) + over))]


SIGNAL = Signal(
    name="sandboxes_dangling",
    title="Dangling sandboxes",
    unit="sandboxes",
    actor="sandbox",
    help="Live sandboxes in the run's accounts whose run has ended or is unknown.",
    inputs=(),
    cadence="tick",
    compute=_compute,
    hint=NO_SOURCE,
    watch=1.0,
)
