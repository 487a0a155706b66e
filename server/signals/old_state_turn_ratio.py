"""The share of turns that were played on an environment which an older policy had changed."""

from server.rollouts.environments import HINT
from server.rollouts.window import NO_RECORDS, Window
from server.signals._model import Answer, NotApplicable, Signal, Unknown, Value, View
from server.signals._recorded import recorded

_BOUND = "upper bound: every tool call counts as a change, for nobody tells which were (`mutated`)"


def _compute(view: View, found: Window) -> Answer:
    turns, bound = found.made.turns, found.made.bound
    if turns:
        old = sum(count for age, count in turns.items() if age > 0)
        return [Value(old / sum(turns.values()), (), _BOUND if bound else "")]
    if view.fact("has_sandbox") == 0:
        return NotApplicable("the task has no environment that keeps a state")
    return Unknown(f"no record of the window tells its turns: {HINT}")


SIGNAL = Signal(
    name="old_state_turn_ratio",
    title="Turns on old state",
    unit="ratio",
    actor="sandbox",
    help="Share of turns on an environment state that an older policy produced, of rollouts consumed at the last 10 "
    "versions. An upper bound if records do not mark the turns that change the state.",
    inputs=(),
    cadence="step",
    compute=recorded(_compute),
    hint=NO_RECORDS,
    records=True,
)
