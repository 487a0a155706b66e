"""Incarnations of a run's trainer: when each began, and which reported events begin one."""

from bisect import bisect_right, insort
from collections.abc import Iterable
from typing import TYPE_CHECKING

from msgspec import structs

from collectors.model import Event

if TYPE_CHECKING:
    from server.store import Store
from collections.abc import Mapping

from collectors.model import Consumption, Rollout
from server.rollouts.merge import begun_at, distinct, told_first, told_last
from server.rollouts.model import RolloutRow

BEGINS = ("restart", "resume")
"""Kinds of pushed events that begin an incarnation of the trainer."""
# Key prefix of restart events that are inferred from decreasing step numbers.
_INFERRED = "restart-"
# End of an unbounded time range, epoch ms.
_ALWAYS = 1 << 62


class Incarnations:
    """Incarnations of one run by start time (epoch seconds), added in any order.

    The incarnation that began last has the largest number; each restart after an instant subtracts one. Rows that were
    numbered before an earlier restart was reported keep their number. Such numbers only answer whether a restart lies
    between two instants.

    Args:
        newest: number of the newest incarnation; the first has 0.
        begun: start times of the incarnations after the first, as far as reported.
    """

    def __init__(self, newest: int, begun: Iterable[float] = ()) -> None:
        self.newest = newest
        self._begun = sorted(begun)

    @property
    def last(self) -> float | None:
        """Start of the newest incarnation; None if no restart is recorded."""
        return self._begun[-1] if self._begun else None

    @property
    def oldest(self) -> int:
        """The incarnation before the first recorded restart."""
        return self.newest - len(self._begun)

    def begin(self, ts: float) -> int:
        """Records a restart; returns the number of the newest incarnation."""
        insort(self._begun, ts)
        self.newest += 1
        return self.newest

    def at(self, ts: float | None) -> int:
        """Returns the incarnation at an instant; the newest for None."""
        return self.newest if ts is None else self.newest - (len(self._begun) - bisect_right(self._begun, ts))

    def next(self, ts: float) -> float | None:
        """Returns the first restart after an instant."""
        index = bisect_right(self._begun, ts)
        return self._begun[index] if index < len(self._begun) else None

    def used_in(self, at: float | None, begun: float | None, made_in: int) -> int:
        """Returns the incarnation in which a rollout was used; ``made_in`` if no restart lies between the two times.

        Numbers shift when an earlier restart is reported late, so start times are compared, not numbers.
        """
        used = self.at(at)
        if begun is None:
            return used
        if used == self.at(begun):
            return made_in
        return used if used != made_in else made_in - 1


class ReportedRestarts:
    """Restarts that clients report (`POST .../events`), without those that decreasing steps have shown already.

    Events are identified by key. Not thread-safe: one run, one loop.
    """

    def __init__(self, store: "Store", run: str, incarnations: Incarnations) -> None:
        self._store, self._run, self._incarnations = store, run, incarnations
        recorded = store.runs.events(run, 0, _ALWAYS, BEGINS)
        self._keys = {event.key for _, event in recorded}
        # When step numbers decreased, epoch ms.
        self._inferred = {ts for ts, event in recorded if event.key.startswith(_INFERRED)}

    def inferred(self, number: int, ts: float, detail: str) -> Event:
        """Returns the event of an incarnation that began with a decreasing step number."""
        event = Event("restart", f"{_INFERRED}{number}", ts, detail)
        self._keys.add(event.key)
        self._inferred.add(_ms(ts))
        return event

    def new(self, events: Iterable[Event], now: float) -> list[float]:
        """Returns times of restarts that were not recorded before, oldest first; ``now`` dates those without a time.

        A repeated event is one restart, and so is an event whose restart the steps have shown already.
        """
        reported: dict[str, float] = {}
        for event in events:
            if event.kind in BEGINS and event.key not in self._keys:
                reported.setdefault(event.key, now if event.ts is None else event.ts)
        self._keys.update(reported)
        return sorted(ts for ts in reported.values() if not self._already_inferred(ts))

    def _already_inferred(self, ts: float) -> bool:
        """Did a step number decrease after this time, with no step between the two?"""
        after = self._incarnations.next(ts)
        if after is None or _ms(after) not in self._inferred:
            return False
        before = self._store.steps.newest(self._run, last=1, incarnation=self._incarnations.at(ts))
        return all(row.ts <= _ms(ts) for row in before)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


# ---- incarnations
# Determines in which incarnation of the trainer a rollout was made and used, from its partial records.

# Restarts that may be reported after members of a group were numbered; with more of them the group is divided.
LATE = 3
_GENERATED = ("version_dispatched", "version_start", "version_finish", "dispatched_at", "started_at", "finished_at")


def incarnation_of_known(incarnations: Incarnations, stored: Mapping[int, Rollout], record: Rollout) -> int | None:
    """Returns the incarnation of the rollout that a record updates, among those ``stored`` by its id; None: no match.

    An incarnation uses an id once, so a record that began in another incarnation is another rollout. A record without
    a start time updates the newest rollout of its id.
    """
    reported = record.incarnation
    if reported is not None and (not stored or reported in stored or _has_generation(record)):
        return reported
    begun = begun_at(record)
    matches = (number for number, row in stored.items() if begun is None or _same(incarnations, row, record))
    return max(matches, default=None)


def new_incarnations(incarnations: Incarnations, record: Rollout) -> tuple[float | None, range]:
    """For a new rollout: an instant of its incarnation, and the numbers it may have, the current one first.

    The further numbers were assigned to other records before a restart was reported.
    """
    begun = begun_at(record)
    at = told_first(record) if begun is None else begun
    number = incarnations.at(at)
    return at, range(number, max(incarnations.oldest, number - LATE, 0) - 1, -1)


def current_incarnation(incarnations: Incarnations, row: RolloutRow) -> int:
    """Returns the incarnation by all restarts reported so far: a late report shifts the numbers after it."""
    if row.incarnation is not None:
        return row.life
    begun = begun_at(row)
    at = told_first(row) if begun is None else begun
    return row.life if at is None else max(row.life, incarnations.at(at))


def _same(incarnations: Incarnations, stored: Rollout, record: Rollout) -> bool:
    """May both describe one rollout? Start times decide; if only one has a start time, the other's last time does."""
    for first, second in ((stored.dispatched_at, record.dispatched_at), (stored.started_at, record.started_at)):
        if first is not None and second is not None:
            return incarnations.at(first) == incarnations.at(second)
    return not (_before(incarnations, stored, record) or _before(incarnations, record, stored))


def _before(incarnations: Incarnations, first: Rollout, second: Rollout) -> bool:
    """Are all times of the first in an incarnation before the second's dispatch (else its start)?

    A rollout dispatched in one incarnation may start in the next, because it waits for a slot.
    """
    began, last = second.dispatched_at, told_last(first)
    if began is None:
        ends = (first.finished_at, first.scored_at, first.exited_at, *(use.at for use in first.consumptions))
        began, last = second.started_at, max((at for at in ends if at is not None), default=None)
    return began is not None and last is not None and incarnations.at(last) < incarnations.at(began)


def _has_generation(record: Rollout) -> bool:
    """Does the record describe how the rollout was generated?"""
    dated = any(getattr(record, name) is not None for name in _GENERATED)
    return dated or bool(record.token_versions or record.turns)


def with_incarnation(incarnations: Incarnations, record: Rollout, made_in: int) -> Rollout:
    """Adds the incarnation of each use without one, by the restarts reported so far."""
    if incarnations.last is None or not record.consumptions or record.incarnation is not None:
        return record
    if (begun := begun_at(record)) is None:
        return record
    uses = []
    for use in record.consumptions:
        open_ = use.incarnation is None and use.at is not None
        used_in = incarnations.used_in(use.at, begun, made_in) if open_ else made_in
        uses.append(use if used_in == made_in else Consumption(use.version, use.at, used_in))
    return record if tuple(uses) == record.consumptions else structs.replace(record, consumptions=distinct(uses))


def in_incarnation(incarnations: Incarnations, record: Rollout, made_in: int, stored: Rollout | None) -> Rollout:
    """Sets the incarnation of each use: the reported one, else the run's incarnation at that time."""
    if not record.consumptions:
        return record if record.incarnation in (None, made_in) else structs.replace(record, incarnation=None)
    if incarnations.last is None and made_in == incarnations.newest and _unreported(record, stored):
        return record
    previous = stored.incarnation if stored is not None else None
    reported = record.incarnation if record.incarnation is not None else previous
    uses, begun = [], begun_at(record, *([stored] if stored is not None else []))
    for use in record.consumptions:
        used_in = use.incarnation
        if used_in is None:
            used_in = incarnations.used_in(use.at, begun, made_in) if reported is None else reported
        used_in = None if used_in == made_in else used_in
        uses.append(use if used_in == use.incarnation else Consumption(use.version, use.at, used_in))
    own = record.incarnation if record.incarnation == made_in else None
    if own == record.incarnation and tuple(uses) == record.consumptions:
        return record
    return structs.replace(record, consumptions=tuple(uses), incarnation=own)


def _unreported(record: Rollout, stored: Rollout | None) -> bool:
    """Is no incarnation reported, neither of the rollout nor of its uses?"""
    own = record.incarnation is None and (stored is None or stored.incarnation is None)
    return own and all([use.incarnation is None for use in record.consumptions])


def any_in(incarnations: Incarnations, at: float | None, times: Iterable[float]) -> bool:
    """Is one of the times in the incarnation of ``at``?"""
    return any(incarnations.at(time) == incarnations.at(at) for time in times)
