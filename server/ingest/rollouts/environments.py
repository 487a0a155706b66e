"""How old the states were that a rollout's turns were played on: judged when they are told, kept when they are not."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from collectors.model import Rollout, Turn
from server.rollouts.environments import Ages, Environments, basis, sandboxes, start
from server.rollouts.staleness import ENVIRONMENT, ages_of
from server.store.types import RolloutRow

LATE = "an older change of its sandbox was told when its turns were kept no more: push its `turns` again"


def ages(environments: Environments, record: Rollout, before: RolloutRow | None, life: int, met: float) -> Ages | None:
    """Of a record as it is by now; ``before``: its row. None where no turns are told.

    What was judged stands until its turns, or what others did before to its sandboxes, are told otherwise: after a
    start of ours less is known of sandboxes than when it was judged.
    """
    key = (record.rollout_id, life)
    changed, known = environments.taken(key), _kept(before)
    told = _with_turns(record, environments.turns(key))
    if not told.turns:
        if known is not None and not known.unknown and before is not None and not changed:
            began = start(record, met)
            changed = began != start(before.record, met) and environments.moved(record, life, began)
        return Ages(bound=known.bound, unknown=LATE) if changed and known is not None else known
    if before is not None and known is not None and not known.unknown and not changed:
        old = before.record if record.turns else _with_turns(before.record, told.turns)
        if basis(told) == basis(old):
            return known
    return environments.judge(told, life, start(told, met))


def places(said: Rollout, known: Sequence[Rollout]) -> Iterator[tuple[str, float]]:
    """(sandbox, since when) where others may have to be judged again; ``known``: of its id, before it was said."""
    boxes = dict.fromkeys([box for one in (said, *known) for box in sandboxes(one)])
    if boxes and (said.turns or start(said, math.inf) < math.inf):
        told = [begun for one in (said, *known) if (begun := start(one, math.inf)) < math.inf]
        for sandbox in boxes:
            yield sandbox, min(told, default=-math.inf)


def _with_turns(record: Rollout, turns: tuple[Turn, ...]) -> Rollout:
    """With those that are remembered where its own are kept no more."""
    return record if record.turns or not turns else replace(record, turns=turns)


def without_old_turns(environments: Environments, said: Rollout, known: Rollout, life: int) -> Rollout:
    """Turns that were judged and not kept say nothing new when they are told again, unless another change is told."""
    if not said.turns or len(said.turns) > (known.turn_count or 0):
        return said
    if len(said.turns) == known.turn_count:
        environments.remember((said.rollout_id, life), said.turns)
    return replace(said, turns=())


def _kept(before: RolloutRow | None) -> Ages | None:
    """What its row says of its ages."""
    if before is None:
        return None
    if before.judged_turns is None:
        said = (part for part in before.unknown.split("; ") if part.startswith(f"{ENVIRONMENT}: "))
        why = next(said, "").removeprefix(f"{ENVIRONMENT}: ")
        return Ages(bound=before.environment_bound, unknown=why) if why else None
    latest = round((before.environment_latest or 0.0) * before.judged_turns)
    return Ages(dict(ages_of(before.environment_ages)), latest, before.environment_bound)
