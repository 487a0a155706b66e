"""The rollouts of one run over event time: what is in flight, and what was consumed and ended of late. Bounded.

A window is the last ten consumed versions of the newest life, at least three. What has no version of its own (exits,
groups, what was never consumed) is in it from the last consumption before them on. Where no consumption is ever told it
is five minutes.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import Generic, TypeVar

from msgspec import Struct, structs

from collectors.model import Rollout
from server.rollouts import model as rollouts_model
from server.rollouts.groups import ZERO_ADVANTAGE, joined
from server.rollouts.model import RolloutGroupRow, RolloutRow
from server.rollouts.staleness import Use, VersionClock, ages_of, made_by, uses

# ---- notes
# The notes that a window stores of a rollout and of a group, and their inputs.

Key = tuple[str, int]
"""(rollout or group id, trainer incarnation)."""


class Note(Struct, frozen=True):
    """A rollout in a window: at one of its consumptions, or since it ended. Times are epoch seconds.

    Attributes:
        at: when it was consumed, or left.
        age: seconds from the end of its generation to this use; None: one of the two is not reported.
        whole: it was made to its end and its outcome is its own (not aborted, not lost).
        staleness: trajectory level at this use; parts: (in flight, in its group, in the queue).
        tokens_by_age, turns_by_age: loss tokens by their age at this use, turns by that of their environment's state.
        latest: sum over its turns of the age since the latest mutation.
        idle: its advantage is reported and is 0.
    """

    at: float
    age: float | None
    exit: str
    whole: bool
    environment: str
    difficulty: str
    group: Key | None
    sampled: bool
    response_tokens: int | None
    seconds: float | None
    turns: int | None
    tool_calls: int | None
    reward: float | None
    idle: bool | None
    mixed: bool | None
    unknown: str
    staleness: int | None = None
    parts: tuple[int, int, int] | None = None
    tokens_by_age: dict[int, int] = {}
    turns_by_age: dict[int, int] = {}
    latest: float = 0.0
    bound: bool = False


_ABORTED = frozenset(("aborted_oversample", *rollouts_model.FAILED))


def rollout_note(row: RolloutRow) -> Note:
    """A rollout since it ended."""
    ended = row.finished_at if row.finished_at is not None else rollouts_model.ended_at(row)
    turns = _turns_by_age(row)
    return Note(
        row.moved_at if ended is None else ended, None, row.state,
        rollouts_model.finished(row) and row.exit not in _ABORTED, row.environment, row.difficulty,
        (row.group_id, row.life) if row.group_id else None, row.sampled, row.response_tokens, row.seconds,
        row.turn_count, row.tool_calls, row.reward,
        None if row.advantage is None else abs(row.advantage) < 1e-12, row.mixed, row.unknown, None, None, {}, turns,
        (row.environment_latest or 0.0) * sum(turns.values()), row.environment_bound,
    )  # fmt: skip


def use_note(row: RolloutRow, ended: Note, use: Use) -> Note:
    """A rollout at a consumption; ``ended``: its `rollout_note`."""
    at = row.moved_at if use.at is None else use.at
    return structs.replace(
        ended, at=at, age=_age(row, use), staleness=use.staleness, parts=_parts(row, use),
        tokens_by_age=_tokens_by_age(row, use),
    )  # fmt: skip


def _turns_by_age(row: RolloutRow) -> dict[int, int]:
    """What is known of one turn alone, in no sandbox and without a word on tools, is nothing: its 0 is every such
    rollout's, while those of several turns have no age, and they would all look as if on the newest state."""
    turns = dict(ages_of(row.environment_ages))
    return {} if turns == {0: 1} and row.tool_calls is None and not row.sandbox_ids else turns


def _age(record: Rollout, use: Use) -> float | None:
    """What is dated by something else than its own end, or its use, has no age: 0 would be invented."""
    ended = rollouts_model.generated_at(record)
    return None if use.at is None or ended is None else max(0.0, use.at - ended)


def _parts(row: RolloutRow, use: Use) -> tuple[int, int, int] | None:
    """What was not spent in flight and in the group was spent in the queue: longer when it is used again."""
    if use.staleness is None or row.in_flight is None or row.in_group is None:
        return None
    return row.in_flight, row.in_group, use.staleness - row.in_flight - row.in_group


def _tokens_by_age(record: Rollout, use: Use) -> dict[int, int]:
    if use.staleness is None or use.version is None:
        return {}
    found: dict[int, int] = {}
    for version, tokens in made_by(record):
        found[use.version - version] = found.get(use.version - version, 0) + tokens
    return found


class GroupNote(Struct, frozen=True, gc=False):
    """A group in a window. Times are epoch seconds.

    Attributes:
        completed: when it was complete; None: its members report no time except that of their use.
        seconds: from its first member's dispatch to its completion.
    """

    at: float
    completed: float | None
    version: int | None
    outcome: str
    admitted: bool
    environment: str
    difficulty: str
    solve_ratio: float | None
    seconds: float | None
    sampled: bool


def group_note(group: RolloutGroupRow, difficulty: str, told: bool) -> GroupNote:
    """A complete group. ``told``: its members report when they ended, not only when they were used."""
    completed = group.completed_at
    ratio = group.solved / group.valid if group.solved is not None and group.valid else None
    seconds = completed - group.first_at if completed is not None else None
    return GroupNote(
        group.moved_at if completed is None else completed, completed if told else None, group.version,
        group.outcome, group.admitted, group.environment, difficulty, ratio, seconds, group.sampled,
    )  # fmt: skip


# ---- parts
# Rollouts added up: those of one version, kept until one of them changes, and those of a window.

MINUTE = 60.0
VALUES = ("response_tokens", "seconds", "turns", "tool_calls", "reward", "age")
"""Of a note: what has a distribution."""

Kind = tuple[bool | None, Key | None, int | None]
"""(advantage is reported and is 0, group, staleness): determines whether it carried a fresh gradient."""
SUMMED = ("response_tokens", "turns", "tool_calls")
"""Of a note: what is watched for drift."""
Sums = dict[str, tuple[int, float]]

_T = TypeVar("_T")


@dataclass(slots=True)
class WindowPart:
    """Aggregates of some rollouts.

    Attributes:
        staleness, tokens, turns: how many (rollouts, loss tokens, turns) were how many versions old.
        latest: sum of ages since the latest mutation; bound: any of the turns' ages is an upper bound.
        parts: sums of (in flight, in the group, in the queue) over `parted` rollouts.
        mixed: generated by several versions, among the `told` rollouts of which that is known.
        values: ascending, by the names of `VALUES`.
        gaps: level -> why it is not known -> of how many.
    """

    staleness: dict[int, int] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    turns: dict[int, int] = field(default_factory=dict)
    latest: float = 0.0
    bound: bool = False
    parts: tuple[int, int, int] = (0, 0, 0)
    parted: int = 0
    mixed: int = 0
    told: int = 0
    count: int = 0
    values: dict[str, list[float]] = field(default_factory=dict)
    gaps: dict[str, Counter[str]] = field(default_factory=dict)

    def extend(self, notes: Iterable[Note]) -> None:
        """Add some, after those that are in it."""
        notes = notes if isinstance(notes, list) else list(notes)
        for note in notes:
            self._add(note)
        for name in VALUES:
            if values := [value for note in notes if (value := getattr(note, name)) is not None]:
                held = self.values.setdefault(name, [])
                held += values
                held.sort()  # what was in order already costs next to nothing

    def _add(self, note: Note) -> None:
        self.count += 1
        if (stale := note.staleness) is not None:
            self.staleness[stale] = self.staleness.get(stale, 0) + 1
        if note.parts is not None:
            flight, group, queue = self.parts
            self.parts = (flight + note.parts[0], group + note.parts[1], queue + note.parts[2])
            self.parted += 1
        if note.mixed is not None:
            self.mixed, self.told = self.mixed + note.mixed, self.told + 1
        self.latest, self.bound = self.latest + note.latest, self.bound or note.bound
        _count(self.tokens, note.tokens_by_age)
        _count(self.turns, note.turns_by_age)
        for gap in note.unknown.split("; ") if note.unknown else ():
            level, _, why = gap.partition(": ")
            self.gaps.setdefault(level, Counter())[why] += 1


def _count(held: dict[int, int], more: dict[int, int]) -> None:
    for value, count in more.items():
        held[value] = held.get(value, 0) + count


def part_of(notes: Iterable[Note]) -> WindowPart:
    """Of a few rollouts."""
    found = WindowPart()
    found.extend(notes)
    return found


def merged(parts: list[WindowPart]) -> WindowPart:
    """Of several: their values are in order already, and stay so at little cost."""
    found = WindowPart(
        joined(part.staleness for part in parts), joined(part.tokens for part in parts),
        joined(part.turns for part in parts), sum(part.latest for part in parts), any(part.bound for part in parts),
    )  # fmt: skip
    found.parts = (sum(p.parts[0] for p in parts), sum(p.parts[1] for p in parts), sum(p.parts[2] for p in parts))
    found.parted, found.count = sum(part.parted for part in parts), sum(part.count for part in parts)
    found.mixed, found.told = sum(part.mixed for part in parts), sum(part.told for part in parts)
    for name in VALUES:
        if values := sorted(chain.from_iterable(part.values.get(name, ()) for part in parts)):
            found.values[name] = values
    for part in parts:
        for level, why in part.gaps.items():
            found.gaps.setdefault(level, Counter()).update(why)
    return found


@dataclass(slots=True)
class Slot:
    """Some rollouts, and what they come to: those that came since are added, and all again when one of them changed."""

    notes: dict[Key, Note] = field(default_factory=dict)
    _parts: dict[bool, WindowPart] = field(default_factory=dict)
    _kinds: dict[bool, Counter[Kind]] = field(default_factory=dict)
    _sums: dict[bool, dict[str, Sums]] = field(default_factory=dict)
    _fresh: list[Note] = field(default_factory=list)

    def put(self, key: Key, note: Note) -> None:
        if key in self.notes:
            for tables in (self._parts, self._kinds, self._sums, self._fresh):
                tables.clear()
        else:
            self._fresh.append(note)
        self.notes[key] = note

    def kinds(self, sampled: bool) -> Counter[Kind]:
        """How many there are of each kind; ``sampled`` as in `part`."""
        self._catch_up()
        if sampled not in self._kinds:
            self._kinds[sampled] = Counter(map(_kind, self._told(sampled)))
        return self._kinds[sampled]

    def part(self, sampled: bool) -> WindowPart:
        """Of rollouts whose source reports all (or, ``sampled``, only some)."""
        self._catch_up()
        if sampled not in self._parts:
            self._parts[sampled] = part_of(self._told(sampled))
        return self._parts[sampled]

    def by_environment(self, sampled: bool) -> dict[str, Sums]:
        """Environment -> reported field of `SUMMED` -> (rollouts, sum); "": no environment."""
        self._catch_up()
        if sampled not in self._sums:
            self._sums[sampled] = {}
            _add_up(self._sums[sampled], self._told(sampled))
        return self._sums[sampled]

    def _told(self, sampled: bool) -> list[Note]:
        return [note for note in self.notes.values() if note.sampled is sampled]

    def _catch_up(self) -> None:
        """In the order in which they came, as if all were added again: sums of floats depend on it."""
        for sampled in (False, True) if self._fresh else ():
            fresh = [note for note in self._fresh if note.sampled is sampled]
            if sampled in self._parts:
                self._parts[sampled].extend(fresh)
            if sampled in self._kinds:
                self._kinds[sampled].update(map(_kind, fresh))
            if sampled in self._sums:
                _add_up(self._sums[sampled], fresh)
        self._fresh.clear()


_kind = attrgetter("idle", "group", "staleness")


def _add_up(found: dict[str, Sums], notes: Iterable[Note]) -> None:
    for note in notes:
        sums = found.setdefault(note.environment, {})
        for name in SUMMED:
            if (value := getattr(note, name)) is not None:
                count, total = sums.get(name, (0, 0.0))
                sums[name] = (count + 1, total + value)


class Timed(Generic[_T]):
    """What happened when, by the minute, so that a window needs to look closely at its first one only. Bounded."""

    def __init__(self, most: int = 200_000) -> None:
        self.minutes: dict[int, dict[Key, tuple[float, _T]]] = {}
        self._where: dict[Key, int] = {}
        self._most = most

    def put(self, key: Key, at: float, what: _T) -> None:
        """Adds it at ``at`` (epoch seconds); a repeated report moves it."""
        minute = int(at // MINUTE)
        before = self._where.get(key)
        if before is not None and before != minute:
            self.minutes[before].pop(key, None)
            self._changed(before)
        self._where[key] = minute
        self.minutes.setdefault(minute, {})[key] = (at, what)
        self._changed(minute)
        while len(self._where) > self._most:
            self._drop(min(self.minutes))

    def __contains__(self, key: Key) -> bool:
        return key in self._where

    def remove(self, key: Key) -> None:
        minute = self._where.pop(key, None)
        if minute is not None:
            del self.minutes[minute][key]
            self._changed(minute)

    def _changed(self, minute: int) -> None:
        """For caches of results per minute."""

    def _drop(self, minute: int) -> None:
        for key in self.minutes.pop(minute, ()):
            if self._where.get(key) == minute:
                del self._where[key]
        self._changed(minute)

    def forget(self, before: float) -> None:
        """Whole minutes before ``before``."""
        for minute in [one for one in self.minutes if (one + 1) * MINUTE <= before]:
            self._drop(minute)

    def within(self, start: float, end: float = math.inf) -> Iterator[_T]:
        """What happened within (start, end]."""
        for minute in self._touched(start, end):
            yield from self._inside(minute, start, end)

    def count(self, start: float, end: float) -> int:
        """How much happened within (start, end]."""
        return sum(
            len(self.minutes[minute]) if _whole(minute, start, end) else len(self._inside(minute, start, end))
            for minute in self._touched(start, end)
        )

    def _touched(self, start: float, end: float) -> list[int]:
        return [minute for minute in self.minutes if (minute + 1) * MINUTE > start and minute * MINUTE <= end]

    def _inside(self, minute: int, start: float, end: float) -> list[_T]:
        return [what for at, what in self.minutes[minute].values() if start < at <= end]


def _whole(minute: int, start: float, end: float) -> bool:
    return start < minute * MINUTE and (minute + 1) * MINUTE <= end


class TimedNotes(Timed[Note]):
    """Rollouts by when they ended, and what those that were made to their end come to, minute by minute."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: dict[int, dict[bool, WindowPart]] = {}
        self._values: dict[int, dict[tuple[str, bool], list[float]]] = {}

    def _changed(self, minute: int) -> None:
        self._parts.pop(minute, None)
        self._values.pop(minute, None)

    def made(self, start: float, end: float, sampled: bool) -> list[WindowPart]:
        """Of rollouts that ended within (start, end], reported by a source of all (or of samples)."""
        return [
            self._minute(minute, sampled)
            if _whole(minute, start, end)
            else part_of(_made(self._inside(minute, start, end), sampled))
            for minute in self._touched(start, end)
        ]

    def values(self, name: str, start: float, end: float, sampled: bool) -> list[float]:
        """The same, but one of `VALUES` alone: ascending."""
        return sorted(chain.from_iterable(
            self._minute_values(minute, name, sampled)
            if _whole(minute, start, end)
            else _values(name, _made(self._inside(minute, start, end), sampled))
            for minute in self._touched(start, end)
        ))  # fmt: skip

    def number(self, start: float, end: float, sampled: bool) -> int:
        """The same, but how many."""
        touched = self._touched(start, end)
        return sum(len(_made(self._inside(minute, start, end), sampled)) for minute in touched)

    def _minute(self, minute: int, sampled: bool) -> WindowPart:
        parts = self._parts.setdefault(minute, {})
        if sampled not in parts:
            parts[sampled] = part_of(_made(self._all(minute), sampled))
        return parts[sampled]

    def _minute_values(self, minute: int, name: str, sampled: bool) -> list[float]:
        values = self._values.setdefault(minute, {})
        if (name, sampled) not in values:
            values[name, sampled] = sorted(_values(name, _made(self._all(minute), sampled)))
        return values[name, sampled]

    def _all(self, minute: int) -> Iterator[Note]:
        return (one for _, one in self.minutes[minute].values())


def _made(notes: Iterable[Note], sampled: bool) -> list[Note]:
    return [one for one in notes if one.whole and one.sampled is sampled]


def _values(name: str, notes: Iterable[Note]) -> list[float]:
    return [value for value in map(attrgetter(name), notes) if value is not None]


# Exits of rollouts that were never in a batch. Batch files contain only the others, so that no failure in them
# does not mean that none failed.
_LOST = frozenset(rollouts_model.EXITS) - {"trained", "zero_advantage"}
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
# A rollout not reported for so long is not in flight; equal to the limit of `server.ingest.rollouts`.
LOST_SECONDS = 86_400.0
# The same for a rollout that waits for scoring, its group or the trainer.
QUEUED_SECONDS = 3600.0
Place = tuple[int, int]
"""(incarnation, consumed version)."""

NO_RECORDS = "no rollout records: push them (POST /api/v1/runs/RUN/rollouts) or add a run directory that contains them"


class InFlight(Struct, frozen=True, gc=False):
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
        seconds, reported = (
            self.end - self.start,
            self._book.begin_told if what == "dispatched" else self._book.end_told,
        )
        if self.sampled or not reported or not 0 < seconds < math.inf:
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

    def put(self, row: RolloutRow, group: RolloutGroupRow | None = None) -> None:
        """A rollout (and its group) as it is known now."""
        key = (row.rollout_id, row.life)
        if row.purpose not in (None, "train"):
            self._remove(key)
            return
        self._touch()
        self.met, self.life = True, max(self.life, row.life)
        self.tellers.add(row.target)
        self._newest = max(self._newest, row.moved_at)
        self.alone = self.alone or row.group_size == 1
        self._put_live(key, row)
        self.failures_told = self.failures_told or self.watched or (row.state in _LOST and not row.sampled)
        self.end_told = self.end_told or (rollouts_model.generated_at(row) is not None and not row.sampled)
        begun = row.dispatched_at if row.dispatched_at is not None else row.started_at
        if begun is not None and not row.sampled:
            self.begin_told = True
            self.dispatched.put(key, begun, None)
        if rollouts_model.finished(row) or row.state in rollouts_model.OVER:
            note = rollout_note(row)
            self.ended.put(key, note.at, note)
            self._put_uses(key, row, note)
        if row.state in rollouts_model.EXITS and not row.sampled:
            used = min((use.at for use in row.consumptions if use.at is not None), default=None)
            self.left.put(key, used if row.state == "trained" and used is not None else row.moved_at, row.state)
        if group is not None:
            self._put_group(row, group)
        self._trim()

    def _remove(self, key: Key) -> None:
        """Removes an evaluation whose earlier parts did not report that it is one."""
        if self.live.pop(key, None) is not None or key in self.ended:
            self._touch()
        for timed in (self.ended, self.left, self.dispatched):
            timed.remove(key)

    def _touch(self) -> None:
        self.changed, self._window = True, None

    def _put_live(self, key: Key, row: RolloutRow) -> None:
        self.live.pop(key, None)
        if row.state in rollouts_model.OVER:
            return
        since = rollouts_model.generated_at(row) if rollouts_model.finished(row) else None
        self.live[key] = InFlight(row.state, row.moved_at, row.life, since, row.sandbox_ids, row.sampled)
        self.watched = self.watched or not (rollouts_model.finished(row) or row.sampled)
        if len(self.live) > LIVE_MOST:
            del self.live[next(iter(self.live))]

    def _put_uses(self, key: Key, row: RolloutRow, ended: Note) -> None:
        for use in uses(row, row.life):
            self.consumption_told = True
            if use.version is None:
                continue
            place = (use.life, use.version)
            if place not in self._versions and len(self._versions) >= KEPT_VERSIONS and place < min(self._versions):
                continue
            version = self._versions.setdefault(place, _Version())
            one = use_note(row, ended, use)
            version.slot.put(key, one)
            version.first, version.last = min(version.first, one.at), max(version.last, one.at)
            version.counted = version.counted or not one.sampled

    def _put_group(self, row: RolloutRow, group: RolloutGroupRow) -> None:
        key = (group.group_id, group.life)
        if group.outcome == "open":
            self.groups.pop(key, None)
            return
        before = self.groups.get(key)
        has_end = any(at is not None for at in (row.finished_at, row.scored_at, row.group_complete_at))
        has_end = has_end or (before is not None and before.completed is not None)
        difficulty = max(row.difficulty, before.difficulty if before is not None else "")
        self.groups[key] = group_note(group, difficulty, has_end)

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
