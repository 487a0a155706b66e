"""Zero-advantage groups by cause. Their sum is `zero_advantage_ratio`.

`all_solved` and `none_solved` only where the framework tells them apart; a bare share is `equal_unknown`.
"""

from server.signals._model import Answer, Signal, Value, View
from server.signals._steps import mean, too_few, window
from server.signals.zero_advantage_ratio import COMPLETED
from server.signals.zero_advantage_ratio import SIGNAL as TOTAL

_CAUSES = (("all_solved", "groups_all_solved_ratio"), ("none_solved", "groups_none_solved_ratio"))


def _compute(view: View) -> Answer:
    split = window(view, "groups_all_solved_ratio", "groups_none_solved_ratio")
    if split:
        return too_few(split, TOTAL.hint) or [
            Value(mean(split, metric), (COMPLETED, ("cause", cause))) for cause, metric in _CAUSES
        ]
    rows = window(view, "groups_zero_advantage_ratio")
    share = too_few(rows, TOTAL.hint)
    return share or [Value(mean(rows, "groups_zero_advantage_ratio"), (COMPLETED, ("cause", "equal_unknown")))]


SIGNAL = Signal(
    name="zero_advantage_group_ratio",
    title="Zero-advantage groups",
    unit="ratio",
    actor="queue",
    help="Share of groups without gradient by cause, mean over the last 10 steps.",
    inputs=TOTAL.inputs,
    cadence="step",
    compute=_compute,
    hint=TOTAL.hint,
)
