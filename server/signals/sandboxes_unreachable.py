"""Sandboxes that run by their provider's word and do not answer."""

from server.signals._model import Answer, Signal, Value, View
from server.signals._sandboxes import NO_SOURCE, missing


def _compute(view: View) -> Answer:
    lost = sum(1 for record in view.sandboxes.own.values() if record.unreachable)
    return missing(view) or [Value(float(lost))]


SIGNAL = Signal(
    name="sandboxes_unreachable",
    title="Unreachable sandboxes",
    unit="sandboxes",
    actor="sandbox",
    help="Sandboxes that the provider reports as running but that do not respond (if the provider reports it).",
    inputs=(),
    cadence="tick",
    compute=_compute,
    hint=NO_SOURCE,
    watch=1.0,
)
