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
    help="Dollars an hour of GPUs with nothing to work on, by cause; the causes add up to the total. The trainer's by "
    "its last 10 steps, the engines' by the 5 minutes in which no request ran or they were paused or down.",
    inputs=(*STEP_INPUTS, *INPUTS),
    cadence="tick",
    compute=_compute,
    hint="set [run.NAME.cost]: how many GPUs, and their type or price (docs/cost.md)",
)
