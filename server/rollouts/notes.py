"""The notes that a window stores of a rollout and of a group, and their inputs. Pure."""

from dataclasses import dataclass

from msgspec import Struct

from collectors.model import Rollout
from server.rollouts import state as rollouts_state
from server.rollouts.model import RolloutGroupRow, RolloutRow
from server.rollouts.staleness import Use, ages_of, made_by

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


_ABORTED = frozenset(("aborted_oversample", *rollouts_state.FAILED))


def rollout_note(row: RolloutRow, use: Use | None = None) -> Note:
    """A rollout at a consumption; None: since it ended."""
    ended = row.finished_at if row.finished_at is not None else rollouts_state.ended_at(row)
    turns = _turns_by_age(row)
    at = use.at if use is not None and use.at is not None else ended if use is None else None
    return Note(
        row.moved_at / 1000 if at is None else at, _age(row, use), row.state,
        rollouts_state.finished(row) and row.exit not in _ABORTED, row.environment, row.difficulty,
        (row.group_id, row.life) if row.group_id else None, row.sampled, row.response_tokens, row.seconds,
        row.turn_count, row.tool_calls, row.reward,
        None if row.advantage is None else abs(row.advantage) < 1e-12, row.mixed, row.unknown,
        use.staleness if use is not None else None, _parts(row, use), _tokens_by_age(row, use), turns,
        (row.environment_latest or 0.0) * sum(turns.values()), row.environment_bound,
    )  # fmt: skip


def _turns_by_age(row: RolloutRow) -> dict[int, int]:
    """What is known of one turn alone, in no sandbox and without a word on tools, is nothing: its 0 is every such
    rollout's, while those of several turns have no age, and they would all look as if on the newest state."""
    turns = dict(ages_of(row.environment_ages))
    return {} if turns == {0: 1} and row.tool_calls is None and not row.sandbox_ids else turns


def _age(record: Rollout, use: Use | None) -> float | None:
    """What is dated by something else than its own end, or its use, has no age: 0 would be invented."""
    ended = rollouts_state.generated_at(record)
    return None if use is None or use.at is None or ended is None else max(0.0, use.at - ended)


def _parts(row: RolloutRow, use: Use | None) -> tuple[int, int, int] | None:
    """What was not spent in flight and in the group was spent in the queue: longer when it is used again."""
    if use is None or use.staleness is None or row.in_flight is None or row.in_group is None:
        return None
    return row.in_flight, row.in_group, use.staleness - row.in_flight - row.in_group


def _tokens_by_age(record: Rollout, use: Use | None) -> dict[int, int]:
    if use is None or use.staleness is None or use.version is None:
        return {}
    found: dict[int, int] = {}
    for version, tokens in made_by(record):
        found[use.version - version] = found.get(use.version - version, 0) + tokens
    return found


@dataclass(frozen=True, slots=True)
class GroupNote:
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
    completed = group.completed_at / 1000 if group.completed_at is not None else None
    ratio = group.solved / group.valid if group.solved is not None and group.valid else None
    seconds = completed - group.first_at / 1000 if completed is not None else None
    return GroupNote(
        group.moved_at / 1000 if completed is None else completed, completed if told else None, group.version,
        group.outcome, group.admitted, group.environment, difficulty, ratio, seconds, group.sampled,
    )  # fmt: skip
