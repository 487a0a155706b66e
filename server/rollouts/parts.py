"""Rollouts added up: those of one version, kept until one of them changes, and those of a window. Pure."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from operator import attrgetter
from typing import Generic, TypeVar

from server.rollouts.notes import Key, Note
from server.rollouts.spread import joined

MINUTE = 60.0
VALUES = ("response_tokens", "seconds", "turns", "tool_calls", "reward", "age")
"""Of a note: what has a distribution."""

Kind = tuple[bool | None, Key | None, int | None]
"""(its advantage is told and is 0, its group, staleness): all that says whether it carried a fresh gradient."""
SUMMED = ("response_tokens", "turns", "tool_calls")
"""Of a note: what is watched for drift."""
Sums = dict[str, tuple[int, float]]

_T = TypeVar("_T")


@dataclass(slots=True)
class WindowPart:
    """What is asked for of some rollouts.

    Attributes:
        staleness, tokens, turns: how many (rollouts, loss tokens, turns) were how many versions old.
        latest: sum of ages since the latest mutation; bound: any of the turns' ages is an upper bound.
        parts: sums of (in flight, in the group, in the queue) over `parted` rollouts.
        mixed: made by several versions, of `told` of which that is known.
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
            for kept in (self._parts, self._kinds, self._sums, self._fresh):
                kept.clear()
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
        """Of those whose source tells of all (or, ``sampled``, of some only)."""
        self._catch_up()
        if sampled not in self._parts:
            self._parts[sampled] = part_of(self._told(sampled))
        return self._parts[sampled]

    def by_environment(self, sampled: bool) -> dict[str, Sums]:
        """Environment -> what of `SUMMED` is told -> (rollouts, sum); "" names none."""
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
        """At ``at`` (epoch seconds); told again, it moves."""
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

    def _changed(self, minute: int) -> None:
        """For whoever keeps what follows from a minute."""

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
        """Of those made to their end within (start, end], and told by a source of all (or of samples)."""
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
        kept = self._parts.setdefault(minute, {})
        if sampled not in kept:
            kept[sampled] = part_of(_made(self._all(minute), sampled))
        return kept[sampled]

    def _minute_values(self, minute: int, name: str, sampled: bool) -> list[float]:
        kept = self._values.setdefault(minute, {})
        if (name, sampled) not in kept:
            kept[name, sampled] = sorted(_values(name, _made(self._all(minute), sampled)))
        return kept[name, sampled]

    def _all(self, minute: int) -> Iterator[Note]:
        return (one for _, one in self.minutes[minute].values())


def _made(notes: Iterable[Note], sampled: bool) -> list[Note]:
    return [one for one in notes if one.whole and one.sampled is sampled]


def _values(name: str, notes: Iterable[Note]) -> list[float]:
    return [value for value in map(attrgetter(name), notes) if value is not None]
