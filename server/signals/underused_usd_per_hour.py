"""What running engines leave of their KV ceiling, in dollars an hour: beside idle cost, never in it."""

from server.signals._engines import INPUTS
from server.signals._idle import over, parts
from server.signals._model import Answer, NotApplicable, Signal, Unknown, Value, View

_HINT = "set [run.NAME.cost]: how many GPUs the generator has, and their type or price (docs/concepts/cost.md)"


def _compute(view: View) -> Answer:
    return over(view) or _priced(view)


def _priced(view: View) -> Answer:
    found = parts(view)
    if len(found) == 1:
        return NotApplicable("trainer and generator share their GPUs: what one leaves the other may use")
    pool, idle = found[-1]
    if pool.usd_per_hour is None:
        return Unknown(pool.lacks)
    if idle.underused is None:
        return Unknown(idle.why or "how full the engines are is not known")
    return [Value(idle.underused * pool.usd_per_hour)]


SIGNAL = Signal(
    name="underused_usd_per_hour",
    title="Underused",
    unit="usd/h",
    actor="generator",
    help="Dollars per hour of working generator GPUs, times the free share of their KV ceiling. Low occupancy is not "
    "idle, so this is not part of idle_usd_per_hour.",
    inputs=INPUTS,
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
