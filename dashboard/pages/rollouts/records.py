"""Reads rollout records for the Rollouts page; answers are cached for all browsers."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec import structs

from dashboard.charts.time_columns import Grid, grid
from dashboard.pages.rollouts.filters import RolloutQuery
from dashboard.shell.page import Scope
from server.query.types import Cells, CensusState, Funnel, GroupInfo, RolloutDetail, RolloutFilter, RolloutPage

T = TypeVar("T")

# Younger than the grid on which signals are derived: a number and its row are of one tick, give or take one.
KEEP_SECONDS = 4.0
PAGE, GROUPS = 50, 12
# Seconds. Environment names change rarely.
_NAMES_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class RolloutRecords:
    """The records of one run for a browser's query; answers are cached for some seconds."""

    scope: Scope
    query: RolloutQuery

    def any(self) -> bool:
        """Whether any rollout is reported."""
        return bool(self._cached("any", lambda: self.scope.reader.rollouts.page(self.scope.run, limit=1).rollouts))

    def environments(self) -> list[str]:
        return self._cached("names", lambda: self.scope.reader.rollouts.environments(self.scope.run), _NAMES_SECONDS)

    def census(self) -> Sequence[CensusState]:
        return self._cached("census", lambda: self.scope.reader.rollouts.census(self.scope.run))

    @property
    def columns(self) -> Grid | None:
        """The time shown; None for a request without one."""
        return grid(self.scope.span) if self.scope.span else None

    def funnel(self, columns: Grid) -> Funnel:
        """Of training, unless the query names a purpose."""
        purpose = self.query.filter.purpose or "train"
        return self._cached(
            ("funnel", columns, purpose),
            lambda: self.scope.reader.rollouts.funnel(self.scope.run, columns.start, columns.end, purpose=purpose),
        )

    def cells(self, kind: str, columns: Grid) -> Cells:
        return self._cached(
            (kind, columns),
            lambda: self.scope.reader.rollouts.cells(self.scope.run, kind, columns.start, columns.end, columns.count),
            columns.keep_seconds,
        )

    def page(self, after: str = "") -> RolloutPage:
        """The first page of the table, or the one that begins at ``after``."""
        wanted, query, reader, run = self.timed(), self.query, self.scope.reader, self.scope.run

        def read() -> RolloutPage:
            try:
                return reader.rollouts.page(
                    run, wanted, sort=query.sort, descending=query.descending, limit=PAGE, after=after
                )
            except ValueError:
                # A page key of the previous order, from a browser that has just changed the order.
                return RolloutPage((), None)

        return self._cached(("rows", wanted, query.sort, query.descending, after), read)

    def timed(self) -> RolloutFilter:
        """The filter with the time range; without it for rollouts in flight and searches by ID or group."""
        query, columns = self.query, self.columns
        if columns is None or query.in_flight_only or query.filter.find or query.filter.group:
            return query.filter
        return structs.replace(query.filter, start=columns.start, end=columns.end)

    def groups(self, after: str = "") -> tuple[list[GroupInfo], str]:
        outcomes, environment = self.query.outcomes, self.query.filter.environment
        reader, run = self.scope.reader, self.scope.run

        def read() -> tuple[list[GroupInfo], str]:
            try:
                return reader.rollouts.groups(run, outcomes, environment=environment, limit=GROUPS, after=after)
            except ValueError:
                return [], ""

        return self._cached(("groups", outcomes, environment, after), read)

    def open(self) -> RolloutDetail | None:
        """The rollout that is open."""
        name, incarnation = self.query.rollout, self.query.incarnation
        return self._cached(
            ("open", name, incarnation), lambda: self.scope.reader.rollouts.get(self.scope.run, name, incarnation)
        )

    def _cached(self, key: Hashable, read: Callable[[], T], seconds: float | None = None) -> T:
        scope, full_key = self.scope, ("rollouts", self.scope.run, key)
        if seconds is not None:
            return scope.shared.get(full_key, seconds, read)
        return scope.shared.get(full_key, KEEP_SECONDS, read, scope.cursor)
