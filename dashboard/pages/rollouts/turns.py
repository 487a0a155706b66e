"""Age of the environment state of each turn, in policy versions, from the rollout's own turns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Age = tuple[int | None, int | None]
"""(since the environment's oldest change, since the latest); None: unchanged or unknown."""


@dataclass(slots=True)
class _State:
    oldest: int | None = None
    latest: int | None = None


def ages(turns: Sequence[Mapping[str, Any]]) -> list[Age]:
    """One per turn. A reset clears the state and a fork inherits it. A turn that does not report changes counts by its
    tool calls.

    What other rollouts did to the same sandbox is in the numbers above the table (the ingest remembers it), not here.
    """
    known: dict[str, _State] = {}
    return [_turn(known, turn) for turn in turns]


def _turn(known: dict[str, _State], turn: Mapping[str, Any]) -> Age:
    name = str(turn.get("sandbox_id") or "")
    parent = known.get(str(turn.get("forked_from") or "")) if turn.get("forked_from") else None
    if turn.get("reset"):
        known[name] = _State()
    elif name not in known:
        known[name] = _State(parent.oldest, parent.latest) if parent else _State()
    state, version = known[name], turn.get("version")
    age = _since(version, state.oldest), _since(version, state.latest)
    if _changed(turn) and isinstance(version, int):
        state.oldest = version if state.oldest is None else min(state.oldest, version)
        state.latest = version if state.latest is None else max(state.latest, version)
    return age


def _changed(turn: Mapping[str, Any]) -> bool:
    mutated = turn.get("mutated")
    return bool(mutated) if mutated is not None else bool(turn.get("tool_calls"))


def _since(version: object, then: int | None) -> int | None:
    return version - then if isinstance(version, int) and then is not None else None
