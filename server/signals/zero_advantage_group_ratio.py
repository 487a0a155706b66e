"""Zero-advantage groups by cause. Their sum is `zero_advantage_ratio`.

`all_solved` only where the largest possible reward is known, `none_solved` where nobody got anything; a bare share is
`equal_unknown`. After a refill of such groups (DAPO) the admitted share is near 0 while most completed are dropped.
"""

from server.rollouts.window import Window
from server.signals._model import Answer, Signal, Value, View
from server.signals._recorded import either
from server.signals._steps import mean, too_few, window
from server.signals.zero_advantage_ratio import ADMITTED, COMPLETED, causes, no_groups
from server.signals.zero_advantage_ratio import SIGNAL as TOTAL

_CAUSES = (("all_solved", "groups_all_solved_ratio"), ("none_solved", "groups_none_solved_ratio"))


def _logged(view: View) -> Answer:
    split = window(view, "groups_all_solved_ratio", "groups_none_solved_ratio")
    if split:
        return too_few(split, TOTAL.hint) or [
            Value(mean(split, metric), (COMPLETED, ("cause", cause))) for cause, metric in _CAUSES
        ]
    rows = window(view, "groups_zero_advantage_ratio")
    share = too_few(rows, TOTAL.hint)
    return share or [Value(mean(rows, "groups_zero_advantage_ratio"), (COMPLETED, ("cause", "equal_unknown")))]


def _recorded(view: View, found: Window) -> Answer:
    bases = ((COMPLETED, found.groups), (ADMITTED, found.admitted))
    shares = [(basis, causes(of)) for basis, of in bases if of]
    return [
        Value(share, (basis, ("cause", cause))) for basis, found_in in shares for cause, share in found_in.items()
    ] or no_groups(view)


SIGNAL = Signal(
    name="zero_advantage_group_ratio",
    title="Zero-advantage groups",
    unit="ratio",
    actor="queue",
    help="Share of groups without a gradient by cause (all solved, none solved, equal, too few valid rewards), of "
    "completed groups and, from records, of admitted groups; last 10 steps.",
    inputs=TOTAL.inputs,
    cadence="step",
    compute=either(_recorded, _logged),
    hint=TOTAL.hint,
    records=True,
)
