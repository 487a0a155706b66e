"""Number of groups behind `zero_advantage_ratio`: 3 of 6 is weaker evidence than 300 of 600."""

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals.zero_advantage_ratio import SIGNAL as TOTAL
from server.signals.zero_advantage_ratio import shares

_NO_COUNT = (
    "the trainer's log has the share and no number of groups: log groups per step, or samples per step and state "
    "`group_size` as a fact"
)


def _compute(view: View) -> Answer:
    found = shares(view)
    if not isinstance(found, list):
        return found
    return [Value(one.groups, one.labels, one.why) for one in found if one.groups is not None] or Unknown(_NO_COUNT)


SIGNAL = Signal(
    name="zero_advantage_groups",
    title="Groups counted",
    unit="groups",
    actor="queue",
    help="Number of groups behind zero_advantage_ratio, on the same basis; from a trainer's log, the groups trained "
    "in the last 10 steps.",
    inputs=TOTAL.inputs,
    cadence="step",
    compute=_compute,
    hint=TOTAL.hint,
    records=True,
)
