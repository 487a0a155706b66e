"""What a million trained tokens cost beside what they may cost."""

from typing import Any

from server.signals._cost import SANDBOX, TOKENS, spend, trained, usd_per_million
from server.signals._idle import over
from server.signals._model import Answer, Signal, Unknown, Value, View, fold

_HINT = "no target price: set [run.NAME.cost] target_usd_per_million_tokens"


def _remember(memory: Any, view: View) -> tuple[Any, Answer]:
    rows, rate = trained(memory, view)
    return rows, over(view) or _judged(view, rate)


def _judged(view: View, rate: float | Unknown) -> Answer:
    target = view.fact("target_usd_per_million_tokens")
    if target is None or target <= 0:
        return Unknown(_HINT)
    found = spend(view)
    if isinstance(found, Unknown) or isinstance(rate, Unknown):
        return found if isinstance(found, Unknown) else rate  # type: ignore[return-value]
    return [Value(usd_per_million(found[0], rate) / target)]


SIGNAL = Signal(
    name="cost_target_ratio",
    title="Cost over its target",
    unit="ratio",
    actor="trainer",
    help="Dollars per million trained tokens / target price of [run.NAME.cost]; above 1 the run is too expensive.",
    inputs=(TOKENS, SANDBOX),
    cadence="tick",
    **fold(_remember),
    hint=_HINT,
    watch=1.0,
)
