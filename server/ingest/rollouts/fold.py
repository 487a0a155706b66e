"""From what sources say of rollouts to rows: partial records made one, what follows from them, and what to add where.

One per run. Any order and any split of the same partial records gives the same rows and the same totals, and a record
that is told again changes nothing: totals are what a row adds now, less what it added before.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from operator import attrgetter

from collectors.model import Rollout, Target
from server.ingest.incarnations import Incarnations
from server.ingest.rollouts.counted import closes
from server.ingest.rollouts.environments import ages as ages_by_now
from server.ingest.rollouts.environments import places, without_old_turns
from server.ingest.rollouts.groups import GroupKey, Groups
from server.ingest.rollouts.incarnations import (
    any_in,
    current_incarnation,
    in_incarnation,
    incarnation_of_known,
    new_incarnations,
    with_incarnation,
)
from server.ingest.rollouts.retention import Slowest, kept
from server.ingest.rollouts.totals import RolloutTotals
from server.ingest.updates import RolloutArrival
from server.rollouts import state as rollouts_state
from server.rollouts.environments import Environments, sandboxes, start, when
from server.rollouts.merge import cleaned, merged, stripped, told_last
from server.rollouts.quick import maker
from server.rollouts.staleness import Judged, judge, newest_use
from server.rollouts.versions import VersionClock
from server.store.types import RolloutBin, RolloutGroupRow, RolloutRow, RolloutSum

Key = tuple[str, int]
"""(rollout id, life of the trainer)."""

# Of what has left so many are remembered; others are recalled from the store when somebody speaks of them again.
REMEMBERED = 20_000
# Nobody holds more rollouts in flight than this; a source that never says how they end would fill the memory.
LIVE_MOST = 100_000
# Whoever generates for a day was forgotten by whoever told of it.
LOST_SECONDS = 86_400.0
# Complete, and nobody says how it was used: an hour where consumption is told, ten minutes where it never is.
QUEUED_SECONDS, UNTOLD_SECONDS = 3600.0, 600.0
SWEEP_SECONDS = 60.0
# Rollouts in kept sandboxes, when one call tells an older change of them.
JUDGED_AGAIN = 1_000
_FIRST = (-math.inf, 0, 0, "")
_WAITING = frozenset({"scoring", "waiting_group", "queued"})
_arrival_made, _row_made = maker(RolloutArrival), maker(RolloutRow)
_UNJUDGED = [one.default for one in fields(RolloutRow) if one.default is not MISSING]
# All of a row but who told it last, and when.
_said_of = attrgetter(*(one.name for one in fields(RolloutRow) if one.name not in ("target", "seen_at")))


@dataclass(slots=True)
class FoldedRecords:
    """What one call brings: rows for the batch, and what became of them for the driver."""

    rows: list[RolloutRow] = field(default_factory=list)
    groups: list[RolloutGroupRow] = field(default_factory=list)
    sums: list[RolloutSum] = field(default_factory=list)
    bins: list[RolloutBin] = field(default_factory=list)
    arrivals: list[RolloutArrival] = field(default_factory=list)


class RolloutIngest:
    """What is known of one run's rollouts, so that a partial record finds the one it adds to.

    Args:
        rows: those in flight, as the store holds them; others are to be recalled when they are met.
        lives: of the run's trainer; clock: its published versions. Both grow as they are told.
        facts: of the run (group_size, max_reward), as they come to be known.
        environments: names the funnel has already.
    """

    def __init__(
        self, rows: Iterable[RolloutRow] = (), lives: Incarnations | None = None, clock: VersionClock | None = None,
        facts: Mapping[str, str | float] | None = None, environments: Iterable[str] = (),
    ) -> None:  # fmt: skip
        self.lives, self.clock = lives or Incarnations(0), clock or VersionClock()
        self._known: OrderedDict[str, dict[int, RolloutRow]] = OrderedDict()
        self._groups, self._environments = Groups(facts if facts is not None else {}), Environments()
        self._named, self._slowest = set(environments), Slowest()
        self._live: dict[Key, None] = {}
        # Newest event time and life told so far, whether any consumption was, and when old ones were last looked for.
        self._newest, self._swept, self._consumed, self._life = -math.inf, -math.inf, False, -1
        self.recall(rows)

    # ---- memory

    def unknown(self, records: Iterable[Rollout]) -> list[str]:
        """Ids that are not in memory: new ones, or ones that left too long ago to be remembered."""
        ids = dict.fromkeys(record.rollout_id[:200] for record in records)
        return [one for one in ids if one and one not in self._known]

    def recall(self, rows: Iterable[RolloutRow]) -> None:
        """Take rows of the store back into memory: what was counted once must not look new."""
        for row in rows:
            self._remember(row)

    def lacking(self, records: Iterable[Rollout]) -> list[GroupKey]:
        """Groups these records touch that are not in memory; ask after `recall`."""
        found: dict[GroupKey, None] = {}
        for record in records:
            life = self._life_of(record)
            known = self._known.get(record.rollout_id[:200], {}).get(life)
            group = record.group_id[:200] or (known.record.group_id if known is not None else "")
            lives = (life,)
            if (
                known is None and record.incarnation is None and self.lives.last is not None
            ):  # its siblings may have an older number of its life
                lives = (life, *new_incarnations(self.lives, record)[1])
            for one in lives if group else ():
                if (group, one) not in self._groups:
                    found[group, one] = None
        return list(found)

    def neighbours(self, records: Iterable[Rollout]) -> list[Rollout]:
        """Those later in the same sandboxes, whose ages may follow from these; of some the id alone is known."""
        known = ((one, self._known.get(one.rollout_id[:200], {}).values()) for one in records)
        found = (place for one, rows in known for place in places(one, [row.record for row in rows]))
        shared = dict.fromkeys(key for place in found for key in self._environments.after(*place))
        rows = (self._known.get(name, {}).get(life) for name, life in shared)
        return [Rollout(name) if row is None else row.record for (name, _), row in zip(shared, rows, strict=True)]

    def met_before(self, records: Iterable[Rollout]) -> bool:
        """Do they name a sandbox that nobody named since our start? Others may have changed it before."""
        return any(box not in self._environments for record in records for box in sandboxes(record))

    def revisit(self, rows: Iterable[RolloutRow]) -> None:
        """Rollouts of the store that were judged before our start: what each did to its sandboxes."""
        for row in sorted(rows, key=lambda row: when(row.record, row.life, start(row.record, row.first_seen / 1000))):
            self._environments.revisit(row.record, row.life, start(row.record, row.first_seen / 1000))

    def regroup(
        self, keys: Iterable[GroupKey], members: Iterable[RolloutRow], groups: Iterable[RolloutGroupRow]
    ) -> None:
        """Take groups back into memory: those of ``keys`` with their members and rows, as the store has them."""
        self._groups.recall(list(keys), members, groups)

    def _remember(self, row: RolloutRow) -> None:
        name, key = row.record.rollout_id, (row.record.rollout_id, row.life)
        self._known.setdefault(name, {})[row.life] = row
        self._known.move_to_end(name)
        self._live.pop(key, None)
        if row.state not in rollouts_state.OVER:
            self._live[key] = None
        # What tells no time of its own is dated by when it was met, which in a history is long after.
        if row.moved_at != row.first_seen:
            self._newest = max(self._newest, row.moved_at / 1000)
        self._life = max(self._life, row.life)
        self._consumed = self._consumed or bool(row.record.consumptions)

    def _forget(self) -> None:
        over = len(self._known) - len(self._live) - REMEMBERED
        for _ in range(over):
            name, rows = self._known.popitem(last=False)
            if any((name, life) in self._live for life in rows):
                self._known[name] = rows
        self._groups.forget()

    # ---- taking

    def take(self, target: Target, records: Iterable[Rollout], now: float) -> FoldedRecords:
        """What the records change; ``now``: when they were met (epoch seconds), for what tells no time."""
        work: dict[Key, Rollout] = {}
        for record in records:
            if record.rollout_id:
                self._fold(cleaned(record), work)
        taken, totals = FoldedRecords(), RolloutTotals(self._named)
        groups = self._group(work)
        for key, record in self._with_siblings(self._in_time(work, now), groups):
            self._settle(target, key, record, now, taken, totals)
        self._judge_again(target, now, taken, totals)
        self._settle_groups(groups, now, taken, totals)
        if self._newest - self._swept >= SWEEP_SECONDS:
            self._sweep(target, now, taken, totals)
        taken.sums, taken.bins = totals.sums(), totals.bins()
        self._forget()
        return taken

    def crosses(self, row: RolloutRow) -> bool:
        """Was it used across a restart that its row knows nothing of?"""
        return with_incarnation(self.lives, row.record, row.life) is not row.record

    def divide(self, target: Target, rows: Iterable[RolloutRow], now: float) -> FoldedRecords:
        """What changes of rollouts, whose groups are in memory, that were used across a restart which is told late."""
        taken, totals = FoldedRecords(), RolloutTotals(self._named)
        for met in rows:
            key = (met.record.rollout_id, met.life)
            if met.life not in self._known.get(key[0], {}):
                self._remember(met)
            row = self._known[key[0]][key[1]]
            record = with_incarnation(self.lives, row.record, row.life)
            if record is not row.record:
                self._settle(replace(target, name=row.target), key, record, now, taken, totals)
        self._tell_groups({}, taken)
        taken.sums, taken.bins = totals.sums(), totals.bins()
        self._forget()
        return taken

    def _life_of(self, record: Rollout, work: Mapping[Key, Rollout] | None = None) -> int:
        """The life whose rollout a record speaks of; ``work``: what was told in this batch."""
        name = record.rollout_id[:200]
        rows = self._known.get(name, {})
        if record.incarnation is None and self.lives.last is None:  # then nothing tells one life from another
            return max(rows, default=self.lives.newest)
        known = {life: (work or {}).get((name, life), row.record) for life, row in rows.items()}
        if (life := incarnation_of_known(self.lives, known, record)) is not None:
            return life
        at, numbers = new_incarnations(self.lives, record)
        for life in numbers if record.group_id else ():
            group = self._groups.get((record.group_id[:200], life))
            if group is not None and any_in(self.lives, at, group.times()) and life not in known:
                return life
        # Two lives may have come to one number, by a restart that was told late: two rollouts are no one.
        return next((life for life in (*numbers, *range(self.lives.newest, -1, -1)) if life not in known), numbers[0])

    def _fold(self, said: Rollout, work: dict[Key, Rollout]) -> None:
        life = self._life_of(said, work)
        key = (said.rollout_id, life)
        row = self._known.get(said.rollout_id, {}).get(life)
        known = work.get(key) or (row.record if row is not None else None)
        said = in_incarnation(self.lives, said, life, known)
        if known is None:
            found = said
            # So that what comes next in this batch finds it.
            self._known.setdefault(said.rollout_id, {}).setdefault(life, _blank(said, life))
        else:
            if row is not None and row.judged_turns is not None and not known.turns:
                said = without_old_turns(self._environments, said, known, life)
            found = merged(known, said)
        work[key] = with_incarnation(self.lives, found, life)

    def _group(self, work: Mapping[Key, Rollout]) -> dict[GroupKey, tuple[bool, int | None, float | None]]:
        """Groups of what was told, with what their members' rows followed from before."""
        return self._groups.put(
            ((record.group_id, life), record) for (_, life), record in work.items() if record.group_id
        )

    def _in_time(self, work: Mapping[Key, Rollout], now: float) -> dict[Key, Rollout]:
        """In the order in which they changed their sandboxes; what tells no turns first."""
        return dict(sorted(work.items(), key=lambda one: self._place(one[0], one[1], now) if one[1].turns else _FIRST))

    def _place(self, key: Key, record: Rollout, now: float) -> tuple[float, int, int, str]:
        row = self._known.get(key[0], {}).get(key[1])
        met = round(now * 1000) if row is None or not row.target else row.first_seen
        return when(record, key[1], start(record, met / 1000))

    def _judge_again(self, target: Target, now: float, taken: FoldedRecords, totals: RolloutTotals) -> None:
        """Rollouts of which others' changes are told only now."""
        for _ in range(JUDGED_AGAIN):
            if (key := self._environments.changed()) is None:
                return
            row = self._known.get(key[0], {}).get(key[1])
            if row is not None and row.target:
                self._settle(replace(target, name=row.target), key, row.record, now, taken, totals)
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
                    yield (name, key[1]), row.record

    def _settle(
        self,
        target: Target,
        key: Key,
        record: Rollout,
        now: float,
        taken: FoldedRecords,
        totals: RolloutTotals,
        state: str = "",
    ) -> None:
        before: RolloutRow | None = self._known.get(key[0], {}).get(key[1])
        before = before if before is not None and before.target else None
        row = self._row(target, key[1], record, before, now, state)
        if before is not None and _said_of(row) == _said_of(before):
            return
        self._remember(row)
        totals.change(before, row)
        taken.rows.append(row)
        group = self._groups.get((record.group_id, key[1])) if record.group_id else None
        ended = group.row.completed_at if group is not None and group.row is not None else None
        ts = max(row.moved_at, ended or 0) / 1000
        # What is pushed may be taken after what was read later: it is dated no earlier than the row it adds to, or the
        # driver would hear of that one last.
        met = now if before is None else max(now, before.seen_at / 1000)
        taken.arrivals.append(_arrival_made(min(ts, met), row, before, None, False))

    def _settle_groups(
        self, groups: Iterable[GroupKey], now: float, taken: FoldedRecords, totals: RolloutTotals
    ) -> None:
        closed: dict[GroupKey, bool] = {}
        for key in groups:
            group, row = self._groups.get(key), self._groups.row(key, round(now * 1000))
            if group is None or row is None or row == group.row:
                continue
            closed[key] = closes(group.row, row)
            totals.group(group.row, row)
            group.row = row
            taken.groups.append(row)
        self._tell_groups(closed, taken)
        for key in [key for key, closes_ in closed.items() if closes_]:
            self._tell_closed(key, now, taken)

    def _tell_closed(self, key: GroupKey, now: float, taken: FoldedRecords) -> None:
        """A group was closed by what became known of the run: none of its members tells anything new."""
        group = self._groups.get(key)
        known = (self._known.get(name, {}).get(key[1]) for name in (group.members if group is not None else ()))
        row = next((one for one in known if one is not None), None)
        if row is not None and group is not None:
            taken.arrivals.append(RolloutArrival(now, row, row, group.row, True))

    def _tell_groups(self, closed: dict[GroupKey, bool], taken: FoldedRecords) -> None:
        """Each arrival carries its group as it is now; one of them says that the group was closed."""
        for at, arrival in enumerate(taken.arrivals):
            key = (arrival.row.record.group_id, arrival.row.life)
            group = self._groups.get(key) if key[0] else None
            if group is not None and group.row is not None:
                ts = max(arrival.ts, group.row.completed_at / 1000) if group.row.completed_at else arrival.ts
                told = (ts, arrival.row, arrival.before, group.row, closed.pop(key, False))
                taken.arrivals[at] = _arrival_made(*told)

    # ---- rows

    def _row(
        self, target: Target, life: int, record: Rollout, before: RolloutRow | None, now: float, state: str
    ) -> RolloutRow:
        group = self._groups.get((record.group_id, life)) if record.group_id else None
        alone = group is None or self._groups.size(group) == 1
        complete = group is not None and group.complete
        state = state or rollouts_state.state(record, grouped=not alone, complete=complete)
        if before is not None and before.state == rollouts_state.ENDED and state not in rollouts_state.EXITS:
            state = rollouts_state.ENDED
        seen = round(now * 1000)
        first, seen = (before.first_seen, max(seen, before.seen_at)) if before is not None else (seen, seen)
        moved = _moved(record, before, first)
        ages = ages_by_now(self._environments, record, before, life, first / 1000)
        version, done = (group.version, group.completed) if group is not None else (None, None)
        judged = judge(record, life, self.clock, ages, alone=alone, group_version=version, group_at=done)
        seconds, use = _seconds(record, moved), newest_use(record)
        detailed = kept(record, judged.mixed, state, before, self._slowest.slow(seconds))
        if seconds is not None and (before is None or before.seconds is None):
            self._slowest.add(seconds)
        return _row_made(
            target.name, record if detailed else stripped(record), life, first, seen, state, moved,
            seconds, record.turn_count, use.version if use else None, _ms(use.at) if use else None,
            judged.staleness, judged.in_flight, judged.in_group, judged.in_queue, judged.token_staleness,
            judged.environment_staleness, judged.environment_latest, judged.environment_bound, judged.old_state_turns,
            judged.judged_turns, judged.environment_ages, _mixed(judged, before), judged.unknown, detailed,
        )  # fmt: skip

    # ---- what nobody speaks of any more

    def _sweep(self, target: Target, now: float, taken: FoldedRecords, totals: RolloutTotals) -> None:
        """Rollouts that are in flight by what was told of them, and cannot be: of an older life, or long forgotten."""
        self._swept = self._newest
        rows = [self._known[name][life] for name, life in self._live]
        surplus = sorted(rows, key=lambda row: row.moved_at)[: max(0, len(rows) - LIVE_MOST)]
        lost = {(row.record.rollout_id, row.life): row for row in (*surplus, *filter(self._lost, rows))}
        for key, row in lost.items():
            by = replace(target, name=row.target)
            self._settle(by, key, row.record, now, taken, totals, rollouts_state.ENDED)

    def _lost(self, row: RolloutRow) -> bool:
        if current_incarnation(self.lives, row) < self._life:
            return True
        waited = self._newest - row.moved_at / 1000
        if row.state in _WAITING:
            return waited > (QUEUED_SECONDS if self._consumed else UNTOLD_SECONDS)
        return waited > LOST_SECONDS


def _blank(record: Rollout, life: int) -> RolloutRow:
    """A place in memory for a rollout that is being read: no target has told it yet."""
    return _row_made("", record, life, 0, 0, "", 0, *_UNJUDGED)


def _mixed(judged: Judged, before: RolloutRow | None) -> bool | None:
    """What turns told that were not kept still holds."""
    return before.mixed if judged.mixed is None and before is not None else judged.mixed


def _moved(record: Rollout, before: RolloutRow | None, first: int) -> int:
    told = told_last(record)
    if told is None:
        return before.moved_at if before is not None else first
    known = before is not None and (before.moved_at != before.first_seen or told_last(before.record) is not None)
    return max(round(told * 1000), before.moved_at) if known and before is not None else round(told * 1000)


def _seconds(record: Rollout, moved: int) -> float | None:
    """Dispatched (or started) to its end, as far as told."""
    begun = record.dispatched_at if record.dispatched_at is not None else record.started_at
    end = record.finished_at
    if end is None and record.exit is not None and not record.consumptions:
        end = moved / 1000
    return None if begun is None or end is None or end < begun else round(end - begun, 3)


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
