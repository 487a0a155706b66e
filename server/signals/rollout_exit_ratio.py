"""How rollouts leave: trained, or thrown away for a cause. The first cause counts."""

from server.rollouts.state import EXITS
from server.rollouts.window import NO_RECORDS, Window
from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._recorded import recorded

NO_EXITS = "no record tells how a rollout left: log `consumed_at` or `exit`"


def no_exits(found: Window) -> Unknown:
    """Why there is no share of exits."""
    return Unknown("records tell of a sample of the rollouts: exits are not counted" if found.sampled else NO_EXITS)


def _compute(_: View, found: Window) -> Answer:
    total = sum(found.exits.values())
    if not total:
        return no_exits(found)
    return [Value(found.exits[name] / total, (("exit", name),)) for name in EXITS]


SIGNAL = Signal(
    name="rollout_exit_ratio",
    title="Exits",
    unit="ratio",
    actor="queue",
    help="Share of each exit among the rollouts that left since the last 10 consumed versions began, without rollouts "
    "in flight. Needs rollout records.",
    inputs=(),
    cadence="step",
    compute=recorded(_compute),
    hint=NO_RECORDS,
    records=True,
)
