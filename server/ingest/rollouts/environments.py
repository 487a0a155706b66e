"""Staleness of the environment states in a rollout's turns: computed while turns are reported, kept afterwards."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from collectors.model import Rollout, Turn
from server.rollouts.environments import Ages, Environments, basis, sandboxes, start
from server.rollouts.staleness import ENVIRONMENT, ages_of
from server.store.types import RolloutRow

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
            changed = began != start(before.record, first_seen) and environments.moved(record, made_in, began)
        return Ages(bound=previous.bound, unknown=LATE) if changed and previous is not None else previous
    if before is not None and previous is not None and not previous.unknown and not changed:
        old = before.record if record.turns else _with_turns(before.record, complete.turns)
        if basis(complete) == basis(old):
            return previous
    return environments.judge(complete, made_in, start(complete, first_seen))


def affected_sandboxes(record: Rollout, known: Sequence[Rollout]) -> Iterator[tuple[str, float]]:
    """Yields (sandbox, since): rollouts that used it later may change. ``known``: previous records of the same id."""
    boxes = dict.fromkeys([box for part in (record, *known) for box in sandboxes(part)])
    if boxes and (record.turns or start(record, math.inf) < math.inf):
        starts = [begun for part in (record, *known) if (begun := start(part, math.inf)) < math.inf]
        for sandbox in boxes:
            yield sandbox, min(starts, default=-math.inf)


def _with_turns(record: Rollout, turns: tuple[Turn, ...]) -> Rollout:
    """Adds cached turns to a record whose own turns were dropped."""
    return record if record.turns or not turns else replace(record, turns=turns)


def without_old_turns(environments: Environments, record: Rollout, known: Rollout, made_in: int) -> Rollout:
    """Removes turns that were evaluated and then dropped, unless the record has new turns."""
    if not record.turns or len(record.turns) > (known.turn_count or 0):
        return record
    if len(record.turns) == known.turn_count:
        environments.remember((record.rollout_id, made_in), record.turns)
    return replace(record, turns=())


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
