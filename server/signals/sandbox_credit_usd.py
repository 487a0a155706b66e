"""Credit left with the sandbox providers."""

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._ticks import last_sum

_HINT = "no provider tells its credit (Prime does, by its wallet)"


def _compute(view: View) -> Answer:
    gauges = view.fresh("sandbox_credit_usd")
    return [Value(last_sum(gauges))] if gauges else Unknown(_HINT)


SIGNAL = Signal(
    name="sandbox_credit_usd",
    title="Sandbox credit",
    unit="usd",
    actor="sandbox",
    help="Credit left with the sandbox providers that report it.",
    inputs=("sandbox_credit_usd",),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
