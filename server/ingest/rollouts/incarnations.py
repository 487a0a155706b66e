"""Determines in which incarnation of the trainer a rollout was made and used, from its partial records. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from collectors.model import Consumption, Rollout
from server.ingest.incarnations import Incarnations
from server.rollouts.merge import begun_at, distinct, told_first, told_last
from server.store.types import RolloutRow

# Restarts that may be reported after members of a group were numbered; with more of them the group is divided.
LATE = 3
_GENERATED = ("version_dispatched", "version_start", "version_finish", "dispatched_at", "started_at", "finished_at")


def incarnation_of_known(incarnations: Incarnations, known: Mapping[int, Rollout], record: Rollout) -> int | None:
    """Returns the incarnation of the rollout that a record updates, among those ``known`` by its id; None: no match.

    An incarnation uses an id once, so a record that began in another incarnation is another rollout. A record without
    a start time updates the newest rollout of its id.
    """
    reported = record.incarnation
    if reported is not None and (not known or reported in known or _has_generation(record)):
        return reported
    begun = begun_at(record)
    matches = (number for number, row in known.items() if begun is None or _same(incarnations, row, record))
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
    if row.record.incarnation is not None:
        return row.life
    begun = begun_at(row.record)
    at = told_first(row.record) if begun is None else begun
    return row.life if at is None else max(row.life, incarnations.at(at))


def _same(incarnations: Incarnations, known: Rollout, record: Rollout) -> bool:
    """May both describe one rollout? Start times decide; if only one has a start time, the other's last time does."""
    for first, second in ((known.dispatched_at, record.dispatched_at), (known.started_at, record.started_at)):
        if first is not None and second is not None:
            return incarnations.at(first) == incarnations.at(second)
    return not (_before(incarnations, known, record) or _before(incarnations, record, known))


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
    return record if tuple(uses) == record.consumptions else replace(record, consumptions=distinct(uses))


def in_incarnation(incarnations: Incarnations, record: Rollout, made_in: int, known: Rollout | None) -> Rollout:
    """Sets the incarnation of each use: the reported one, else the run's incarnation at that time."""
    if not record.consumptions:
        return record if record.incarnation in (None, made_in) else replace(record, incarnation=None)
    if incarnations.last is None and made_in == incarnations.newest and _unreported(record, known):
        return record
    previous = known.incarnation if known is not None else None
    reported = record.incarnation if record.incarnation is not None else previous
    uses, begun = [], begun_at(record, *([known] if known is not None else []))
    for use in record.consumptions:
        used_in = use.incarnation
        if used_in is None:
            used_in = incarnations.used_in(use.at, begun, made_in) if reported is None else reported
        used_in = None if used_in == made_in else used_in
        uses.append(use if used_in == use.incarnation else Consumption(use.version, use.at, used_in))
    own = record.incarnation if record.incarnation == made_in else None
    if own == record.incarnation and tuple(uses) == record.consumptions:
        return record
    return replace(record, consumptions=tuple(uses), incarnation=own)


def _unreported(record: Rollout, known: Rollout | None) -> bool:
    """Is no incarnation reported, neither of the rollout nor of its uses?"""
    own = record.incarnation is None and (known is None or known.incarnation is None)
    return own and all([use.incarnation is None for use in record.consumptions])


def any_in(incarnations: Incarnations, at: float | None, times: Iterable[float]) -> bool:
    """Is one of the times in the incarnation of ``at``?"""
    return any(incarnations.at(time) == incarnations.at(at) for time in times)
