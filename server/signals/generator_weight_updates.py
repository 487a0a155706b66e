"""Weight updates an engine took within 5 minutes, where that can be counted."""

from server.signals._engines import spread
from server.signals._model import Answer, Signal, Unknown, View
from server.signals._updates import HINT, INPUTS, counts


def _compute(view: View) -> Answer:
    found = counts(view)
    return spread(list(found.values())) if found else Unknown(HINT)


SIGNAL = Signal(
    name="generator_weight_updates",
    title="Weight updates",
    unit="updates",
    actor="generator",
    help="Weight updates per engine within 5 minutes: minimum, mean and maximum. A minimum below the maximum means "
    "that an engine is left behind.",
    inputs=INPUTS,
    cadence="tick",
    compute=_compute,
    hint=HINT,
)
