"""How much of the curriculum is solved: the share of a group's members that solved its task, over groups."""

from server.rollouts.window import NO_RECORDS, Window
from server.signals._model import Answer, Signal, Unknown, View
from server.signals._recorded import recorded, spread

HINT = "records do not tell what is solved: log `solved`, or `max_reward` (or state max_reward of the run)"


def ratios(found: Window) -> list[float]:
    """Solve rates of the window's complete groups, ascending."""
    return sorted(one.solve_ratio for one in found.groups if one.solve_ratio is not None)


def _compute(_: View, found: Window) -> Answer:
    known = ratios(found)
    return spread(known, "mean", "p50") if known else Unknown(HINT)


SIGNAL = Signal(
    name="solve_ratio",
    title="Solve rate",
    unit="ratio",
    actor="queue",
    help="Share of a group's members that solved the task (as reported, or with the largest possible reward), mean "
    "and median over the completed groups of the last 10 consumed versions, without failed members. Needs rollout "
    "records.",
    inputs=(),
    cadence="step",
    compute=recorded(_compute),
    hint=NO_RECORDS,
    records=True,
)
