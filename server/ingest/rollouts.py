"""Merges partial rollout records into rows, and computes derived values, groups and increments of the totals.

One `RolloutIngest` per run. Any order and any split of the same partial records gives the same rows and totals. A
repeated record changes nothing, because totals change by a row's new contribution minus its previous one.
"""

import math
import zlib
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import add, attrgetter
from typing import TYPE_CHECKING

from msgspec import structs

from collectors.model import Event, Reading, Rollout, Target, Turn
from server.ingest.arrivals import Arrivals, RolloutArrival
from server.ingest.incarnations import (
    Incarnations,
    any_in,
    current_incarnation,
    in_incarnation,
    incarnation_of_known,
    new_incarnations,
    with_incarnation,
)
from server.rollouts import groups as rollouts_groups
from server.rollouts import model as rollouts_model
from server.rollouts.environments import Ages, Environments, basis, sandboxes, start, when
from server.rollouts.groups import OUTCOMES, Member
from server.rollouts.merge import cleaned, merged, stripped, told_last
from server.rollouts.model import RolloutGroupRow, RolloutRow, reported
from server.rollouts.staleness import ENVIRONMENT, KEPT_VERSIONS, Judged, VersionClock, ages_of, judge, newest_use, uses
from server.rollouts.window import LIVE_MOST
from server.store.types import Batch, RolloutBin, RolloutSum

if TYPE_CHECKING:
    from server.store import Store

# ---- rollout totals
# Increments of the funnel and of distributions over time, per rollout.

TIERS = (60_000, 3_600_000)
"""Widths of the buckets, ms: a minute, an hour."""

OTHER = "*"
"""Environment that counts all environments beyond `MAX_ENVIRONMENTS`."""

MAX_ENVIRONMENTS = 100
"""Environments with their own cells, a limit on rows: some sources create environment names without end."""

OUTCOME = "outcome"
"""Kind of bins that count groups by their index in `OUTCOMES`."""

LEFT = "left"
"""Kind of bins that count rollouts by the index in `EXITS` of the exit they had first."""

CLOSED = "closed"
"""Kind of bins that count groups by the index in `OUTCOMES` of the outcome they had first.

`LEFT` and `CLOSED` only grow; counters are restored from them. All are in one cell of the coarser tier at time 0."""

KINDS = ("response_tokens", "seconds", "turns", "tool_calls", "staleness", "solve_ratio", OUTCOME)
"""Kinds of bins with a distribution over time."""

STALENESS_MOST = 1_000
"""Largest staleness with a bin of its own, versions."""

# First bin: everything below 2^-10, about a thousandth (of a second).
_LOWEST = -20

_Cell = tuple[int, str, str, str]


def closes(before: RolloutGroupRow | None, group: RolloutGroupRow) -> bool:
    """Is the group newly counted among the outcomes?"""
    return _closed(group) and not (before is not None and _closed(before))


def _closed(group: RolloutGroupRow) -> bool:
    return group.outcome != "open" and group.purpose == "train" and not group.sampled


def leaves(row: RolloutRow) -> bool:
    """Does the rollout count among the exits: made for training, and from a source that reports every rollout?"""
    return row.state in rollouts_model.EXITS and not row.sampled and row.purpose in (None, "train")


def root_bin(value: float) -> int:
    """Returns the bin b with 2^(b/2) <= value < 2^((b+1)/2)."""
    return max(_LOWEST, math.floor(2 * math.log2(value))) if value > 0 else _LOWEST


def left_at(row: RolloutRow) -> int:
    """Returns when the rollout left (epoch ms): its first consumption, else its newest time."""
    if row.state == "trained" and (used := [use.at for use in row.consumptions if use.at is not None]):
        return _ms(min(used))
    return _ms(row.moved_at)


def ended_at(row: RolloutRow) -> int:
    """Returns when the rollout's generation ended (epoch ms); its newest time if no end is reported."""
    at = row.finished_at if row.finished_at is not None else rollouts_model.ended_at(row)
    return _ms(row.moved_at if at is None else at)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _no_amounts() -> list[float]:
    return [0, 0, 0, 0, 0.0, 0]


class RolloutTotals:
    """Increments of one batch. ``environments``: names of this run with cells of their own; grows to the limit."""

    def __init__(self, environments: set[str]) -> None:
        self._environments = environments
        # By (minute, exit, environment, purpose), and counts by (minute, kind, bin); hours are added up from them.
        self._sums: dict[_Cell, list[float]] = defaultdict(_no_amounts)
        self._minutes: dict[tuple[int, str, int], int] = defaultdict(int)
        self._bins: dict[tuple[int, int, str, int], int] = defaultdict(int)

    def change(self, before: RolloutRow | None, row: RolloutRow) -> None:
        """Counts a changed rollout. Rollouts of a source that reports only a sample count nowhere."""
        if leaves(row) and not (before is not None and leaves(before)):
            self._bins[(TIERS[1], 0, LEFT, rollouts_model.EXITS.index(row.state))] += 1
        if before is not None and not before.sampled:
            self._count(before, -1)
        if not row.sampled:
            self._count(row, 1)

    def group(self, before: RolloutGroupRow | None, group: RolloutGroupRow) -> None:
        """Counts a changed group."""
        if closes(before, group):
            self._bins[(TIERS[1], 0, CLOSED, OUTCOMES.index(group.outcome))] += 1
        if before is not None and not before.sampled:
            self._count_group(before, -1)
        if not group.sampled:
            self._count_group(group, 1)

    def sums(self) -> list[RolloutSum]:
        """Returns the changed cells of the funnel."""
        found: dict[tuple[int, int, str, str, str], list[float]] = defaultdict(_no_amounts)
        for (at, *names), amounts in self._sums.items():
            for tier in TIERS:
                cell = found[(tier, at // tier * tier, *names)]  # type: ignore[index]
                cell[:] = map(add, cell, amounts)
        return [
            RolloutSum(*cell, int(n), int(prompt), int(response), int(loss), seconds, int(counted))
            for cell, (n, prompt, response, loss, seconds, counted) in found.items()
            if n or prompt or response or loss or counted or abs(seconds) > 1e-6
        ]

    def bins(self) -> list[RolloutBin]:
        """Returns the changed cells of distributions."""
        found = self._bins.copy()
        for (at, kind, number), n in self._minutes.items():
            for tier in TIERS:
                found[tier, at // tier * tier, kind, number] += n
        return [RolloutBin(*cell, n) for cell, n in found.items() if n]

    def _count(self, row: RolloutRow, sign: int) -> None:
        if row.state in rollouts_model.OVER:
            self._sum(row, sign)
        if row.purpose not in (None, "train"):
            return
        if rollouts_model.left(row) is not None or rollouts_model.finished(row):
            at, minutes = ended_at(row) // TIERS[0] * TIERS[0], self._minutes
            if row.response_tokens is not None:
                minutes[at, "response_tokens", root_bin(row.response_tokens)] += sign
            if row.seconds is not None:
                minutes[at, "seconds", root_bin(row.seconds)] += sign
            if row.turn_count is not None:
                minutes[at, "turns", row.turn_count] += sign
            if row.tool_calls is not None:
                minutes[at, "tool_calls", row.tool_calls] += sign
        for use in uses(row, row.life):
            if use.staleness is not None:
                at = _ms(row.moved_at if use.at is None else use.at)
                self._bin(at, "staleness", max(-1, min(use.staleness, STALENESS_MOST)), sign)

    def _sum(self, row: RolloutRow, sign: int) -> None:
        place = left_at(row) // TIERS[0] * TIERS[0], row.state, self._named(row.environment), row.purpose or "train"
        cell = self._sums[place]
        cell[0] += sign
        cell[1] += sign * (row.prompt_tokens or 0)
        cell[2] += sign * (row.response_tokens or 0)
        cell[3] += sign * (row.loss_tokens or 0)
        cell[4] += sign * (row.seconds or 0.0)
        cell[5] += sign * (row.response_tokens is not None)

    def _named(self, environment: str) -> str:
        if environment in self._environments:
            return environment
        if len(self._environments) >= MAX_ENVIRONMENTS:
            return OTHER
        self._environments.add(environment)
        return environment

    def _count_group(self, group: RolloutGroupRow, sign: int) -> None:
        if group.outcome == "open" or group.purpose != "train":
            return
        at = _ms(group.moved_at if group.completed_at is None else group.completed_at)
        self._bin(at, OUTCOME, OUTCOMES.index(group.outcome), sign)
        if group.solved is not None and group.valid:
            self._bin(at, "solve_ratio", min(9, group.solved * 10 // group.valid), sign)

    def _bin(self, at: int, kind: str, number: int, sign: int) -> None:
        self._minutes[at // TIERS[0] * TIERS[0], kind, number] += sign


# ---- environments
# Staleness of the environment states in a rollout's turns: computed while turns are reported, kept afterwards.

LATE = "an older change of its sandbox was reported after its turns were dropped: push its `turns` again"


def ages(
    environments: Environments, record: Rollout, before: RolloutRow | None, made_in: int, first_seen: float
) -> Ages | None:
    """Returns the ages of a record; ``before``: its previous row. None if no turns are reported.

    Computed ages stand until the rollout's turns, or earlier changes of its sandboxes, are reported differently: after
    a restart of this process less is cached about sandboxes than when the ages were computed.
    """
    key = (record.rollout_id, made_in)
    changed, previous = environments.taken(key), _previous_ages(before)
    complete = _with_turns(record, environments.turns(key))
    if not complete.turns:
        if previous is not None and not previous.unknown and before is not None and not changed:
            began = start(record, first_seen)
            changed = began != start(before, first_seen) and environments.moved(record, made_in, began)
        return Ages(bound=previous.bound, unknown=LATE) if changed and previous is not None else previous
    if before is not None and previous is not None and not previous.unknown and not changed:
        old = before if record.turns else _with_turns(before, complete.turns)
        if basis(complete) == basis(old):
            return previous
    return environments.judge(complete, made_in, start(complete, first_seen))


def affected_sandboxes(record: Rollout, stored: Sequence[Rollout]) -> Iterator[tuple[str, float]]:
    """Yields (sandbox, since): rollouts that used it later may change. ``stored``: previous records of the same id."""
    boxes = dict.fromkeys([box for part in (record, *stored) for box in sandboxes(part)])
    if boxes and (record.turns or start(record, math.inf) < math.inf):
        starts = [begun for part in (record, *stored) if (begun := start(part, math.inf)) < math.inf]
        for sandbox in boxes:
            yield sandbox, min(starts, default=-math.inf)


def _with_turns(record: Rollout, turns: tuple[Turn, ...]) -> Rollout:
    """Adds cached turns to a record whose own turns were dropped."""
    return record if record.turns or not turns else structs.replace(record, turns=turns)


def without_old_turns(environments: Environments, record: Rollout, stored: Rollout, made_in: int) -> Rollout:
    """Removes turns that were evaluated and then dropped, unless the record has new turns."""
    if not record.turns or len(record.turns) > (stored.turn_count or 0):
        return record
    if len(record.turns) == stored.turn_count:
        environments.remember((record.rollout_id, made_in), record.turns)
    return structs.replace(record, turns=())


def _previous_ages(before: RolloutRow | None) -> Ages | None:
    """Returns the ages stored in a row."""
    if before is None:
        return None
    if before.judged_turns is None:
        reasons = (part for part in before.unknown.split("; ") if part.startswith(f"{ENVIRONMENT}: "))
        why = next(reasons, "").removeprefix(f"{ENVIRONMENT}: ")
        return Ages(bound=before.environment_bound, unknown=why) if why else None
    latest = round((before.environment_latest or 0.0) * before.judged_turns)
    return Ages(dict(ages_of(before.environment_ages)), latest, before.environment_bound)


# ---- retention
# Decides which rollouts keep their turns and spans: notable ones, and a share of the others.

# One rollout in this many keeps its details (2 kB; a header is 0.5 kB). Chosen by id, so a back-fill chooses the same.
ONE_OF = 8
# Share of the last rollouts that counts as slow.
SLOW_SHARE = 0.05
# Number of last rollouts whose durations are compared.
SLOW_OF = 1_000
# Before this many rollouts have ended, none counts as slow.
SLOW_FROM = 20
# Rollouts between two computations of the slow limit.
_EVERY = 50


class Slowest:
    """Durations of the last rollouts, and the limit above which a rollout counts as slow."""

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=SLOW_OF)
        self._limit, self._since = -math.inf, 0

    def add(self, seconds: float) -> None:
        self._last.append(seconds)
        self._since += 1
        if self._since >= _EVERY or len(self._last) == SLOW_FROM:
            self._since = 0
            self._limit = sorted(self._last)[int(len(self._last) * (1 - SLOW_SHARE))]

    def slow(self, seconds: float | None) -> bool:
        return seconds is not None and seconds > self._limit


def keeps_details(record: Rollout, mixed: bool | None, state: str, before: RolloutRow | None, slow: bool) -> bool:
    """Are the rollout's details kept? Yes in flight; afterwards if it is slow, failed or of mixed versions, or 1 in 8.

    Decided once, when the rollout ends. Later updates do not change it: deferring the decision would double the writes,
    and details that appear when a file is read again would change rows.
    """
    if state not in rollouts_model.OVER:
        return True
    if before is not None and before.state in rollouts_model.OVER:
        return before.detailed
    notable = bool(mixed or record.error or record.exit in rollouts_model.FAILED or slow)
    return notable or zlib.crc32(record.rollout_id.encode("utf-8", "surrogatepass")) % ONE_OF == 0


# ---- groups
# Rows of rollout groups, computed from their members whenever a member changes.

GroupKey = tuple[str, int]
"""(group id, incarnation of the trainer)."""

# Groups in memory. Their members should be in memory too (`server.ingest.rollouts` keeps 20,000).
GROUPS_REMEMBERED = 5_000


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
            self._put(self._groups[(row.group_id, row.life)], row)
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
        while len(self._groups) > GROUPS_REMEMBERED:
            self._groups.popitem(last=False)

    def _put(self, group: Group, record: Rollout) -> None:
        group.members[record.rollout_id] = rollouts_groups.member(record)
        # Members agree; if not, the maximum makes the order of records irrelevant.
        group.environment = max(group.environment, record.environment)

    def _judge(self, group: Group) -> None:
        group.purpose, members = rollouts_groups.of_one_purpose(group.members.values())
        sizes = [member.size for member in members if member.size is not None]
        group.reported_size = max(sizes) if sizes else None
        size = self.size(group)
        group.complete = rollouts_groups.complete(members, size)
        group.version = rollouts_groups.version_complete(members, size) if group.complete else None
        group.completed = rollouts_groups.completed_at(members, size) if group.complete else None

    def size(self, group: Group) -> int | None:
        """Returns the number of rollouts: as a member reports it, else as the run's configuration does."""
        if group.reported_size is not None:
            return group.reported_size
        size = self._facts.get("group_size")
        return int(size) if isinstance(size, (int, float)) else None

    def row(self, key: GroupKey, now: float) -> RolloutGroupRow | None:
        """Returns the group's row at ``now``; None for a group of one rollout."""
        group = self._groups[key]
        size = self.size(group)
        if size == 1:
            return None
        members = rollouts_groups.of_one_purpose(group.members.values())[1]
        row = _row(key, group, members, size, self._max_reward(), now)
        if not _times(members) and group.row is not None:  # no member has a time: keep the time of the first record
            row = structs.replace(row, first_at=group.row.first_at, moved_at=group.row.moved_at)
        return row

    def _max_reward(self) -> float | None:
        value = self._facts.get("max_reward")
        return value if isinstance(value, (int, float)) else None


def _row(
    key: GroupKey, group: Group, members: Sequence[Member], size: int | None, max_reward: float | None, now: float
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
        _to_ms(min(times)) if times else now, _to_ms(max(times)) if times else now,
        _to_ms(completed) if completed is not None else None, max(ends) - min(ends) if ends else None,
        any(one.sampled for one in members),
    )  # fmt: skip


def _times(members: Iterable[Member]) -> list[float]:
    return [at for one in members for at in (one.begun_at, one.ended_at) if at is not None]


def _to_ms(seconds: float) -> float:
    """Rounds to whole milliseconds, which the store keeps."""
    return round(seconds * 1000) / 1000


Key = tuple[str, int]
"""(rollout id, incarnation of the trainer)."""

# Ended rollouts in memory; others are recalled from the store when a record names them.
REMEMBERED = 20_000
# A rollout still generating after a day is considered lost (s).
LOST_SECONDS = 86_400.0
# Complete rollouts without a reported use are considered lost after an hour, if the source reports consumption.
QUEUED_SECONDS = 3600.0
# The same if the source never reports consumption (s).
UNCONSUMED_SECONDS = 600.0
# Seconds of event time between two searches for lost rollouts.
SWEEP_SECONDS = 60.0
# Rollouts recomputed per call, when an earlier change of a shared sandbox is reported late.
JUDGED_AGAIN = 1_000
_FIRST = (-math.inf, 0, 0, "")
_WAITING = frozenset({"scoring", "waiting_group", "queued"})
# All fields of a row except its last source and the time of the last record.
_content = attrgetter(*(name for name in RolloutRow.__struct_fields__ if name not in ("target", "seen_at")))


@dataclass(slots=True)
class FoldedRecords:
    """Changes from one call: rows for the batch, and arrivals for the driver."""

    rows: list[RolloutRow] = field(default_factory=list)
    groups: list[RolloutGroupRow] = field(default_factory=list)
    sums: list[RolloutSum] = field(default_factory=list)
    bins: list[RolloutBin] = field(default_factory=list)
    arrivals: list[RolloutArrival] = field(default_factory=list)


class RolloutIngest:
    """Rollouts of one run in memory, so that a partial record updates the rollout it belongs to.

    Args:
        rows: rollouts in flight, from the store; others are recalled when a record names them.
        incarnations: of the run's trainer; clock: its published versions. Both may grow.
        facts: of the run (group_size, max_reward); may grow.
        environments: environments with cells in the funnel already.
    """

    def __init__(
        self, rows: Iterable[RolloutRow] = (), incarnations: Incarnations | None = None,
        clock: VersionClock | None = None, facts: Mapping[str, str | float] | None = None,
        environments: Iterable[str] = (),
    ) -> None:  # fmt: skip
        self.incarnations, self.clock = incarnations or Incarnations(0), clock or VersionClock()
        self._known: OrderedDict[str, dict[int, RolloutRow]] = OrderedDict()
        self._groups, self._environments = Groups(facts if facts is not None else {}), Environments()
        self._named, self._slowest = set(environments), Slowest()
        self._live: dict[Key, None] = {}
        # Newest event time, time of the last sweep, whether a use was ever reported, and the newest incarnation.
        self._newest, self._swept, self._consumed, self._newest_incarnation = -math.inf, -math.inf, False, -1
        self.recall(rows)

    # ---- memory

    def unknown(self, records: Iterable[Rollout]) -> list[str]:
        """Returns ids that are not in memory: new rollouts, or ones that ended too long ago."""
        ids = dict.fromkeys(record.rollout_id[:200] for record in records)
        return [name for name in ids if name and name not in self._known]

    def recall(self, rows: Iterable[RolloutRow]) -> None:
        """Takes stored rows back into memory, so that a rollout counted before does not look new."""
        for row in rows:
            self._remember(row)

    def missing_groups(self, records: Iterable[Rollout]) -> list[GroupKey]:
        """Returns groups of these records that are not in memory; call it after `recall`."""
        result: dict[GroupKey, None] = {}
        for record in records:
            number = self._incarnation_of(record)
            stored = self._known.get(record.rollout_id[:200], {}).get(number)
            group = record.group_id[:200] or (stored.group_id if stored is not None else "")
            numbers = (number,)
            if stored is None and record.incarnation is None and self.incarnations.last is not None:
                # Siblings may have an older number of the same incarnation.
                numbers = (number, *new_incarnations(self.incarnations, record)[1])
            for candidate in numbers if group else ():
                if (group, candidate) not in self._groups:
                    result[group, candidate] = None
        return list(result)

    def later_in_sandboxes(self, records: Iterable[Rollout]) -> list[Rollout]:
        """Returns later rollouts of the same sandboxes, whose ages may change; only the id if not in memory."""
        stored = ((record, self._known.get(record.rollout_id[:200], {}).values()) for record in records)
        affected = (box for record, rows in stored for box in affected_sandboxes(record, [row for row in rows]))
        later = dict.fromkeys(key for box in affected for key in self._environments.after(*box))
        rows = (self._known.get(name, {}).get(number) for name, number in later)
        return [Rollout(name) if row is None else row for (name, _), row in zip(later, rows, strict=True)]

    def has_new_sandbox(self, records: Iterable[Rollout]) -> bool:
        """Do the records name a sandbox that is not in memory? Rollouts before our start may have changed it."""
        return any(box not in self._environments for record in records for box in sandboxes(record))

    def revisit(self, rows: Iterable[RolloutRow]) -> None:
        """Loads what stored rollouts did to their sandboxes."""
        for row in sorted(rows, key=lambda row: when(row, row.life, start(row, row.first_seen))):
            self._environments.revisit(row, row.life, start(row, row.first_seen))

    def regroup(
        self, keys: Iterable[GroupKey], members: Iterable[RolloutRow], groups: Iterable[RolloutGroupRow]
    ) -> None:
        """Takes the groups ``keys`` back into memory, with their stored members and rows."""
        self._groups.recall(list(keys), members, groups)

    def _remember(self, row: RolloutRow) -> None:
        name, key = row.rollout_id, (row.rollout_id, row.life)
        self._known.setdefault(name, {})[row.life] = row
        self._known.move_to_end(name)
        self._live.pop(key, None)
        if row.state not in rollouts_model.OVER:
            self._live[key] = None
        # A record without times is dated by its reading, which is too late for a history, so it is left out.
        if row.moved_at != row.first_seen:
            self._newest = max(self._newest, row.moved_at)
        self._newest_incarnation = max(self._newest_incarnation, row.life)
        self._consumed = self._consumed or bool(row.consumptions)

    def _forget(self) -> None:
        over = len(self._known) - len(self._live) - REMEMBERED
        for _ in range(over):
            name, rows = self._known.popitem(last=False)
            if any((name, life) in self._live for life in rows):
                self._known[name] = rows
        self._groups.forget()

    # ---- taking

    def take(self, target: Target, records: Iterable[Rollout], now: float) -> FoldedRecords:
        """Merges records and returns the changes; ``now`` (epoch seconds) dates records without a time."""
        work: dict[Key, Rollout] = {}
        for record in records:
            if record.rollout_id:
                self._fold(cleaned(record), work)
        changes, totals = FoldedRecords(), RolloutTotals(self._named)
        groups = self._group(work)
        for key, record in self._with_siblings(self._in_time(work, now), groups):
            self._settle(target, key, record, now, changes, totals)
        self._judge_again(target, now, changes, totals)
        self._settle_groups(groups, now, changes, totals)
        if self._newest - self._swept >= SWEEP_SECONDS:
            self._sweep(target, now, changes, totals)
        changes.sums, changes.bins = totals.sums(), totals.bins()
        self._forget()
        return changes

    def crosses_restart(self, row: RolloutRow) -> bool:
        """Was the rollout used across a restart that its row does not show yet?"""
        return with_incarnation(self.incarnations, row, row.life) is not row

    def divide(self, target: Target, rows: Iterable[RolloutRow], now: float) -> FoldedRecords:
        """Updates rollouts that were used across a restart reported late; their groups must be in memory."""
        changes, totals = FoldedRecords(), RolloutTotals(self._named)
        for stored in rows:
            key = (stored.rollout_id, stored.life)
            if stored.life not in self._known.get(key[0], {}):
                self._remember(stored)
            row = self._known[key[0]][key[1]]
            record = with_incarnation(self.incarnations, row, row.life)
            if record is not row:
                self._settle(structs.replace(target, name=row.target), key, record, now, changes, totals)
        self._add_groups({}, changes)
        changes.sums, changes.bins = totals.sums(), totals.bins()
        self._forget()
        return changes

    def _incarnation_of(self, record: Rollout, work: Mapping[Key, Rollout] | None = None) -> int:
        """Returns the incarnation of the rollout that a record belongs to; ``work``: this batch's records so far."""
        name = record.rollout_id[:200]
        rows = self._known.get(name, {})
        if record.incarnation is None and self.incarnations.last is None:  # nothing separates incarnations
            return max(rows, default=self.incarnations.newest)
        stored = {number: (work or {}).get((name, number), row) for number, row in rows.items()}
        if (number := incarnation_of_known(self.incarnations, stored, record)) is not None:
            return number
        at, numbers = new_incarnations(self.incarnations, record)
        for number in numbers if record.group_id else ():
            group = self._groups.get((record.group_id[:200], number))
            if group is not None and any_in(self.incarnations, at, group.times()) and number not in stored:
                return number
        # A late restart may give two incarnations one number; two rollouts with one id then need different numbers.
        candidates = (*numbers, *range(self.incarnations.newest, -1, -1))
        return next((number for number in candidates if number not in stored), numbers[0])

    def _fold(self, record: Rollout, work: dict[Key, Rollout]) -> None:
        number = self._incarnation_of(record, work)
        key = (record.rollout_id, number)
        row = self._known.get(record.rollout_id, {}).get(number)
        stored = work.get(key) or (row if row is not None else None)
        record = in_incarnation(self.incarnations, record, number, stored)
        if stored is None:
            complete = record
            # A placeholder row, so that later records of this batch match it.
            self._known.setdefault(record.rollout_id, {}).setdefault(number, _blank(record, number))
        else:
            if row is not None and row.judged_turns is not None and not stored.turns:
                record = without_old_turns(self._environments, record, stored, number)
            complete = merged(stored, record)
        work[key] = with_incarnation(self.incarnations, complete, number)

    def _group(self, work: Mapping[Key, Rollout]) -> dict[GroupKey, tuple[bool, int | None, float | None]]:
        """Updates the groups of the records; returns the values that the members' rows depended on before."""
        return self._groups.put(
            ((record.group_id, number), record) for (_, number), record in work.items() if record.group_id
        )

    def _in_time(self, work: Mapping[Key, Rollout], now: float) -> dict[Key, Rollout]:
        """Sorts records by the time at which they changed their sandboxes; records that changed none come first."""
        if not any(map(_has_sandbox, work.values())):
            return dict(work)
        order = lambda item: self._order(item[0], item[1], now) if _has_sandbox(item[1]) else _FIRST  # noqa: E731
        return dict(sorted(work.items(), key=order))

    def _order(self, key: Key, record: Rollout, now: float) -> tuple[float, int, int, str]:
        row = self._known.get(key[0], {}).get(key[1])
        first_seen = _to_ms(now) if row is None or not row.target else row.first_seen
        return when(record, key[1], start(record, first_seen))

    def _judge_again(self, target: Target, now: float, changes: FoldedRecords, totals: RolloutTotals) -> None:
        """Recomputes rollouts whose sandboxes were changed earlier by rollouts that are reported only now."""
        for _ in range(JUDGED_AGAIN):
            if (key := self._environments.changed()) is None:
                return
            row = self._known.get(key[0], {}).get(key[1])
            if row is not None and row.target:
                self._settle(structs.replace(target, name=row.target), key, row, now, changes, totals)
            self._environments.taken(key)

    def _with_siblings(
        self, work: Mapping[Key, Rollout], groups: Mapping[GroupKey, tuple[bool, int | None, float | None]]
    ) -> Iterator[tuple[Key, Rollout]]:
        yield from work.items()
        for key, before in groups.items():
            group = self._groups.get(key)
            if group is None or group.waited_for == before:
                continue
            for name in group.members:
                row = self._known.get(name, {}).get(key[1])
                if row is not None and (name, key[1]) not in work:
                    yield (name, key[1]), row

    def _settle(
        self,
        target: Target,
        key: Key,
        record: Rollout,
        now: float,
        changes: FoldedRecords,
        totals: RolloutTotals,
        state: str = "",
    ) -> None:
        before: RolloutRow | None = self._known.get(key[0], {}).get(key[1])
        before = before if before is not None and before.target else None
        row = self._row(target, key[1], record, before, now, state)
        if before is not None and _content(row) == _content(before):
            return
        self._remember(row)
        totals.change(before, row)
        changes.rows.append(row)
        group = self._groups.get((record.group_id, key[1])) if record.group_id else None
        ended = group.row.completed_at if group is not None and group.row is not None else None
        ts = max(row.moved_at, ended or 0.0)
        # A pushed record may be merged after a reading that is newer. It is dated no earlier than the row it updates,
        # so that the driver receives both in order.
        seen = now if before is None else max(now, before.seen_at)
        changes.arrivals.append(RolloutArrival(min(ts, seen), row, before, None, False))

    def _settle_groups(
        self, groups: Iterable[GroupKey], now: float, changes: FoldedRecords, totals: RolloutTotals
    ) -> None:
        closed: dict[GroupKey, bool] = {}
        for key in groups:
            group, row = self._groups.get(key), self._groups.row(key, _to_ms(now))
            if group is None or row is None or row == group.row:
                continue
            closed[key] = closes(group.row, row)
            totals.group(group.row, row)
            group.row = row
            changes.groups.append(row)
        self._add_groups(closed, changes)
        for key in [key for key, closes_ in closed.items() if closes_]:
            self._add_closed(key, now, changes)

    def _add_closed(self, key: GroupKey, now: float, changes: FoldedRecords) -> None:
        """Adds an arrival for a group that was closed without a changed member, by a new fact of the run."""
        group = self._groups.get(key)
        members = (self._known.get(name, {}).get(key[1]) for name in (group.members if group is not None else ()))
        row = next((member for member in members if member is not None), None)
        if row is not None and group is not None:
            changes.arrivals.append(RolloutArrival(now, row, row, group.row, True))

    def _add_groups(self, closed: dict[GroupKey, bool], changes: FoldedRecords) -> None:
        """Adds its group's current row to each arrival; the first arrival of a closed group carries ``closed``."""
        for index, arrival in enumerate(changes.arrivals):
            key = (arrival.row.group_id, arrival.row.life)
            group = self._groups.get(key) if key[0] else None
            if group is not None and group.row is not None:
                ts = max(arrival.ts, group.row.completed_at) if group.row.completed_at else arrival.ts
                values = (ts, arrival.row, arrival.before, group.row, closed.pop(key, False))
                changes.arrivals[index] = RolloutArrival(*values)

    # ---- rows

    def _row(
        self, target: Target, made_in: int, record: Rollout, before: RolloutRow | None, now: float, state: str
    ) -> RolloutRow:
        group = self._groups.get((record.group_id, made_in)) if record.group_id else None
        alone = group is None or self._groups.size(group) == 1
        complete = group is not None and group.complete
        state = state or rollouts_model.state(record, grouped=not alone, complete=complete)
        if before is not None and before.state == rollouts_model.ENDED and state not in rollouts_model.EXITS:
            state = rollouts_model.ENDED
        seen = _to_ms(now)
        first, seen = (before.first_seen, max(seen, before.seen_at)) if before is not None else (seen, seen)
        moved = _moved(record, before, first)
        ages = environment_ages(self._environments, record, before, made_in, first)
        version, done = (group.version, group.completed) if group is not None else (None, None)
        judged = judge(record, made_in, self.clock, ages, alone=alone, group_version=version, group_at=done)
        seconds, use = _seconds(record, moved), newest_use(record)
        detailed = keeps_details(record, judged.mixed, state, before, self._slowest.slow(seconds))
        if seconds is not None and (before is None or before.seconds is None):
            self._slowest.add(seconds)
        # By place, because keywords take as long as all the rest of it.
        return RolloutRow(
            *reported(record if detailed else stripped(record)), target.name, made_in, first, seen, state, moved,
            seconds, use.version if use else None, use.at if use else None, judged.staleness, judged.in_flight,
            judged.in_group, judged.in_queue, judged.token_staleness, judged.environment_staleness,
            judged.environment_latest, judged.environment_bound, judged.old_state_turns, judged.judged_turns,
            judged.environment_ages, _mixed(judged, before), judged.unknown, detailed,
        )  # type: ignore[call-arg]  # fmt: skip

    # ---- rollouts without further records

    def _sweep(self, target: Target, now: float, changes: FoldedRecords, totals: RolloutTotals) -> None:
        """Ends rollouts that cannot be in flight any more: of an older incarnation, or without records for too long."""
        self._swept = self._newest
        rows = [self._known[name][number] for name, number in self._live]
        surplus = sorted(rows, key=lambda row: row.moved_at)[: max(0, len(rows) - LIVE_MOST)]
        lost = {(row.rollout_id, row.life): row for row in (*surplus, *filter(self._lost, rows))}
        for key, row in lost.items():
            source = structs.replace(target, name=row.target)
            self._settle(source, key, row, now, changes, totals, rollouts_model.ENDED)

    def _lost(self, row: RolloutRow) -> bool:
        if current_incarnation(self.incarnations, row) < self._newest_incarnation:
            return True
        waited = self._newest - row.moved_at
        if row.state in _WAITING:
            return waited > (QUEUED_SECONDS if self._consumed else UNCONSUMED_SECONDS)
        return waited > LOST_SECONDS


def _has_sandbox(record: Rollout) -> bool:
    """Was it played in a sandbox that another rollout may use, too?"""
    return bool(record.turns) and (bool(record.sandbox_ids) or any([turn.forked_from for turn in record.turns]))


def _blank(record: Rollout, made_in: int) -> RolloutRow:
    """Returns a placeholder row without a target, for a rollout that is being read."""
    return RolloutRow.of(record, life=made_in)


def _mixed(judged: Judged, before: RolloutRow | None) -> bool | None:
    """Were versions mixed? The previous answer stands if the turns that showed it were dropped."""
    return before.mixed if judged.mixed is None and before is not None else judged.mixed


def _moved(record: Rollout, before: RolloutRow | None, first: float) -> float:
    last = told_last(record)
    if last is None:
        return before.moved_at if before is not None else first
    dated = before is not None and (before.moved_at != before.first_seen or told_last(before) is not None)
    return max(_to_ms(last), before.moved_at) if dated and before is not None else _to_ms(last)


def _seconds(record: Rollout, moved: float) -> float | None:
    """Returns seconds from dispatch (or start) to the end, as far as reported."""
    begun = record.dispatched_at if record.dispatched_at is not None else record.started_at
    end = record.finished_at
    if end is None and record.exit is not None and not record.consumptions:
        end = moved
    return None if begun is None or end is None or end < begun else round(end - begun, 3)


environment_ages = ages


# ---- feed
# Adds a reading's rollout records to a batch.

# End of an unbounded time range, epoch ms.
ALWAYS = 1 << 62
# Newest rollouts read from the store at start to find sandboxes that later rollouts reuse.
REVISITED = 10_000
PUBLISHED = "weights_published"


class RolloutFeed:
    """Records and published versions of one run. Not thread-safe: one run, one loop.

    facts: of the run; may grow.
    incarnation: the newest incarnation of the trainer.
    """

    def __init__(self, store: "Store", run: str, facts: Mapping[str, str | float], incarnation: int) -> None:
        self._store, self._run = store.rollouts, run
        self.incarnations = Incarnations(incarnation, (ts / 1000 for ts in store.runs.incarnation_starts(run)))
        self._clock = published(store, run)
        rows = self._store.live(run)
        self._ingest = RolloutIngest(rows, self.incarnations, self._clock, facts, self._store.environments(run))
        self._looked_back = False
        self._look_back(row for row in rows)

    def take(self, target: Target, reading: Reading, now: float, batch: Batch, arrivals: Arrivals) -> None:
        """Adds the rollouts and published versions of a reading to the batch and to the arrivals."""
        for ts, version in versions(reading.events, now):
            self._clock.publish(version, ts)
            arrivals.published.append((ts, version))
        if not reading.rollouts:
            return
        self._recall(reading.rollouts)
        _into(self._ingest.take(target, reading.rollouts, now), batch, arrivals)

    def divide(self, target: Target, since: float, now: float, batch: Batch, arrivals: Arrivals) -> None:
        """Recomputes rollouts used across restarts that were reported late; ``since``: the first of those restarts."""
        moved = [row for row in self._store.recent(self._run, round(since * 1000)) if row.consumptions]
        # `recent` has no details, but a row is written as a whole, so whole rows are read.
        rows = self._store.get(self._run, [row.rollout_id for row in moved if self._ingest.crosses_restart(row)])
        records = [row for row in rows]
        self._recall(records)
        _into(self._ingest.divide(target, rows, now), batch, arrivals)

    def _recall(self, records: Sequence[Rollout]) -> None:
        self._look_back([*records, *self._recalled(records)])
        if others := self._ingest.later_in_sandboxes(records):
            self._recalled(others)

    def _recalled(self, records: Sequence[Rollout]) -> list[Rollout]:
        """Loads rollouts and groups that the records change into memory; returns those rollouts."""
        ingest, found = self._ingest, []
        if ids := ingest.unknown(records):
            found += self._store.get(self._run, ids)
            ingest.recall(found)
        if keys := ingest.missing_groups(records):
            members = self._store.members(self._run, keys)
            ingest.regroup(keys, members, self._store.groups(self._run, keys))
            # A change of one rollout may change its siblings' rows; rows are written whole, so they are read whole.
            if ids := ingest.unknown(row for row in members):
                found += (siblings := self._store.get(self._run, ids))
                ingest.recall(siblings)
        return [row for row in found]

    def _look_back(self, records: Iterable[Rollout]) -> None:
        """Loads, once, what earlier rollouts did to sandboxes, when the first record names a sandbox."""
        if not self._looked_back and self._ingest.has_new_sandbox(records):
            self._looked_back = True
            self._ingest.revisit(self._store.within(self._run, 0, ALWAYS, REVISITED))


def _into(changes: FoldedRecords, batch: Batch, arrivals: Arrivals) -> None:
    batch.rollouts += changes.rows
    batch.rollout_groups += changes.groups
    batch.rollout_sums += changes.sums
    batch.rollout_bins += changes.bins
    arrivals.rollouts += changes.arrivals


def versions(events: Iterable[Event], now: float) -> list[tuple[float, int]]:
    """Returns (time, version) of published versions among events; ``now`` dates events without a time."""
    published_ = (event for event in events if event.kind == PUBLISHED and event.version is not None)
    return [(now if event.ts is None else event.ts, event.version) for event in published_]  # type: ignore[misc]


def published(store: "Store", run: str, until: int = ALWAYS) -> VersionClock:
    """Returns the version clock of a run from the store, up to ``until`` (epoch ms)."""
    clock = VersionClock()
    for ts, event in store.runs.events(run, 0, until, [PUBLISHED], KEPT_VERSIONS):
        if event.version is not None:
            clock.publish(event.version, ts / 1000)
    return clock
