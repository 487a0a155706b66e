"""What the run's sandboxes cost an hour: as the providers say, else by the prices of the live ones."""

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._sandboxes import missing
from server.signals._ticks import last_sum

_HINT = "no provider tells a spending rate or prices"


def _compute(view: View) -> Answer:
    told = view.fresh("sandbox_cost_usd_per_hour")
    if told:
        return [Value(last_sum(told))]
    gap = missing(view)
    if gap is not None:
        return gap
    prices = [record.cost_usd_per_hour for record in view.sandboxes.own.values()]
    known = [price for price in prices if price is not None]
    return [Value(sum(known))] if known else Unknown(_HINT)


SIGNAL = Signal(
    name="sandbox_cost_usd_per_hour",
    title="Sandbox cost",
    unit="usd/h",
    actor="sandbox",
    help="Dollars per hour for sandboxes: the provider's rate for the account, or else that of the run's live "
    "sandboxes.",
    inputs=("sandbox_cost_usd_per_hour",),
    cadence="tick",
    compute=_compute,
    hint=_HINT,
)
