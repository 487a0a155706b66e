"""Increments of the funnel and of distributions over time, per rollout. Any order gives the same sum. Pure."""

import math
from collections import defaultdict
from collections.abc import Iterator
from operator import add

from server.rollouts import state as rollouts_state
from server.rollouts.groups import OUTCOMES
from server.rollouts.model import RolloutGroupRow, RolloutRow
from server.rollouts.staleness import uses
from server.store.types import RolloutBin, RolloutSum

TIERS = (60_000, 3_600_000)
"""Widths of the buckets, ms: a minute, an hour."""

OTHER = "*"
"""Environment that counts all environments beyond `MAX_ENVIRONMENTS`."""

MAX_ENVIRONMENTS = 100
"""Environments with their own cells, a limit on rows: some sources create environment names without end."""

OUTCOME = "outcome"
"""Kind of bins that count groups by their index in `OUTCOMES`."""

LEFT = "left"
"""Kind of bins that count rollouts by the index in `EXITS` of the exit they had first."""

CLOSED = "closed"
"""Kind of bins that count groups by the index in `OUTCOMES` of the outcome they had first.

`LEFT` and `CLOSED` only grow; counters are restored from them. All are in one cell of the coarser tier at time 0."""

KINDS = ("response_tokens", "seconds", "turns", "tool_calls", "staleness", "solve_ratio", OUTCOME)
"""Kinds of bins with a distribution over time."""

STALENESS_MOST = 1_000
"""Largest staleness with a bin of its own, versions."""

# First bin: everything below 2^-10, about a thousandth (of a second).
_LOWEST = -20

_Cell = tuple[int, str, str, str]


def closes(before: RolloutGroupRow | None, group: RolloutGroupRow) -> bool:
    """Is the group newly counted among the outcomes?"""
    return _closed(group) and not (before is not None and _closed(before))


def _closed(group: RolloutGroupRow) -> bool:
    return group.outcome != "open" and group.purpose == "train" and not group.sampled


def leaves(row: RolloutRow) -> bool:
    """Does the rollout count among the exits: made for training, and from a source that reports every rollout?"""
    return row.state in rollouts_state.EXITS and not row.sampled and row.purpose in (None, "train")


def root_bin(value: float) -> int:
    """Returns the bin b with 2^(b/2) <= value < 2^((b+1)/2)."""
    return max(_LOWEST, math.floor(2 * math.log2(value))) if value > 0 else _LOWEST


def left_at(row: RolloutRow) -> int:
    """Returns when the rollout left (epoch ms): its first consumption, else its newest time."""
    used = [use.at for use in row.consumptions if use.at is not None]
    return _ms(min(used) if row.state == "trained" and used else row.moved_at)


def ended_at(row: RolloutRow) -> int:
    """Returns when the rollout's generation ended (epoch ms); its newest time if no end is reported."""
    at = row.finished_at if row.finished_at is not None else rollouts_state.ended_at(row)
    return _ms(row.moved_at if at is None else at)


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _no_amounts() -> list[float]:
    return [0, 0, 0, 0, 0.0, 0]


class RolloutTotals:
    """Increments of one batch. ``environments``: names of this run with cells of their own; grows to the limit."""

    def __init__(self, environments: set[str]) -> None:
        self._environments = environments
        # By (minute, exit, environment, purpose), and counts by (minute, kind, bin); hours are added up from them.
        self._sums: dict[_Cell, list[float]] = defaultdict(_no_amounts)
        self._minutes: dict[tuple[int, str, int], int] = defaultdict(int)
        self._bins: dict[tuple[int, int, str, int], int] = defaultdict(int)

    def change(self, before: RolloutRow | None, row: RolloutRow) -> None:
        """Counts a changed rollout. Rollouts of a source that reports only a sample count nowhere."""
        if leaves(row) and not (before is not None and leaves(before)):
            self._bins[(TIERS[1], 0, LEFT, rollouts_state.EXITS.index(row.state))] += 1
        if before is not None and not before.sampled:
            self._count(before, -1)
        if not row.sampled:
            self._count(row, 1)

    def group(self, before: RolloutGroupRow | None, group: RolloutGroupRow) -> None:
        """Counts a changed group."""
        if closes(before, group):
            self._bins[(TIERS[1], 0, CLOSED, OUTCOMES.index(group.outcome))] += 1
        if before is not None and not before.sampled:
            self._count_group(before, -1)
        if not group.sampled:
            self._count_group(group, 1)

    def sums(self) -> list[RolloutSum]:
        """Returns the changed cells of the funnel."""
        found: dict[tuple[int, int, str, str, str], list[float]] = defaultdict(_no_amounts)
        for (at, *names), amounts in self._sums.items():
            for tier in TIERS:
                cell = found[(tier, at // tier * tier, *names)]  # type: ignore[index]
                cell[:] = map(add, cell, amounts)
        return [
            RolloutSum(*cell, int(n), int(prompt), int(response), int(loss), seconds, int(counted))
            for cell, (n, prompt, response, loss, seconds, counted) in found.items()
            if n or prompt or response or loss or counted or abs(seconds) > 1e-6
        ]

    def bins(self) -> list[RolloutBin]:
        """Returns the changed cells of distributions."""
        found = self._bins.copy()
        for (at, kind, number), n in self._minutes.items():
            for tier in TIERS:
                found[tier, at // tier * tier, kind, number] += n
        return [RolloutBin(*cell, n) for cell, n in found.items() if n]

    def _count(self, row: RolloutRow, sign: int) -> None:
        if row.state in rollouts_state.OVER:
            self._sum(row, sign)
        if row.purpose not in (None, "train"):
            return
        if rollouts_state.finished(row) or rollouts_state.left(row) is not None:
            at = ended_at(row) // TIERS[0] * TIERS[0]
            for kind, number in _numbers(row):
                self._minutes[at, kind, number] += sign
        for use in uses(row, row.life):
            if use.staleness is not None:
                at = _ms(row.moved_at if use.at is None else use.at)
                self._bin(at, "staleness", max(-1, min(use.staleness, STALENESS_MOST)), sign)

    def _sum(self, row: RolloutRow, sign: int) -> None:
        at = left_at(row)
        environment, purpose = self._named(row.environment), row.purpose or "train"
        prompt, response, loss = row.prompt_tokens or 0, row.response_tokens or 0, row.loss_tokens or 0
        cell = self._sums[at // TIERS[0] * TIERS[0], row.state, environment, purpose]
        cell[0] += sign
        cell[1] += sign * prompt
        cell[2] += sign * response
        cell[3] += sign * loss
        cell[4] += sign * (row.seconds or 0.0)
        cell[5] += sign * (row.response_tokens is not None)

    def _named(self, environment: str) -> str:
        if environment in self._environments:
            return environment
        if len(self._environments) >= MAX_ENVIRONMENTS:
            return OTHER
        self._environments.add(environment)
        return environment

    def _count_group(self, group: RolloutGroupRow, sign: int) -> None:
        if group.outcome == "open" or group.purpose != "train":
            return
        at = _ms(group.moved_at if group.completed_at is None else group.completed_at)
        self._bin(at, OUTCOME, OUTCOMES.index(group.outcome), sign)
        if group.solved is not None and group.valid:
            self._bin(at, "solve_ratio", min(9, group.solved * 10 // group.valid), sign)

    def _bin(self, at: int, kind: str, number: int, sign: int) -> None:
        self._minutes[at // TIERS[0] * TIERS[0], kind, number] += sign


def _numbers(row: RolloutRow) -> Iterator[tuple[str, int]]:
    if row.response_tokens is not None:
        yield "response_tokens", root_bin(row.response_tokens)
    if row.seconds is not None:
        yield "seconds", root_bin(row.seconds)
    if row.turn_count is not None:
        yield "turns", row.turn_count
    if row.tool_calls is not None:
        yield "tool_calls", row.tool_calls
