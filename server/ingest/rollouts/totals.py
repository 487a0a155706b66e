"""What a rollout adds to the funnel and to distributions over time: increments: any order gives one sum. Pure."""

import math
from collections import defaultdict
from collections.abc import Iterator

from server.ingest.rollouts.counted import closes, leaves
from server.rollouts import state as rollouts_state
from server.rollouts.groups import OUTCOMES
from server.rollouts.staleness import uses
from server.store.types import RolloutBin, RolloutGroupRow, RolloutRow, RolloutSum

TIERS = (60_000, 3_600_000)
"""Widths of the buckets, ms."""

OTHER, ENVIRONMENTS = "*", 100
"""A source that invents environments must not fill the store: what comes after a hundred is taken together."""

OUTCOME = "outcome"
"""Kind of bins that count groups by their place in `OUTCOMES`."""

LEFT, CLOSED = "left", "closed"
"""Kinds of bins that only grow: rollouts by the place in `EXITS` of the exit they were first known to have, groups by
the place in `OUTCOMES` of the outcome they were first known to have. What our counters say, also after a restart: all
in one cell of the coarser tier at time 0."""

KINDS = ("response_tokens", "seconds", "turns", "tool_calls", "staleness", "solve_ratio", OUTCOME)
"""Of bins: what has a distribution over time."""

STALENESS_MOST = 1_000
# What is below a thousandth (of a second) is in the first bin.
_LOWEST = -20

_Cell = tuple[int, int, str, str, str]


def root_bin(value: float) -> int:
    """The bin b with 2^(b/2) <= value < 2^((b+1)/2)."""
    return max(_LOWEST, math.floor(2 * math.log2(value))) if value > 0 else _LOWEST


def left_at(row: RolloutRow) -> int:
    """When it left (epoch ms): its first consumption, else the newest time it tells."""
    used = [use.at for use in row.record.consumptions if use.at is not None]
    return round(min(used) * 1000) if row.state == "trained" and used else row.moved_at


def ended_at(row: RolloutRow) -> int:
    """When its generation ended (epoch ms), as far as told."""
    at = row.record.finished_at if row.record.finished_at is not None else rollouts_state.ended_at(row.record)
    return row.moved_at if at is None else round(at * 1000)


class RolloutTotals:
    """Increments of one batch. ``environments``: names of this run that have cells of their own; grows to a hundred."""

    def __init__(self, environments: set[str]) -> None:
        self._environments = environments
        self._sums: dict[_Cell, list[float]] = defaultdict(lambda: [0, 0, 0, 0, 0.0, 0])
        # By the minute, (its start, kind, bin): hours are added up of them at the end.
        self._minutes: dict[tuple[int, str, int], int] = defaultdict(int)
        self._bins: dict[tuple[int, int, str, int], int] = defaultdict(int)

    def change(self, before: RolloutRow | None, row: RolloutRow) -> None:
        """A rollout became another; what only some rollouts are told of counts nowhere."""
        if leaves(row) and not (before is not None and leaves(before)):
            self._bins[(TIERS[1], 0, LEFT, rollouts_state.EXITS.index(row.state))] += 1
        if before is not None and not before.record.sampled:
            self._count(before, -1)
        if not row.record.sampled:
            self._count(row, 1)

    def group(self, before: RolloutGroupRow | None, group: RolloutGroupRow) -> None:
        """The same of a group."""
        if closes(before, group):
            self._bins[(TIERS[1], 0, CLOSED, OUTCOMES.index(group.outcome))] += 1
        if before is not None and not before.sampled:
            self._count_group(before, -1)
        if not group.sampled:
            self._count_group(group, 1)

    def sums(self) -> list[RolloutSum]:
        """Cells of the funnel that changed."""
        return [
            RolloutSum(*cell, int(n), int(prompt), int(response), int(loss), seconds, int(told))
            for cell, (n, prompt, response, loss, seconds, told) in self._sums.items()
            if n or prompt or response or loss or told or abs(seconds) > 1e-6
        ]

    def bins(self) -> list[RolloutBin]:
        """Cells of distributions that changed."""
        found = self._bins.copy()
        for (at, kind, number), n in self._minutes.items():
            for tier in TIERS:
                found[tier, at // tier * tier, kind, number] += n
        return [RolloutBin(*cell, n) for cell, n in found.items() if n]

    def _count(self, row: RolloutRow, sign: int) -> None:
        record = row.record
        if row.state in rollouts_state.OVER:
            self._sum(row, sign)
        if record.purpose not in (None, "train"):
            return
        if rollouts_state.finished(record) or rollouts_state.left(record) is not None:
            at = ended_at(row) // TIERS[0] * TIERS[0]
            for kind, number in _numbers(row):
                self._minutes[at, kind, number] += sign
        for use in uses(record, row.life):
            if use.staleness is not None:
                at = row.moved_at if use.at is None else round(use.at * 1000)
                self._bin(at, "staleness", max(-1, min(use.staleness, STALENESS_MOST)), sign)

    def _sum(self, row: RolloutRow, sign: int) -> None:
        record, at = row.record, left_at(row)
        environment, purpose = self._named(record.environment), record.purpose or "train"
        prompt, response, loss = record.prompt_tokens or 0, record.response_tokens or 0, record.loss_tokens or 0
        for tier in TIERS:
            cell = self._sums[(tier, at // tier * tier, row.state, environment, purpose)]
            cell[0] += sign
            cell[1] += sign * prompt
            cell[2] += sign * response
            cell[3] += sign * loss
            cell[4] += sign * (row.seconds or 0.0)
            cell[5] += sign * (record.response_tokens is not None)

    def _named(self, environment: str) -> str:
        if environment in self._environments:
            return environment
        if len(self._environments) >= ENVIRONMENTS:
            return OTHER
        self._environments.add(environment)
        return environment

    def _count_group(self, group: RolloutGroupRow, sign: int) -> None:
        if group.outcome == "open" or group.purpose != "train":
            return
        at = group.moved_at if group.completed_at is None else group.completed_at
        self._bin(at, OUTCOME, OUTCOMES.index(group.outcome), sign)
        if group.solved is not None and group.valid:
            self._bin(at, "solve_ratio", min(9, group.solved * 10 // group.valid), sign)

    def _bin(self, at: int, kind: str, number: int, sign: int) -> None:
        self._minutes[at // TIERS[0] * TIERS[0], kind, number] += sign


def _numbers(row: RolloutRow) -> Iterator[tuple[str, int]]:
    record = row.record
    if record.response_tokens is not None:
        yield "response_tokens", root_bin(record.response_tokens)
    if row.seconds is not None:
        yield "seconds", root_bin(row.seconds)
    if row.turns is not None:
        yield "turns", row.turns
    if record.tool_calls is not None:
        yield "tool_calls", record.tool_calls
