"""Where groups carry no gradient: by environment and difficulty."""

from collections import defaultdict

from server.rollouts.notes import GroupNote
from server.rollouts.window import NO_RECORDS, Window
from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._recorded import recorded
from server.signals.zero_advantage_ratio import causes, no_groups

# Each is a series; what is beyond the most frequent ones is taken together.
SHOWN, OTHER = 20, ("other", "")


def _compute(view: View, found: Window) -> Answer:
    if not found.groups:
        return no_groups(view)
    by: dict[tuple[str, str], list[GroupNote]] = defaultdict(list)
    for one in found.groups:
        by[(one.environment, one.difficulty)].append(one)
    if by.keys() == {("", "")}:
        return Unknown("no record names its environment: log `environment` (or `difficulty`)")
    order = sorted(by, key=lambda name: (-len(by[name]), name))
    shown = {name: by[name] for name in order[:SHOWN]}
    if rest := [one for name in order[SHOWN:] for one in by[name]]:
        shown[OTHER] = rest
    return [
        Value(sum(causes(groups).values()), (("difficulty", difficulty), ("environment", environment)))
        for (environment, difficulty), groups in shown.items()
    ]


SIGNAL = Signal(
    name="zero_advantage_environment_ratio",
    title="Zero advantage by environment",
    unit="ratio",
    actor="queue",
    help="Share of completed groups without a gradient, by environment and difficulty: the 20 largest, and all others "
    "together; last 10 consumed versions. Needs rollout records.",
    inputs=(),
    cadence="step",
    compute=recorded(_compute),
    hint=NO_RECORDS,
    records=True,
)
