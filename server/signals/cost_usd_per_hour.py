"""What the run costs an hour: its GPUs, each once, and its sandboxes."""

from server.signals._cost import SANDBOX, spend
from server.signals._idle import over
from server.signals._model import Answer, Signal, Unknown, Value, View


def _compute(view: View) -> Answer:
    ended = over(view)
    if ended is not None:
        return ended
    found = spend(view)
    return found if isinstance(found, Unknown) else [Value(found[0], (), found[1])]


SIGNAL = Signal(
    name="cost_usd_per_hour",
    title="Cost",
    unit="usd/h",
    actor="trainer",
    help="Dollars an hour: GPUs by the price of their type, counted once where trainer and generator share them, and "
    "the sandboxes where their price is told.",
    inputs=(SANDBOX,),
    cadence="tick",
    compute=_compute,
    hint="set [run.NAME.cost]: how many GPUs, and their type or price (docs/cost.md)",
)
