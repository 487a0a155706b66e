"""One rollout and its timeline, as one cell ``rd``; `assets/73-timeline.js` draws it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from collectors.model import Turn
from dashboard.pages.rollouts.records import RolloutRecords
from dashboard.pages.rollouts.tables import rollout, short
from dashboard.state.status import View
from server.query import RolloutRow
from server.query.types import RolloutDetail

# ---- turns
# Age of the environment state of each turn, in policy versions, from the rollout's own turns.

Age = tuple[int | None, int | None]
"""(since the environment's oldest change, since the latest); None: unchanged or unknown."""


@dataclass(slots=True)
class _State:
    oldest: int | None = None
    latest: int | None = None


def ages(turns: Sequence[Turn]) -> list[Age]:
    """One per turn. A reset clears the state and a fork inherits it. A turn that does not report changes counts by its
    tool calls.

    What other rollouts did to the same sandbox is in the numbers above the table (the ingest remembers it), not here.
    """
    states: dict[str, _State] = {}
    return [_turn(states, turn) for turn in turns]


def _turn(states: dict[str, _State], turn: Turn) -> Age:
    name = turn.sandbox_id
    parent = states.get(turn.forked_from) if turn.forked_from else None
    if turn.reset:
        states[name] = _State()
    elif name not in states:
        states[name] = _State(parent.oldest, parent.latest) if parent else _State()
    state, version = states[name], turn.version
    age = _since(version, state.oldest), _since(version, state.latest)
    if _changed(turn) and version is not None:
        state.oldest = version if state.oldest is None else min(state.oldest, version)
        state.latest = version if state.latest is None else max(state.latest, version)
    return age


def _changed(turn: Turn) -> bool:
    return turn.mutated if turn.mutated is not None else bool(turn.tool_calls)


def _since(version: int | None, then: int | None) -> int | None:
    return None if version is None or then is None else version - then


# A browser draws so many without a pause; the API has them all.
SPANS, TURNS, SIBLINGS, UPDATES = 1000, 300, 128, 200

_TIMES = (
    "dispatched_at",
    "started_at",
    "first_token_at",
    "finished_at",
    "scored_at",
    "group_complete_at",
    "consumed_at",
)


def detail(records: RolloutRecords, now: float) -> View:
    """Empty while no rollout is open. ``rd.none``: the requested ID if it does not exist."""
    query = records.query
    if not query.rollout:
        return {}
    found = records.open()
    if found is None:
        return {"rd.none": query.rollout}
    return {"rd": _whole(found) | _updates(records, found, now)}


def _whole(found: RolloutDetail) -> dict[str, Any]:
    row = found.rollout
    return {
        "row": rollout(row),
        "more": [short(row.token_staleness), short(row.environment_staleness), row.environment_bound,
                 row.old_state_turns, row.judged_turns, row.loss_tokens, row.detailed],
        "times": {name: round(at, 3) for name in _TIMES if (at := getattr(row, name)) is not None},
        "versions": [list(pair) for pair in row.token_versions],
        "used": [[use.version, use.at, use.incarnation] for use in row.consumptions],
        "spans": [[one.kind, round(one.start, 3), _rounded(one.end), one.version, one.detail]
                  for one in found.spans[:SPANS]],
        "told": found.spans_told,
        "turns": _turns(row.turns),
        "turn_count": len(row.turns),
        "siblings": [_sibling(one) for one in found.siblings[:SIBLINGS]],
        "sibling_count": len(found.siblings),
        "boxes": _boxes(found),
    }  # fmt: skip


def _boxes(found: RolloutDetail) -> list[list[str]]:
    """[id, provider, state] each; sandboxes that no provider reports have only their ID."""
    reported = {box.id: box for box in found.sandboxes}
    named = dict.fromkeys([*found.rollout.sandbox_ids, *(turn.sandbox_id for turn in found.rollout.turns), *reported])
    return [
        [name, reported[name].provider, reported[name].state]
        if name in reported
        else [name, "", "provider not collected"]
        for name in named
        if name
    ]


def _rounded(at: float | None) -> float | None:
    return None if at is None else round(at, 3)


def _turns(turns: Sequence[Turn]) -> list[list[Any]]:
    """[version, tool calls, mutated, reset, sandbox, age of its state, of the latest change] each."""
    judged = ages(turns)
    return [
        [turn.version, turn.tool_calls, turn.mutated, turn.reset, turn.sandbox_id, *judged[i]]
        for i, turn in enumerate(turns[:TURNS])
    ]  # fmt: skip


def _sibling(row: RolloutRow) -> list[Any]:
    start = row.dispatched_at if row.started_at is None else row.started_at
    return [row.rollout_id, row.life, row.state, start, row.finished_at, short(row.reward), row.version_start,
            row.response_tokens]  # fmt: skip


def _updates(records: RolloutRecords, found: RolloutDetail, now: float) -> dict[str, Any]:
    """Weight updates during the rollout."""
    moments = [at for span in found.spans for at in (span.start, span.end if span.end is not None else now)]
    moments += [at for name in _TIMES if (at := getattr(found.rollout, name)) is not None]
    if not moments:
        return {"updates": []}
    reader, run = records.scope.reader, records.scope.run
    events = reader.runs.events(run, min(moments), max(moments) + 1, ("weights_published",), UPDATES)
    return {"updates": [[round(event.ts, 3), event.version] for event in events]}
