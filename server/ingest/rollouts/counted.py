"""Which rollouts and groups count in totals."""

from server.rollouts.state import EXITS
from server.store.types import RolloutGroupRow, RolloutRow


def closes(before: RolloutGroupRow | None, group: RolloutGroupRow) -> bool:
    """Does it count among the outcomes, and did not before?"""
    return _closed(group) and not (before is not None and _closed(before))


def _closed(group: RolloutGroupRow) -> bool:
    return group.outcome != "open" and group.purpose == "train" and not group.sampled


def leaves(row: RolloutRow) -> bool:
    """Does it count among the exits: of training, and told by a source that tells of all?"""
    return row.state in EXITS and not row.record.sampled and row.record.purpose in (None, "train")
