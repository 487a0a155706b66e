"""Where trajectory staleness came about: while a rollout was generated, waited for its group, stood in the queue."""

from server.rollouts.window import NO_RECORDS, Window
from server.signals._model import Answer, Signal, Unknown, Value, View
from server.signals._recorded import recorded

PARTS = ("in_flight", "in_group", "in_queue")


def _compute(_: View, found: Window) -> Answer:
    part = found.used
    if not part.parted:
        return Unknown(
            "the parts of staleness are not told: log `version_finish` (or `token_versions`) of a group's members, "
            "`version_consumed`, and `group_complete_at` where versions are published meanwhile"
        )
    return [Value(total / part.parted, (("part", name),)) for name, total in zip(PARTS, part.parts, strict=True)]


SIGNAL = Signal(
    name="staleness_part_versions",
    title="Staleness by part",
    unit="versions",
    actor="queue",
    help="Mean trajectory staleness by where it arises: in flight, waiting for the group, in the queue. The parts add "
    "up to the mean of the rollouts whose parts are known; last 10 consumed versions. Needs rollout records.",
    inputs=(),
    cadence="step",
    compute=recorded(_compute),
    hint=NO_RECORDS,
    records=True,
)
