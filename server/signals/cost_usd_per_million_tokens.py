"""What a million tokens cost: trained ones by the last 10 steps, sampled and prefilled ones by the last 5 minutes.

Each is the whole cost of the run by one count of tokens: they are three views of one bill, not parts of it.
"""

from collections.abc import Iterator
from typing import Any

from server.signals import generator_prompt_tokens_per_second, generator_tokens_per_second
from server.signals._cost import SANDBOX, TOKENS, spend, trained, usd_per_million
from server.signals._idle import over
from server.signals._model import Answer, Signal, Unknown, Value, View, fold

_RATES = (
    ("sampled", generator_tokens_per_second.SIGNAL),
    ("prefill", generator_prompt_tokens_per_second.SIGNAL),
)


def _remember(memory: Any, view: View) -> tuple[Any, Answer]:
    rows, rate = trained(memory, view)
    ended, found = over(view), spend(view)
    if ended is not None or isinstance(found, Unknown):
        return rows, ended or found  # type: ignore[return-value]
    rates = {"trained": rate, **dict(_generated(view))}
    return rows, [_value(of, found[0], rate) for of, rate in rates.items()]


def _generated(view: View) -> Iterator[tuple[str, float | Unknown]]:
    for of, signal in _RATES:
        answer = signal.compute(view)
        if isinstance(answer, Unknown):
            yield of, answer
        elif isinstance(answer, (list, tuple)):
            yield of, answer[0].value or Unknown("no token within 5 minutes")


def _value(of: str, usd_per_hour: float, rate: float | Unknown) -> Value:
    labels = (("of", of),)
    if isinstance(rate, Unknown):
        return Value(float("nan"), labels, rate.why)
    return Value(usd_per_million(usd_per_hour, rate), labels)


SIGNAL = Signal(
    name="cost_usd_per_million_tokens",
    title="Cost of a million tokens",
    unit="usd",
    actor="trainer",
    help="Dollars of the whole run per million tokens: trained (loss tokens of the last 10 steps over the wall time "
    "between them, including restarts and evaluation), sampled and prefilled (5 minutes).",
    inputs=(TOKENS, "generator_tokens_total", "generator_prompt_tokens_total", SANDBOX),
    cadence="tick",
    **fold(_remember),
    hint="set [run.NAME.cost]: how many GPUs, and their type or price (docs/concepts/cost.md)",
)
