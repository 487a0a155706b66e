"""Groups of rollouts as their members tell of them: rows for the store, made anew when a member says something new."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from collectors.model import Rollout
from server.rollouts import groups as rollouts_groups
from server.rollouts.groups import Member
from server.store.types import RolloutGroupRow, RolloutRow

GroupKey = tuple[str, int]
"""(group id, life of the trainer)."""

# Of a group in memory its members should be too (`server.ingest.rollouts.fold` remembers 20,000).
REMEMBERED = 5_000


@dataclass(slots=True)
class Group:
    """One group in memory.

    Attributes:
        version: the policy's when it was complete, as its members tell it: at least that.
        completed: when it was, epoch seconds.
        told: rollouts it should have, as its members tell it.
    """

    members: dict[str, Member] = field(default_factory=dict)
    row: RolloutGroupRow | None = None
    complete: bool = False
    version: int | None = None
    completed: float | None = None
    told: int | None = None
    environment: str = ""
    purpose: str = ""

    @property
    def waited_for(self) -> tuple[bool, int | None, float | None]:
        """What its members' own rows follow from."""
        return self.complete, self.version, self.completed

    def times(self) -> list[float]:
        """An instant of each member's life (epoch seconds), where it tells one."""
        members = self.members.values()
        told = (one.ended_at if one.begun_at is None else one.begun_at for one in members)
        return [at for at in told if at is not None]


class Groups:
    """The groups met last; others are recalled from the store when one of their members speaks."""

    def __init__(self, facts: Mapping[str, str | float]) -> None:
        self._facts = facts
        self._known: OrderedDict[GroupKey, Group] = OrderedDict()

    def __contains__(self, key: GroupKey) -> bool:
        return key in self._known

    def get(self, key: GroupKey) -> Group | None:
        return self._known.get(key)

    def recall(self, keys: Iterable[GroupKey], members: Iterable[RolloutRow], rows: Iterable[RolloutGroupRow]) -> None:
        """Take groups of the store back into memory; of ``keys`` that it does not know there are none."""
        for key in keys:
            self._known[key] = Group()
        for row in members:
            self._put(self._known[(row.record.group_id, row.life)], row.record)
        for known in rows:
            self._known[(known.group_id, known.life)].row = known
        for key in keys:
            self._judge(self._known[key])

    def put(self, members: Iterable[tuple[GroupKey, Rollout]]) -> dict[GroupKey, tuple[bool, int | None, float | None]]:
        """Members as they are now; of each group what its members' rows followed from before."""
        found: dict[GroupKey, tuple[bool, int | None, float | None]] = {}
        for key, record in members:
            group = self._known.get(key)
            if group is None:
                group = self._known[key] = Group()
            self._known.move_to_end(key)
            if key not in found:
                found[key] = group.waited_for
            self._put(group, record)
        for key in found:
            self._judge(self._known[key])
        return found

    def forget(self) -> None:
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    def _put(self, group: Group, record: Rollout) -> None:
        group.members[record.rollout_id] = rollouts_groups.member(record)
        # Members agree; where they do not, the order in which they came must not matter.
        group.environment = max(group.environment, record.environment)
        group.purpose = max(group.purpose, record.purpose or "")

    def _judge(self, group: Group) -> None:
        told = [one.size for one in group.members.values() if one.size is not None]
        group.told = max(told) if told else None
        members, size = group.members.values(), self.size(group)
        group.complete = rollouts_groups.complete(members, size)
        group.version = rollouts_groups.version_complete(tuple(members), size) if group.complete else None
        group.completed = rollouts_groups.completed_at(tuple(members), size) if group.complete else None

    def size(self, group: Group) -> int | None:
        """Rollouts it should have: as a member tells it, else as the run's configuration does."""
        if group.told is not None:
            return group.told
        size = self._facts.get("group_size")
        return int(size) if isinstance(size, (int, float)) else None

    def row(self, key: GroupKey, now: int) -> RolloutGroupRow | None:
        """Its row as of now (epoch ms); None for a group of one, which is none."""
        group = self._known[key]
        size = self.size(group)
        if size == 1:
            return None
        members = tuple(group.members.values())
        row = _row(key, group, members, size, self._max_reward(), now)
        if not _times(members) and group.row is not None:  # none of them tells a time: it was met when it was met
            row = replace(row, first_at=group.row.first_at, moved_at=group.row.moved_at)
        return row

    def _max_reward(self) -> float | None:
        known = self._facts.get("max_reward")
        return known if isinstance(known, (int, float)) else None


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
