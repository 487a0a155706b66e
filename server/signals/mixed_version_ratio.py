"""The share of rollouts that more than one policy version made."""

from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._recorded import recorded
from server.signals._rollouts import NO_RECORDS, Window


def _compute(_: View, found: Window) -> Answer:
    part = found.made
    if not part.told:
        return Unknown(
            "no record of the window tells who made it: log `token_versions`, or `version_start` and `version_finish`"
        )
    return [Value(part.mixed / part.told)]


SIGNAL = Signal(
    name="mixed_version_ratio",
    title="Mixed versions",
    unit="ratio",
    actor="generator",
    help="Share of rollouts made by more than one policy version, of those consumed at the last 10 versions; from "
    "records.",
    inputs=(),
    cadence="step",
    compute=recorded(_compute),
    hint=NO_RECORDS,
    records=True,
)
