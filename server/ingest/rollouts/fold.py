"""Merges partial rollout records into rows, and computes derived values, groups and increments of the totals.

One `RolloutIngest` per run. Any order and any split of the same partial records gives the same rows and totals. A
repeated record changes nothing, because totals change by a row's new contribution minus its previous one.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from operator import attrgetter

from collectors.model import Rollout, Target
from server.ingest.incarnations import Incarnations
from server.ingest.rollouts.environments import affected_sandboxes, without_old_turns
from server.ingest.rollouts.environments import ages as environment_ages
from server.ingest.rollouts.groups import GroupKey, Groups
from server.ingest.rollouts.incarnations import (
    any_in,
    current_incarnation,
    in_incarnation,
    incarnation_of_known,
    new_incarnations,
    with_incarnation,
)
from server.ingest.rollouts.retention import Slowest, keeps_details
from server.ingest.rollouts.totals import RolloutTotals, closes
from server.ingest.updates import RolloutArrival
from server.rollouts import state as rollouts_state
from server.rollouts.environments import Environments, sandboxes, start, when
from server.rollouts.merge import cleaned, maker, merged, stripped, told_last
from server.rollouts.staleness import Judged, VersionClock, judge, newest_use
from server.rollouts.window import LIVE_MOST
from server.store.types import RolloutBin, RolloutGroupRow, RolloutRow, RolloutSum

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
_arrival_made, _row_made = maker(RolloutArrival), maker(RolloutRow)
_ROW_DEFAULTS = [column.default for column in fields(RolloutRow) if column.default is not MISSING]
# All fields of a row except its last source and the time of the last record.
_content = attrgetter(*(column.name for column in fields(RolloutRow) if column.name not in ("target", "seen_at")))


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
            known = self._known.get(record.rollout_id[:200], {}).get(number)
            group = record.group_id[:200] or (known.record.group_id if known is not None else "")
            numbers = (number,)
            if known is None and record.incarnation is None and self.incarnations.last is not None:
                # Siblings may have an older number of the same incarnation.
                numbers = (number, *new_incarnations(self.incarnations, record)[1])
            for candidate in numbers if group else ():
                if (group, candidate) not in self._groups:
                    result[group, candidate] = None
        return list(result)

    def later_in_sandboxes(self, records: Iterable[Rollout]) -> list[Rollout]:
        """Returns later rollouts of the same sandboxes, whose ages may change; only the id if not in memory."""
        known = ((record, self._known.get(record.rollout_id[:200], {}).values()) for record in records)
        affected = (box for record, rows in known for box in affected_sandboxes(record, [row.record for row in rows]))
        later = dict.fromkeys(key for box in affected for key in self._environments.after(*box))
        rows = (self._known.get(name, {}).get(number) for name, number in later)
        return [Rollout(name) if row is None else row.record for (name, _), row in zip(later, rows, strict=True)]

    def has_new_sandbox(self, records: Iterable[Rollout]) -> bool:
        """Do the records name a sandbox that is not in memory? Rollouts before our start may have changed it."""
        return any(box not in self._environments for record in records for box in sandboxes(record))

    def revisit(self, rows: Iterable[RolloutRow]) -> None:
        """Loads what stored rollouts did to their sandboxes."""
        for row in sorted(rows, key=lambda row: when(row.record, row.life, start(row.record, row.first_seen / 1000))):
            self._environments.revisit(row.record, row.life, start(row.record, row.first_seen / 1000))

    def regroup(
        self, keys: Iterable[GroupKey], members: Iterable[RolloutRow], groups: Iterable[RolloutGroupRow]
    ) -> None:
        """Takes the groups ``keys`` back into memory, with their stored members and rows."""
        self._groups.recall(list(keys), members, groups)

    def _remember(self, row: RolloutRow) -> None:
        name, key = row.record.rollout_id, (row.record.rollout_id, row.life)
        self._known.setdefault(name, {})[row.life] = row
        self._known.move_to_end(name)
        self._live.pop(key, None)
        if row.state not in rollouts_state.OVER:
            self._live[key] = None
        # A record without times is dated by its reading, which is too late for a history, so it is left out.
        if row.moved_at != row.first_seen:
            self._newest = max(self._newest, row.moved_at / 1000)
        self._newest_incarnation = max(self._newest_incarnation, row.life)
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
        return with_incarnation(self.incarnations, row.record, row.life) is not row.record

    def divide(self, target: Target, rows: Iterable[RolloutRow], now: float) -> FoldedRecords:
        """Updates rollouts that were used across a restart reported late; their groups must be in memory."""
        changes, totals = FoldedRecords(), RolloutTotals(self._named)
        for stored in rows:
            key = (stored.record.rollout_id, stored.life)
            if stored.life not in self._known.get(key[0], {}):
                self._remember(stored)
            row = self._known[key[0]][key[1]]
            record = with_incarnation(self.incarnations, row.record, row.life)
            if record is not row.record:
                self._settle(replace(target, name=row.target), key, record, now, changes, totals)
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
        known = {number: (work or {}).get((name, number), row.record) for number, row in rows.items()}
        if (number := incarnation_of_known(self.incarnations, known, record)) is not None:
            return number
        at, numbers = new_incarnations(self.incarnations, record)
        for number in numbers if record.group_id else ():
            group = self._groups.get((record.group_id[:200], number))
            if group is not None and any_in(self.incarnations, at, group.times()) and number not in known:
                return number
        # A late restart may give two incarnations one number; two rollouts with one id then need different numbers.
        candidates = (*numbers, *range(self.incarnations.newest, -1, -1))
        return next((number for number in candidates if number not in known), numbers[0])

    def _fold(self, record: Rollout, work: dict[Key, Rollout]) -> None:
        number = self._incarnation_of(record, work)
        key = (record.rollout_id, number)
        row = self._known.get(record.rollout_id, {}).get(number)
        known = work.get(key) or (row.record if row is not None else None)
        record = in_incarnation(self.incarnations, record, number, known)
        if known is None:
            complete = record
            # A placeholder row, so that later records of this batch match it.
            self._known.setdefault(record.rollout_id, {}).setdefault(number, _blank(record, number))
        else:
            if row is not None and row.judged_turns is not None and not known.turns:
                record = without_old_turns(self._environments, record, known, number)
            complete = merged(known, record)
        work[key] = with_incarnation(self.incarnations, complete, number)

    def _group(self, work: Mapping[Key, Rollout]) -> dict[GroupKey, tuple[bool, int | None, float | None]]:
        """Updates the groups of the records; returns the values that the members' rows depended on before."""
        return self._groups.put(
            ((record.group_id, number), record) for (_, number), record in work.items() if record.group_id
        )

    def _in_time(self, work: Mapping[Key, Rollout], now: float) -> dict[Key, Rollout]:
        """Sorts records by the time at which they changed their sandboxes; records without turns come first."""
        order = sorted(work.items(), key=lambda item: self._order(item[0], item[1], now) if item[1].turns else _FIRST)
        return dict(order)

    def _order(self, key: Key, record: Rollout, now: float) -> tuple[float, int, int, str]:
        row = self._known.get(key[0], {}).get(key[1])
        first_seen = round(now * 1000) if row is None or not row.target else row.first_seen
        return when(record, key[1], start(record, first_seen / 1000))

    def _judge_again(self, target: Target, now: float, changes: FoldedRecords, totals: RolloutTotals) -> None:
        """Recomputes rollouts whose sandboxes were changed earlier by rollouts that are reported only now."""
        for _ in range(JUDGED_AGAIN):
            if (key := self._environments.changed()) is None:
                return
            row = self._known.get(key[0], {}).get(key[1])
            if row is not None and row.target:
                self._settle(replace(target, name=row.target), key, row.record, now, changes, totals)
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
        ts = max(row.moved_at, ended or 0) / 1000
        # A pushed record may be merged after a reading that is newer. It is dated no earlier than the row it updates,
        # so that the driver receives both in order.
        seen = now if before is None else max(now, before.seen_at / 1000)
        changes.arrivals.append(_arrival_made(min(ts, seen), row, before, None, False))

    def _settle_groups(
        self, groups: Iterable[GroupKey], now: float, changes: FoldedRecords, totals: RolloutTotals
    ) -> None:
        closed: dict[GroupKey, bool] = {}
        for key in groups:
            group, row = self._groups.get(key), self._groups.row(key, round(now * 1000))
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
            key = (arrival.row.record.group_id, arrival.row.life)
            group = self._groups.get(key) if key[0] else None
            if group is not None and group.row is not None:
                ts = max(arrival.ts, group.row.completed_at / 1000) if group.row.completed_at else arrival.ts
                values = (ts, arrival.row, arrival.before, group.row, closed.pop(key, False))
                changes.arrivals[index] = _arrival_made(*values)

    # ---- rows

    def _row(
        self, target: Target, made_in: int, record: Rollout, before: RolloutRow | None, now: float, state: str
    ) -> RolloutRow:
        group = self._groups.get((record.group_id, made_in)) if record.group_id else None
        alone = group is None or self._groups.size(group) == 1
        complete = group is not None and group.complete
        state = state or rollouts_state.state(record, grouped=not alone, complete=complete)
        if before is not None and before.state == rollouts_state.ENDED and state not in rollouts_state.EXITS:
            state = rollouts_state.ENDED
        seen = round(now * 1000)
        first, seen = (before.first_seen, max(seen, before.seen_at)) if before is not None else (seen, seen)
        moved = _moved(record, before, first)
        ages = environment_ages(self._environments, record, before, made_in, first / 1000)
        version, done = (group.version, group.completed) if group is not None else (None, None)
        judged = judge(record, made_in, self.clock, ages, alone=alone, group_version=version, group_at=done)
        seconds, use = _seconds(record, moved), newest_use(record)
        detailed = keeps_details(record, judged.mixed, state, before, self._slowest.slow(seconds))
        if seconds is not None and (before is None or before.seconds is None):
            self._slowest.add(seconds)
        return _row_made(
            target.name, record if detailed else stripped(record), made_in, first, seen, state, moved,
            seconds, record.turn_count, use.version if use else None, _ms(use.at) if use else None,
            judged.staleness, judged.in_flight, judged.in_group, judged.in_queue, judged.token_staleness,
            judged.environment_staleness, judged.environment_latest, judged.environment_bound, judged.old_state_turns,
            judged.judged_turns, judged.environment_ages, _mixed(judged, before), judged.unknown, detailed,
        )  # fmt: skip

    # ---- rollouts without further records

    def _sweep(self, target: Target, now: float, changes: FoldedRecords, totals: RolloutTotals) -> None:
        """Ends rollouts that cannot be in flight any more: of an older incarnation, or without records for too long."""
        self._swept = self._newest
        rows = [self._known[name][number] for name, number in self._live]
        surplus = sorted(rows, key=lambda row: row.moved_at)[: max(0, len(rows) - LIVE_MOST)]
        lost = {(row.record.rollout_id, row.life): row for row in (*surplus, *filter(self._lost, rows))}
        for key, row in lost.items():
            source = replace(target, name=row.target)
            self._settle(source, key, row.record, now, changes, totals, rollouts_state.ENDED)

    def _lost(self, row: RolloutRow) -> bool:
        if current_incarnation(self.incarnations, row) < self._newest_incarnation:
            return True
        waited = self._newest - row.moved_at / 1000
        if row.state in _WAITING:
            return waited > (QUEUED_SECONDS if self._consumed else UNCONSUMED_SECONDS)
        return waited > LOST_SECONDS


def _blank(record: Rollout, made_in: int) -> RolloutRow:
    """Returns a placeholder row without a target, for a rollout that is being read."""
    return _row_made("", record, made_in, 0, 0, "", 0, *_ROW_DEFAULTS)


def _mixed(judged: Judged, before: RolloutRow | None) -> bool | None:
    """Were versions mixed? The previous answer stands if the turns that showed it were dropped."""
    return before.mixed if judged.mixed is None and before is not None else judged.mixed


def _moved(record: Rollout, before: RolloutRow | None, first: int) -> int:
    last = told_last(record)
    if last is None:
        return before.moved_at if before is not None else first
    dated = before is not None and (before.moved_at != before.first_seen or told_last(before.record) is not None)
    return max(round(last * 1000), before.moved_at) if dated and before is not None else round(last * 1000)


def _seconds(record: Rollout, moved: int) -> float | None:
    """Returns seconds from dispatch (or start) to the end, as far as reported."""
    begun = record.dispatched_at if record.dispatched_at is not None else record.started_at
    end = record.finished_at
    if end is None and record.exit is not None and not record.consumptions:
        end = moved / 1000
    return None if begun is None or end is None or end < begun else round(end - begun, 3)


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
