"""How long the tail is: the slowest of a hundred rollouts beside the median one."""

from server.rollouts.spread import quantile
from server.rollouts.window import NO_RECORDS, Window
from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._recorded import recorded

# Of fewer the hundredth is a matter of chance.
LEAST = 20
OF = ("response_tokens", "seconds")


def _compute(_: View, found: Window) -> Answer:
    known = [(name, found.ended_values(name)) for name in OF]
    told = [(name, values) for name, values in known if len(values) >= LEAST and quantile(values, 0.5) > 0]
    if not told:
        return Unknown(
            f"fewer than {LEAST} rollouts that ended tell how long they are: log `response_tokens`, `dispatched_at` "
            "and `finished_at`"
        )
    return [Value(quantile(values, 0.99) / quantile(values, 0.5), (("of", name),)) for name, values in told]


SIGNAL = Signal(
    name="tail_index_ratio",
    title="Tail index",
    unit="ratio",
    actor="generator",
    help="p99 / p50 of response tokens and of seconds from dispatch to end, of completed rollouts (trained or not) "
    "since the last 10 consumed versions began. Needs rollout records.",
    inputs=(),
    cadence="step",
    compute=recorded(_compute),
    hint=NO_RECORDS,
    records=True,
)
