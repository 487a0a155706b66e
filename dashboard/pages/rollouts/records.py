"""What the Rollouts page reads of records: now and then, for all browsers together."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from dashboard.charts.time_columns import Grid, grid
from dashboard.pages.rollouts.filters import RolloutQuery
from dashboard.shell.page import Scope
from server.query.rollouts.types import (
    Cells,
    CensusState,
    Funnel,
    GroupInfo,
    RolloutDetail,
    RolloutFilter,
    RolloutPage,
)

T = TypeVar("T")

# Younger than the grid on which signals are derived: a number and its row are of one tick, give or take one.
KEEP_SECONDS = 4.0
PAGE, GROUPS = 50, 12
# Names come rarely; whether there is any record is asked for a few rows.
_NAMES_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class RolloutRecords:
    """The records of one run for what a browser asks; every answer is kept for some seconds."""

    scope: Scope
    asked: RolloutQuery

    def any(self) -> bool:
        """Has anybody told of a rollout?"""
        return bool(self._kept("any", lambda: self.scope.reader.rollouts(self.scope.run, limit=1).rows))

    def environments(self) -> list[str]:
        return self._kept("names", lambda: self.scope.reader.rollout_environments(self.scope.run), _NAMES_SECONDS)

    def census(self) -> Sequence[CensusState]:
        return self._kept("census", lambda: self.scope.reader.rollout_census(self.scope.run))

    @property
    def columns(self) -> Grid | None:
        """The time shown; None where the page was asked for without one."""
        return grid(self.scope.span) if self.scope.span else None

    def funnel(self, columns: Grid) -> Funnel:
        """Of training, unless a purpose is asked for."""
        purpose = self.asked.wanted.purpose or "train"
        return self._kept(
            ("funnel", columns, purpose),
            lambda: self.scope.reader.rollout_funnel(self.scope.run, columns.start, columns.end, purpose=purpose),
        )

    def cells(self, kind: str, columns: Grid) -> Cells:
        return self._kept(
            (kind, columns),
            lambda: self.scope.reader.rollout_cells(self.scope.run, kind, columns.start, columns.end, columns.count),
            columns.keep_seconds,
        )

    def page(self, after: str = "") -> RolloutPage:
        """The first page of the table, or the one that begins at ``after``."""
        wanted, asked, reader, run = self.timed(), self.asked, self.scope.reader, self.scope.run

        def read() -> RolloutPage:
            try:
                return reader.rollouts(
                    run, wanted, sort=asked.sort, descending=asked.descending, limit=PAGE, after=after
                )
            except ValueError:
                # A key of another order, by a browser that has just changed it: its next question has none.
                return RolloutPage((), "")

        return self._kept(("rows", wanted, asked.sort, asked.descending, after), read)

    def timed(self) -> RolloutFilter:
        """Of the time shown, but for what is in flight (whenever it last moved) and what is looked for by its name."""
        asked, columns = self.asked, self.columns
        if columns is None or asked.in_flight_only or asked.wanted.find or asked.wanted.group:
            return asked.wanted
        return replace(asked.wanted, start=columns.start, end=columns.end)

    def groups(self, after: str = "") -> tuple[list[GroupInfo], str]:
        outcomes, environment = self.asked.outcomes, self.asked.wanted.environment
        reader, run = self.scope.reader, self.scope.run

        def read() -> tuple[list[GroupInfo], str]:
            try:
                return reader.rollout_groups(run, outcomes, environment=environment, limit=GROUPS, after=after)
            except ValueError:
                return [], ""

        return self._kept(("groups", outcomes, environment, after), read)

    def open(self) -> RolloutDetail | None:
        """The rollout that is open."""
        name, life = self.asked.rollout, self.asked.life
        return self._kept(("open", name, life), lambda: self.scope.reader.rollout(self.scope.run, name, life))

    def _kept(self, key: Hashable, read: Callable[[], T], seconds: float | None = None) -> T:
        scope, mine = self.scope, ("rollouts", self.scope.run, key)
        if seconds is not None:
            return scope.shared.get(mine, seconds, read)
        return scope.shared.get(mine, KEEP_SECONDS, read, scope.cursor)
