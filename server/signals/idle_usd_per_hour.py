"""What GPUs that have nothing to work on cost an hour, by why: the causes add up, and never to more than the GPUs."""

from server.signals._engines import INPUTS
from server.signals._idle import STEP_INPUTS, over, priced
from server.signals._model import Answer, Signal, View


def _compute(view: View) -> Answer:
    return over(view) or priced(view)


SIGNAL = Signal(
    name="idle_usd_per_hour",
    title="Idle cost",
    unit="usd/h",
    actor="trainer",
    help="Dollars per hour of GPUs without work, by cause; the causes add up to the total. Trainer causes cover its "
    "last 10 steps. Engine causes cover the last 5 minutes without requests, paused or down.",
    inputs=(*STEP_INPUTS, *INPUTS),
    cadence="tick",
    compute=_compute,
    hint="set [run.NAME.cost]: how many GPUs, and their type or price (docs/concepts/cost.md)",
)
