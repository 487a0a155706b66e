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
    help="Dollars per hour: GPUs at the price of their type, counted once if trainer and generator share them, and "
    "sandboxes if their price is reported.",
    inputs=(SANDBOX,),
    cadence="tick",
    compute=_compute,
    hint="set [run.NAME.cost]: how many GPUs, and their type or price (docs/concepts/cost.md)",
)
