"""From what sources say of rollouts to rows: partial records made one, what follows from them, and what to add where.

One per run. Any order and any split of the same partial records gives the same rows and the same totals, and a record
that is told again changes nothing: totals are what a row adds now, less what it added before.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from collectors.model import Consumption, Rollout, Target
from server.arrivals import RolloutArrival
from server.lives import Lives
from server.rollout_detail import Slowest, kept
from server.rollout_groups import GroupKey, Groups
from server.rollout_merge import TIMES, cleaned, merged, stripped
from server.rollout_totals import Totals
from server.signals import _census
from server.signals._environments import Ages, Environments
from server.signals._staleness import Judged, ages_of, judge, newest_use
from server.signals._versions import VersionClock
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
_WAITING = frozenset({"scoring", "waiting_group", "queued"})
_GENERATED = ("version_dispatched", "version_start", "version_finish", "dispatched_at", "started_at", "finished_at")


@dataclass(slots=True)
class Taken:
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
        self, rows: Iterable[RolloutRow] = (), lives: Lives | None = None, clock: VersionClock | None = None,
        facts: Mapping[str, str | float] | None = None, environments: Iterable[str] = (),
    ) -> None:  # fmt: skip
        self.lives, self.clock = lives or Lives(0), clock or VersionClock()
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
            if group and (group, life) not in self._groups:
                found[(group, life)] = None
        return list(found)

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
        if row.state not in _census.OVER:
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

    def take(self, target: Target, records: Iterable[Rollout], now: float) -> Taken:
        """What the records change; ``now``: when they were met (epoch seconds), for what tells no time."""
        work: dict[Key, Rollout] = {}
        for record in records:
            if record.rollout_id:
                self._fold(cleaned(record), work)
        taken, totals = Taken(), Totals(self._named)
        groups = self._group(work)
        for key, record in self._with_siblings(work, groups):
            self._settle(target, key, record, now, taken, totals)
        self._settle_groups(groups, now, taken, totals)
        if self._newest - self._swept >= SWEEP_SECONDS:
            self._sweep(target, now, taken, totals)
        taken.sums, taken.bins = totals.sums(), totals.bins()
        self._forget()
        return taken

    def _life_of(self, record: Rollout) -> int:
        """The life whose rollout a record speaks of. What only says how it was used joins the newest of that id."""
        rows = self._known.get(record.rollout_id[:200])
        told = record.incarnation
        if told is not None and (not rows or told in rows or _generated(record)):
            return told
        if rows:
            return max(rows)
        return self.lives.at(record.dispatched_at if record.dispatched_at is not None else record.started_at)

    def _fold(self, said: Rollout, work: dict[Key, Rollout]) -> None:
        life = self._life_of(said)
        key = (said.rollout_id, life)
        row = self._known.get(said.rollout_id, {}).get(life)
        known = work.get(key) or (row.record if row is not None else None)
        said = self._of_life(said, life, known)
        if known is None:
            found = said
            # So that what comes next in this batch finds it.
            self._known.setdefault(said.rollout_id, {}).setdefault(life, _blank(said, life))
        else:
            if row is not None and row.judged_turns is not None and not known.turns:
                said = _without_old_turns(said, known)
            found = merged(known, said)
        work[key] = found

    def _of_life(self, said: Rollout, life: int, known: Rollout | None) -> Rollout:
        """Its consumptions are of the life it tells, else of the one the run was in."""
        if not said.consumptions:
            return said if said.incarnation in (None, life) else replace(said, incarnation=None)
        told = said.incarnation if said.incarnation is not None else known.incarnation if known is not None else None
        uses = []
        for use in said.consumptions:
            at = use.incarnation
            if at is None:
                at = self.lives.at(use.at) if told is None else told
            at = None if at == life else at
            uses.append(use if at == use.incarnation else Consumption(use.version, use.at, at))
        own = said.incarnation if said.incarnation == life else None
        if own == said.incarnation and tuple(uses) == said.consumptions:
            return said
        return replace(said, consumptions=tuple(uses), incarnation=own)

    def _group(self, work: Mapping[Key, Rollout]) -> dict[GroupKey, tuple[bool, int | None, float | None]]:
        """Groups of what was told, with what their members' rows followed from before."""
        found: dict[GroupKey, tuple[bool, int | None, float | None]] = {}
        for (_, life), record in work.items():
            if record.group_id:
                before = self._groups.put((record.group_id, life), record)
                found.setdefault((record.group_id, life), before)
        return found

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
        self, target: Target, key: Key, record: Rollout, now: float, taken: Taken, totals: Totals, state: str = ""
    ) -> None:
        before: RolloutRow | None = self._known.get(key[0], {}).get(key[1])
        before = before if before is not None and before.target else None
        row = self._row(target, key[1], record, before, now, state)
        if before is not None and replace(row, target=before.target, seen_at=before.seen_at) == before:
            return
        self._remember(row)
        totals.change(before, row)
        taken.rows.append(row)
        group = self._groups.get((record.group_id, key[1])) if record.group_id else None
        ended = group.row.completed_at if group is not None and group.row is not None else None
        ts = max(row.moved_at, ended or 0) / 1000
        taken.arrivals.append(RolloutArrival(min(ts, now), row, before))

    def _settle_groups(self, groups: Iterable[GroupKey], now: float, taken: Taken, totals: Totals) -> None:
        closed: dict[GroupKey, bool] = {}
        for key in groups:
            group, row = self._groups.get(key), self._groups.row(key, round(now * 1000))
            if group is None or row is None or row == group.row:
                continue
            closed[key] = row.outcome != "open" and (group.row is None or group.row.outcome == "open")
            totals.group(group.row, row)
            group.row = row
            taken.groups.append(row)
        self._tell_groups(closed, taken)

    def _tell_groups(self, closed: dict[GroupKey, bool], taken: Taken) -> None:
        """Each arrival carries its group as it is now; one of them says that the group was closed."""
        for at, arrival in enumerate(taken.arrivals):
            key = (arrival.row.record.group_id, arrival.row.life)
            group = self._groups.get(key) if key[0] else None
            if group is not None and group.row is not None:
                ts = max(arrival.ts, group.row.completed_at / 1000) if group.row.completed_at else arrival.ts
                taken.arrivals[at] = replace(
                    arrival, ts=ts, group=group.row, closed=closed.pop(key, False)
                )  # fmt: skip

    # ---- rows

    def _row(
        self, target: Target, life: int, record: Rollout, before: RolloutRow | None, now: float, state: str
    ) -> RolloutRow:
        group = self._groups.get((record.group_id, life)) if record.group_id else None
        alone = group is None or self._groups.size(group) == 1
        complete = group is not None and group.complete
        state = state or _census.state(record, grouped=not alone, complete=complete)
        if before is not None and before.state == _census.ENDED and state not in _census.EXITS:
            state = _census.ENDED
        first = before.first_seen if before is not None else round(now * 1000)
        moved = _moved(record, before, first)
        ages = self._ages(record, before, life, first / 1000)
        version, done = (group.version, group.completed) if group is not None else (None, None)
        judged = judge(record, life, self.clock, ages, alone=alone, group_version=version, group_at=done)
        seconds, use = _seconds(record, moved), newest_use(record)
        detailed = kept(record, judged.mixed, state, before, self._slowest.slow(seconds))
        if seconds is not None and (before is None or before.seconds is None):
            self._slowest.add(seconds)
        return RolloutRow(
            target.name, record if detailed else stripped(record), life, first, round(now * 1000), state, moved,
            seconds, record.turn_count, use.version if use else None, _ms(use.at) if use else None,
            judged.staleness, judged.in_flight, judged.in_group, judged.in_queue, judged.token_staleness,
            judged.environment_staleness, judged.environment_latest, judged.environment_bound, judged.old_state_turns,
            judged.judged_turns, judged.environment_ages, _mixed(judged, before), judged.unknown, detailed,
        )  # fmt: skip

    def _ages(self, record: Rollout, before: RolloutRow | None, life: int, met: float) -> Ages | None:
        if record.turns:
            times = [at for at in (record.started_at, record.dispatched_at, record.first_token_at) if at is not None]
            return self._environments.judge(record, life, min(times, default=met))
        if before is None or before.judged_turns is None:
            return None
        latest = round((before.environment_latest or 0.0) * before.judged_turns)
        return Ages(dict(ages_of(before.environment_ages)), latest, before.environment_bound)

    # ---- what nobody speaks of any more

    def _sweep(self, target: Target, now: float, taken: Taken, totals: Totals) -> None:
        """Rollouts that are in flight by what was told of them, and cannot be: of an older life, or long forgotten."""
        self._swept = self._newest
        rows = [self._known[name][life] for name, life in self._live]
        surplus = sorted(rows, key=lambda row: row.moved_at)[: max(0, len(rows) - LIVE_MOST)]
        lost = {(row.record.rollout_id, row.life): row for row in (*surplus, *filter(self._lost, rows))}
        for key, row in lost.items():
            by = replace(target, name=row.target)
            self._settle(by, key, row.record, now, taken, totals, _census.ENDED)

    def _lost(self, row: RolloutRow) -> bool:
        if row.life < self._life:
            return True
        waited = self._newest - row.moved_at / 1000
        if row.state in _WAITING:
            return waited > (QUEUED_SECONDS if self._consumed else UNTOLD_SECONDS)
        return waited > LOST_SECONDS


def _generated(record: Rollout) -> bool:
    """Does it tell anything of how the rollout was made?"""
    told = any(getattr(record, name) is not None for name in _GENERATED)
    return told or bool(record.token_versions or record.turns)


def _blank(record: Rollout, life: int) -> RolloutRow:
    """A place in memory for a rollout that is being read: no target has told it yet."""
    return RolloutRow("", record, life, 0, 0, "", 0)


def _without_old_turns(said: Rollout, known: Rollout) -> Rollout:
    """Turns that were judged and not kept say nothing new when they are told again."""
    return said if len(said.turns) > (known.turn_count or 0) else replace(said, turns=())


def _mixed(judged: Judged, before: RolloutRow | None) -> bool | None:
    """What turns told that were not kept still holds."""
    return before.mixed if judged.mixed is None and before is not None else judged.mixed


def _told(record: Rollout) -> float | None:
    """The newest time it tells of itself."""
    times = [at for name in TIMES if (at := getattr(record, name)) is not None]
    times += [use.at for use in record.consumptions if use.at is not None]
    times += [span.start if span.end is None else span.end for span in record.spans]
    return max(times, default=None)


def _moved(record: Rollout, before: RolloutRow | None, first: int) -> int:
    told = _told(record)
    if told is None:
        return before.moved_at if before is not None else first
    known = before is not None and (before.moved_at != before.first_seen or _told(before.record) is not None)
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
