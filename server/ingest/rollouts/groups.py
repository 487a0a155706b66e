"""Rows of rollout groups, computed from their members whenever a member changes."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from collectors.model import Rollout
from server.rollouts import groups as rollouts_groups
from server.rollouts.groups import Member
from server.store.types import RolloutGroupRow, RolloutRow

GroupKey = tuple[str, int]
"""(group id, incarnation of the trainer)."""

# Groups in memory. Their members should be in memory too (`server.ingest.rollouts.fold` keeps 20,000).
REMEMBERED = 5_000


@dataclass(slots=True)
class Group:
    """One group in memory.

    Attributes:
        version: the policy version when the group was complete; a lower bound, from its members.
        completed: when it was complete, epoch seconds.
        reported_size: number of rollouts, as its members report it.
    """

    members: dict[str, Member] = field(default_factory=dict)
    row: RolloutGroupRow | None = None
    complete: bool = False
    version: int | None = None
    completed: float | None = None
    reported_size: int | None = None
    environment: str = ""
    purpose: str = ""

    @property
    def waited_for(self) -> tuple[bool, int | None, float | None]:
        """Returns the values that the rows of its members depend on."""
        return self.complete, self.version, self.completed

    def times(self) -> list[float]:
        """Returns one time in each member's incarnation (epoch seconds), if the member has one."""
        members = self.members.values()
        times = (member.ended_at if member.begun_at is None else member.begun_at for member in members)
        return [at for at in times if at is not None]


class Groups:
    """The groups changed last; others are recalled from the store when one of their members changes."""

    def __init__(self, facts: Mapping[str, str | float]) -> None:
        self._facts = facts
        self._groups: OrderedDict[GroupKey, Group] = OrderedDict()

    def __contains__(self, key: GroupKey) -> bool:
        return key in self._groups

    def get(self, key: GroupKey) -> Group | None:
        return self._groups.get(key)

    def recall(self, keys: Iterable[GroupKey], members: Iterable[RolloutRow], rows: Iterable[RolloutGroupRow]) -> None:
        """Takes groups of the store back into memory; ``keys`` without a stored row have no members."""
        for key in keys:
            self._groups[key] = Group()
        for row in members:
            self._put(self._groups[(row.record.group_id, row.life)], row.record)
        for stored in rows:
            self._groups[(stored.group_id, stored.life)].row = stored
        for key in keys:
            self._judge(self._groups[key])

    def put(self, members: Iterable[tuple[GroupKey, Rollout]]) -> dict[GroupKey, tuple[bool, int | None, float | None]]:
        """Updates members; returns, per group, the values that its members' rows depended on before."""
        found: dict[GroupKey, tuple[bool, int | None, float | None]] = {}
        for key, record in members:
            group = self._groups.get(key)
            if group is None:
                group = self._groups[key] = Group()
            self._groups.move_to_end(key)
            if key not in found:
                found[key] = group.waited_for
            self._put(group, record)
        for key in found:
            self._judge(self._groups[key])
        return found

    def forget(self) -> None:
        while len(self._groups) > REMEMBERED:
            self._groups.popitem(last=False)

    def _put(self, group: Group, record: Rollout) -> None:
        group.members[record.rollout_id] = rollouts_groups.member(record)
        # Members agree; if not, the maximum makes the order of records irrelevant.
        group.environment = max(group.environment, record.environment)
        group.purpose = max(group.purpose, record.purpose or "")

    def _judge(self, group: Group) -> None:
        sizes = [member.size for member in group.members.values() if member.size is not None]
        group.reported_size = max(sizes) if sizes else None
        members, size = group.members.values(), self.size(group)
        group.complete = rollouts_groups.complete(members, size)
        group.version = rollouts_groups.version_complete(tuple(members), size) if group.complete else None
        group.completed = rollouts_groups.completed_at(tuple(members), size) if group.complete else None

    def size(self, group: Group) -> int | None:
        """Returns the number of rollouts: as a member reports it, else as the run's configuration does."""
        if group.reported_size is not None:
            return group.reported_size
        size = self._facts.get("group_size")
        return int(size) if isinstance(size, (int, float)) else None

    def row(self, key: GroupKey, now: int) -> RolloutGroupRow | None:
        """Returns the group's row at ``now`` (epoch ms); None for a group of one rollout."""
        group = self._groups[key]
        size = self.size(group)
        if size == 1:
            return None
        members = tuple(group.members.values())
        row = _row(key, group, members, size, self._max_reward(), now)
        if not _times(members) and group.row is not None:  # no member has a time: keep the time of the first record
            row = replace(row, first_at=group.row.first_at, moved_at=group.row.moved_at)
        return row

    def _max_reward(self) -> float | None:
        value = self._facts.get("max_reward")
        return value if isinstance(value, (int, float)) else None


def _row(
    key: GroupKey, group: Group, members: tuple[Member, ...], size: int | None, max_reward: float | None, now: int
) -> RolloutGroupRow:
    rewards = [one.reward for one in members if one.reward is not None]
    outcome = rollouts_groups.outcome(members, size, max_reward)
    ends = [one.ended_at for one in members if one.ended and one.ended_at is not None]
    times = _times(members)
    completed = rollouts_groups.completed_at(members, size) if outcome != "open" else None
    used = [one.consumed for one in members if one.consumed is not None]
    return RolloutGroupRow(
        key[0], key[1], group.environment, group.purpose or "train", size, len(members),
        sum(one.ended for one in members), len(rewards), min(rewards, default=None), max(rewards, default=None),
        sum(rewards) / len(rewards) if rewards else None, rollouts_groups.solved(members, max_reward), outcome,
        any(one.trained for one in members), min(used, default=None),
        _ms(min(times)) if times else now, _ms(max(times)) if times else now,
        _ms(completed) if completed is not None else None, max(ends) - min(ends) if ends else None,
        any(one.sampled for one in members),
    )  # fmt: skip


def _times(members: Iterable[Member]) -> list[float]:
    return [at for one in members for at in (one.begun_at, one.ended_at) if at is not None]


def _ms(seconds: float) -> int:
    return round(seconds * 1000)
