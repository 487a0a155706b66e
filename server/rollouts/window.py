"""The rollouts of one run over event time: what is in flight, and what was consumed and ended of late. Bounded.

A window is the last ten consumed versions of the newest life, at least three. What has no version of its own (exits,
groups, what was never consumed) is in it from the last consumption before them on. Where no consumption is ever told it
is five minutes.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from server.rollouts import state as rollouts_state
from server.rollouts.groups import ZERO_ADVANTAGE
from server.rollouts.notes import GroupNote, GroupRow, Key, RolloutNote, group_note, note
from server.rollouts.parts import Kind, Slot, Timed, TimedNotes, WindowPart, merged
from server.rollouts.staleness import uses
from server.rollouts.versions import VersionClock

# Exits of rollouts that were never in a batch. Batch files contain only the others, so that no failure in them
# does not mean that none failed.
_LOST = frozenset(rollouts_state.EXITS) - {"trained", "zero_advantage"}
# Consumed versions in a window.
WINDOW_VERSIONS = 10
# With fewer consumed versions there is no window yet.
MINIMUM_VERSIONS = 3
# Length of the window where no consumption is reported.
WINDOW_SECONDS = 300.0
# Two beyond the window: the version at whose end it begins, and a late one.
KEPT_VERSIONS = WINDOW_VERSIONS + 2
# Rollouts in flight in memory. More than a run has; limits memory if a source never reports ends.
LIVE_MOST = 100_000
# A rollout not reported for so long is not in flight; equal to the limit of `server.ingest.rollouts.fold`.
LOST_SECONDS = 86_400.0
# The same for a rollout that waits for scoring, its group or the trainer.
QUEUED_SECONDS = 3600.0
Place = tuple[int, int]
"""(incarnation, consumed version)."""

NO_RECORDS = "no rollout records: push them (POST /api/v1/runs/RUN/rollouts) or add a run directory that contains them"


@dataclass(frozen=True, slots=True)
class InFlight:
    """A rollout in flight. ``waits_since``: when its generation ended, epoch seconds; None: it has not."""

    state: str
    moved: float
    life: int
    waits_since: float | None
    sandboxes: tuple[str, ...]
    sampled: bool


@dataclass(slots=True)
class _Version:
    """What was consumed at one version, and from when to when (epoch seconds)."""

    slot: Slot = field(default_factory=Slot)
    first: float = math.inf
    last: float = -math.inf
    counted: bool = False


class Window:
    """One window of the book, as of one instant. Times are epoch seconds.

    Attributes:
        start, end: what happened within (start, end] is in it; `end` is the newest consumption's.
        versions: the consumed versions in it: (incarnation, version).
        sampled: nothing but samples is known: shares hold, numbers and rates do not.
        why: why it cannot judge yet; "" when it can.
    """

    def __init__(self, book: "RolloutBook", now: float) -> None:
        self._book, self.now = book, now
        self.versions, self.sampled = book.newest_versions()
        self.consumed = bool(self.versions)
        self.start, self.end = book.span(self.versions, now)
        count = len(self.versions)
        few = self.consumed and count < MINIMUM_VERSIONS
        self.why = f"{count} of the {MINIMUM_VERSIONS} consumed versions needed so far; no action needed" if few else ""
        if not book.met:
            self.why = NO_RECORDS

    @property
    def failures_told(self) -> bool:
        """Whether a failed rollout would have been reported."""
        return self._book.failures_told

    @cached_property
    def used(self) -> WindowPart:
        """Rollouts at their consumptions; each replay counts."""
        return merged([self._book.version(one).part(self.sampled) for one in self.versions])

    @cached_property
    def counts(self) -> list[int]:
        """Rollouts that each of its versions consumed, but for the newest version, which may still grow."""
        return [self._book.version(one).part(self.sampled).count for one in self.versions[:-1]]

    @property
    def first_end(self) -> float:
        """When the first of its versions was consumed last."""
        return self._book.span(self.versions[:1], self.now)[1]

    @property
    def kinds(self) -> Iterator[tuple[Kind, int]]:
        """The same by kind, and how many they are; a kind may come again."""
        return (one for place in self.versions for one in self._book.version(place).kinds(self.sampled).items())

    @cached_property
    def ended(self) -> WindowPart:
        """Rollouts that were made to their end, whether they were consumed or not."""
        parts = [merged(self._book.ended.made(self.start, math.inf, sampled)) for sampled in (False, True)]
        return parts[0] if parts[0].count else parts[1]

    def ended_values(self, name: str) -> list[float]:
        """One of `VALUES` of `ended`, ascending: what a window of many rollouts takes a fraction of the time for."""
        sampled = not self._book.ended.number(self.start, math.inf, sampled=False)
        return self._book.ended.values(name, self.start, math.inf, sampled)

    @cached_property
    def made(self) -> WindowPart:
        """The rollouts of distributions: consumed ones; if no consumption is reported, ended ones."""
        return self.used if self.consumed else self.ended

    @cached_property
    def exits(self) -> Counter[str]:
        """How rollouts left, by exit; samples count nowhere."""
        return Counter(self._book.left.within(self.start))

    @cached_property
    def groups(self) -> list[GroupNote]:
        """Complete groups: by completion time, or if only their use is reported, by its version."""
        oldest = self.versions[0][1] if self.versions else 0
        life = self.versions[0][0] if self.versions else -1
        found = [
            one for (_, of), one in self._book.groups.items()
            if (one.completed is not None and one.completed > self.start)
            or (one.completed is None and one.version is not None and of == life and one.version >= oldest)
            or (one.completed is None and one.version is None and one.at > self.start)
        ]  # fmt: skip
        return [one for one in found if not one.sampled] or found

    @cached_property
    def admitted(self) -> list[GroupNote]:
        """Groups of which the trainer used a member, by its version."""
        if not self.versions:
            return []
        life, oldest = self.versions[0]
        groups = self._book.groups.items()
        found = [one for (_, of), one in groups if one.admitted and of == life and (one.version or 0) >= oldest]
        return [one for one in found if not one.sampled] or found

    def rate(self, what: str) -> float | None:
        """Rollouts per second that were ``dispatched`` or ``completed`` within it; None where it has no length, or
        nobody tells when."""
        seconds, told = self.end - self.start, self._book.begin_told if what == "dispatched" else self._book.end_told
        if self.sampled or not told or not 0 < seconds < math.inf:
            return None
        if what == "dispatched":
            return self._book.dispatched.count(self.start, self.end) / seconds
        return self._book.ended.number(self.start, self.end, sampled=False) / seconds

    def fruitless(self, kind: Kind) -> bool | None:
        """Whether rollouts of this kind carried no gradient; None: not reported."""
        idle, key, _ = kind
        if idle is not None:
            return idle
        group = self._book.groups.get(key) if key is not None else None
        return None if group is None else group.outcome in ZERO_ADVANTAGE


class RolloutBook:
    """The windows of a run's rollouts that signals evaluate. Fed in the order of event time; train only.

    Attributes:
        clock: published versions.
        live: what is in flight; `ended`, `left`, `dispatched`: what happened of late; `groups`: complete ones.
        changed: something was reported since this was set to False.
        met, consumption_told: any rollout was reported, and any consumption; `watched`: any while in progress.
        failures_told: the sources also report failed rollouts, or would.
        begin_told, end_told: of any rollout, when its generation began and ended.
        alone: groups of one were reported.
        tellers: names of the targets that reported rollouts.
    """

    def __init__(self) -> None:
        self.clock = VersionClock()
        self.live: dict[Key, InFlight] = {}
        self.ended = TimedNotes()
        self.left: Timed[str] = Timed()
        self.dispatched: Timed[None] = Timed()
        self.groups: dict[Key, GroupNote] = {}
        self.changed = self.met = self.consumption_told = self.watched = self.alone = False
        self.failures_told = self.begin_told = self.end_told = False
        self.tellers: set[str] = set()
        self.life = -1
        self._versions: dict[Place, _Version] = {}
        self._newest, self._trimmed = -math.inf, -math.inf
        self._window: Window | None = None

    # ---- feeding

    def publish(self, version: int, ts: float) -> None:
        """A policy version that was published."""
        self.clock.publish(version, ts)
        self._touch()

    def put(self, row: RolloutNote, group: GroupRow | None = None) -> None:
        """A rollout (and its group) as it is known now."""
        record = row.record
        if record.purpose not in (None, "train"):
            return
        self._touch()
        self.met, self.life = True, max(self.life, row.life)
        self.tellers.add(row.target)
        self._newest = max(self._newest, row.moved_at / 1000)
        key = (record.rollout_id, row.life)
        self.alone = self.alone or record.group_size == 1
        self._put_live(key, row)
        self.failures_told = self.failures_told or self.watched or (row.state in _LOST and not record.sampled)
        self.end_told = self.end_told or (rollouts_state.generated_at(record) is not None and not record.sampled)
        begun = record.dispatched_at if record.dispatched_at is not None else record.started_at
        if begun is not None and not record.sampled:
            self.begin_told = True
            self.dispatched.put(key, begun, None)
        if rollouts_state.finished(record) or row.state in rollouts_state.OVER:
            one = note(row)
            self.ended.put(key, one.at, one)
        self._put_uses(key, row)
        if row.state in rollouts_state.EXITS and not record.sampled:
            used = min((use.at for use in record.consumptions if use.at is not None), default=None)
            self.left.put(key, used if row.state == "trained" and used is not None else row.moved_at / 1000, row.state)
        if group is not None:
            self._put_group(row, group)
        self._trim()

    def _touch(self) -> None:
        self.changed, self._window = True, None

    def _put_live(self, key: Key, row: RolloutNote) -> None:
        self.live.pop(key, None)
        if row.state in rollouts_state.OVER:
            return
        record = row.record
        since = rollouts_state.generated_at(record) if rollouts_state.finished(record) else None
        self.live[key] = InFlight(row.state, row.moved_at / 1000, row.life, since, record.sandbox_ids, record.sampled)
        self.watched = self.watched or not (rollouts_state.finished(record) or record.sampled)
        if len(self.live) > LIVE_MOST:
            del self.live[next(iter(self.live))]

    def _put_uses(self, key: Key, row: RolloutNote) -> None:
        for use in uses(row.record, row.life):
            self.consumption_told = True
            if use.version is None:
                continue
            place = (use.life, use.version)
            if place not in self._versions and len(self._versions) >= KEPT_VERSIONS and place < min(self._versions):
                continue
            version = self._versions.setdefault(place, _Version())
            one = note(row, use)
            version.slot.put(key, one)
            version.first, version.last = min(version.first, one.at), max(version.last, one.at)
            version.counted = version.counted or not one.sampled

    def _put_group(self, row: RolloutNote, group: GroupRow) -> None:
        key = (group.group_id, group.life)
        if group.outcome == "open":
            self.groups.pop(key, None)
            return
        record, before = row.record, self.groups.get(key)
        told = any(at is not None for at in (record.finished_at, record.scored_at, record.group_complete_at))
        told = told or (before is not None and before.completed is not None)
        difficulty = max(record.difficulty, before.difficulty if before is not None else "")
        self.groups[key] = group_note(group, difficulty, told)

    def _trim(self) -> None:
        while len(self._versions) > KEPT_VERSIONS:
            del self._versions[min(self._versions)]
        if self._newest - self._trimmed < WINDOW_SECONDS / 5:
            return
        self._trimmed = self._newest
        start = self.span(self.newest_versions()[0], self._newest)[0]
        start = max(start, self._newest - LOST_SECONDS)
        for timed in (self.ended, self.left, self.dispatched):
            timed.forget(start)
        oldest = min(self._versions, default=(-1, -1))
        self.groups = {
            key: one for key, one in self.groups.items()
            if one.at > start or (one.version is not None and (key[1], one.version) >= oldest)
        }  # fmt: skip

    # ---- asking

    def window(self, now: float) -> Window:
        """The window as of ``now``; computed once per instant."""
        if self._window is None or self._window.now != now:
            self._window = Window(self, now)
        return self._window

    def newest_versions(self) -> tuple[list[Place], bool]:
        """The last ten consumed (incarnation, version), ascending; and whether only samples report any."""
        counted = [place for place, one in self._versions.items() if one.counted]
        places = sorted(counted or self._versions)
        life = places[-1][0] if places else -1
        return [place for place in places if place[0] == life][-WINDOW_VERSIONS:], not counted and bool(places)

    def version(self, place: Place) -> Slot:
        return self._versions[place].slot

    def span(self, versions: list[Place], now: float) -> tuple[float, float]:
        """(start, end) of a window of those versions; without any, the last five minutes."""
        if not versions:
            return now - WINDOW_SECONDS, now
        before = [one.last for place, one in self._versions.items() if place < versions[0]]
        return max(before, default=-math.inf), max(self._versions[place].last for place in versions)

    def in_flight(self, now: float) -> Iterator[InFlight]:
        """Rollouts in flight at ``now``: of the newest incarnation, and reported within the limit.

        A rollout in a queue without reported consumption is not known to wait.
        """
        for one in self.live.values():
            waits = one.state in ("scoring", "waiting_group", "queued")
            if one.life < self.life or now - one.moved > (QUEUED_SECONDS if waits else LOST_SECONDS):
                continue
            if not one.sampled and (one.state != "queued" or self.consumption_told):
                yield one
