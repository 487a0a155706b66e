"""The share of rollouts that their infrastructure lost: beside a zero-advantage share it says what not to blame."""

from server.rollouts.window import NO_RECORDS, Window
from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._recorded import recorded
from server.signals.rollout_exit_ratio import no_exits

_UNTOLD = (
    "no record tells how a rollout failed: log `exit` (infra_error, env_error) of those that did, or tell of each "
    "while it is under way"
)


def _compute(_: View, found: Window) -> Answer:
    total = sum(found.exits.values())
    if not total:
        return no_exits(found)
    # Where only what was trained on is ever told, none that failed is not known to be none.
    return [Value(found.exits["infra_error"] / total)] if found.failures_told else Unknown(_UNTOLD)


SIGNAL = Signal(
    name="infra_failure_ratio",
    title="Infra failures",
    unit="ratio",
    actor="sandbox",
    help="Share of finished rollouts lost to infrastructure failures (exit infra_error) since the last 10 consumed "
    "versions began. Their zero rewards are excluded everywhere. Needs rollout records.",
    inputs=(),
    cadence="step",
    compute=recorded(_compute),
    hint=NO_RECORDS,
    # 2 % spoils every third group of 16; at 10 % four of five.
    watch=0.02,
    critical=0.10,
    records=True,
)
