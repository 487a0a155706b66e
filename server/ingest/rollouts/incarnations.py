"""Which life of its trainer a rollout is of, and was used in, as its partial records tell it. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from collectors.model import Consumption, Rollout
from server.ingest.incarnations import Incarnations
from server.rollouts.merge import begun_at, distinct, told_first, told_last
from server.store.types import RolloutRow

# Restarts that are told after members of a group were numbered; of more of them the group is divided.
LATE = 3
_GENERATED = ("version_dispatched", "version_start", "version_finish", "dispatched_at", "started_at", "finished_at")


def incarnation_of_known(lives: Incarnations, known: Mapping[int, Rollout], said: Rollout) -> int | None:
    """The life whose rollout a record speaks of, of those ``known`` by its id; None: of none of them.

    One life makes an id once: what began in another is another rollout. A record that tells no beginning joins the
    newest of that id.
    """
    told = said.incarnation
    if told is not None and (not known or told in known or _generated(said)):
        return told
    begun = begun_at(said)
    return max((life for life, one in known.items() if begun is None or _same(lives, one, said)), default=None)


def new_incarnations(lives: Incarnations, said: Rollout) -> tuple[float | None, range]:
    """For a rollout that is not known: an instant of its life, and the numbers that life may have, the right one first.

    Those behind it were given before a restart was told of.
    """
    begun = begun_at(said)
    at = told_first(said) if begun is None else begun
    life = lives.at(at)
    return at, range(life, max(lives.oldest, life - LATE, 0) - 1, -1)


def current_incarnation(lives: Incarnations, row: RolloutRow) -> int:
    """The number its life has by the restarts that are known by now: a late one moved those after it."""
    if row.record.incarnation is not None:
        return row.life
    begun = begun_at(row.record)
    at = told_first(row.record) if begun is None else begun
    return row.life if at is None else max(row.life, lives.at(at))


def _same(lives: Incarnations, known: Rollout, said: Rollout) -> bool:
    """May both tell of one rollout? By its beginnings; where only one of them tells one, by what the other tells."""
    for one, other in ((known.dispatched_at, said.dispatched_at), (known.started_at, said.started_at)):
        if one is not None and other is not None:
            return lives.at(one) == lives.at(other)
    return not (_before(lives, known, said) or _before(lives, said, known))


def _before(lives: Incarnations, one: Rollout, other: Rollout) -> bool:
    """Does all that one tells lie in a life before the other began? What waits for a slot may start in a later one."""
    began, last = other.dispatched_at, told_last(one)
    if began is None:
        ends = (one.finished_at, one.scored_at, one.exited_at, *(use.at for use in one.consumptions))
        began, last = other.started_at, max((at for at in ends if at is not None), default=None)
    return began is not None and last is not None and lives.at(last) < lives.at(began)


def _generated(record: Rollout) -> bool:
    """Does it tell anything of how the rollout was made?"""
    told = any(getattr(record, name) is not None for name in _GENERATED)
    return told or bool(record.token_versions or record.turns)


def with_incarnation(lives: Incarnations, record: Rollout, life: int) -> Rollout:
    """With the lives of its uses where nobody tells them, as the restarts that are known by now say."""
    if lives.last is None or not record.consumptions or record.incarnation is not None:
        return record
    if (begun := begun_at(record)) is None:
        return record
    uses = []
    for use in record.consumptions:
        open_ = use.incarnation is None and use.at is not None
        at = lives.used_in(use.at, begun, life) if open_ else life
        uses.append(use if at == life else Consumption(use.version, use.at, at))
    return record if tuple(uses) == record.consumptions else replace(record, consumptions=distinct(uses))


def in_incarnation(lives: Incarnations, said: Rollout, life: int, known: Rollout | None) -> Rollout:
    """Its consumptions are of the life it tells, else of the one the run was in."""
    if not said.consumptions:
        return said if said.incarnation in (None, life) else replace(said, incarnation=None)
    if lives.last is None and life == lives.newest and _untold(said, known):
        return said
    told = said.incarnation if said.incarnation is not None else known.incarnation if known is not None else None
    uses, begun = [], begun_at(said, *([known] if known is not None else []))
    for use in said.consumptions:
        at = use.incarnation
        if at is None:
            at = lives.used_in(use.at, begun, life) if told is None else told
        at = None if at == life else at
        uses.append(use if at == use.incarnation else Consumption(use.version, use.at, at))
    own = said.incarnation if said.incarnation == life else None
    if own == said.incarnation and tuple(uses) == said.consumptions:
        return said
    return replace(said, consumptions=tuple(uses), incarnation=own)


def _untold(said: Rollout, known: Rollout | None) -> bool:
    """Is no life told, of it and of its uses?"""
    own = said.incarnation is None and (known is None or known.incarnation is None)
    return own and all([use.incarnation is None for use in said.consumptions])


def any_in(lives: Incarnations, at: float | None, times: Iterable[float]) -> bool:
    """Is one of these instants of the same life?"""
    return any(lives.at(one) == lives.at(at) for one in times)
