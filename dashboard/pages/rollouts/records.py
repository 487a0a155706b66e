"""Rollout records for the Rollouts page: read (cached for all browsers), as rows of its tables, and one in detail."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, TypeVar

from msgspec import structs

from dashboard.charts.time_columns import Grid, grid
from dashboard.pages.rollouts.filters import CENSUS, RolloutQuery
from dashboard.shell.page import Scope
from dashboard.state.status import View, joined
from server.query import RolloutGroupRow, RolloutRow, Turn
from server.query.types import Cells, CensusState, Funnel, RolloutDetail, RolloutFilter, RolloutPage

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

    def groups(self, after: str = "") -> tuple[list[RolloutGroupRow], str]:
        outcomes, environment = self.query.outcomes, self.query.filter.environment
        reader, run = self.scope.reader, self.scope.run

        def read() -> tuple[list[RolloutGroupRow], str]:
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


# ---- tables
# The order is a cell and so is each row: a tick sends those that are new or changed.

Row = TypeVar("Row")

_STARTS = ("started_at", "dispatched_at")
MANY = "incomplete: too many IDs match; the CSV has all"


def tables(records: RolloutRecords) -> View:
    """Both tables, and the additional page that is requested."""
    page, (groups, next_groups) = records.page(), records.groups()
    found = _table("rt", page.rollouts, page.after or "", rollout) | _table("rg", groups, next_groups, group)
    query = records.query
    if query.after:
        more = records.page(query.after)
        found["rt.more"] = [query.after, [rollout(row) for row in more.rollouts], more.after or ""]
    if query.more_groups:
        rows, after = records.groups(query.more_groups)
        found["rg.more"] = [query.more_groups, [group(row) for row in rows], after]
    few = "" if page.complete else MANY
    return found | {"rt.n": joined(_scope(records), few), "rt.timed": int(records.timed().start is not None)}


def _scope(records: RolloutRecords) -> str:
    """The time range of the rows."""
    query = records.query
    if query.filter.find or query.filter.group:
        return "any time"
    return "in flight, any time" if query.in_flight_only else "active in the time shown"


def _table(prefix: str, rows: Sequence[Row], after: str, draw: Callable[[Row], list[Any]]) -> View:
    """``PREFIX.order``: handles; ``PREFIX.r.HANDLE``: the row; ``PREFIX.after``: where the next page begins."""
    drawn = {_handle(cells): cells for cells in map(draw, rows)}
    found: View = {f"{prefix}.r.{handle}": cells for handle, cells in drawn.items()}
    return found | {f"{prefix}.order": list(drawn), f"{prefix}.after": after}


def _handle(cells: list[Any]) -> str:
    """Hashes an ID, which may have hundreds of characters; the order lists fifty."""
    return blake2b(f"{cells[1]}:{cells[0]}".encode(errors="surrogatepass"), digest_size=5).hexdigest()


def rollout(row: RolloutRow) -> list[Any]:
    """Names first, then numbers, in the order of `assets/widgets/rollout_table.mjs` (``COLUMNS`` there)."""
    left = row.state not in CENSUS
    return [
        row.rollout_id, row.life, row.group_id, row.environment, row.purpose or "", row.agent, row.engine, row.state,
        round(row.moved_at), short(row.seconds), None if left else started(row), row.prompt_tokens, row.response_tokens,
        row.turn_count, row.tool_calls, short(row.reward), short(row.advantage), row.version_start, row.version_finish,
        row.consumed, row.staleness, row.in_flight, row.in_group, row.in_queue, row.mixed, row.truncated, row.error,
        row.unknown, row.sampled,
    ]  # fmt: skip


def started(row: RolloutRow) -> int | None:
    """When it started, epoch seconds; the browser counts the duration of a rollout in flight."""
    return next((round(at) for name in _STARTS if (at := getattr(row, name)) is not None), None)


def short(value: float | None) -> float | None:
    """Rounds to five significant digits, as a column shows."""
    return None if value is None else float(f"{value:.5g}")


def group(row: RolloutGroupRow) -> list[Any]:
    """In the order of `assets/widgets/rollout_table.mjs`."""
    return [
        row.group_id, row.life, row.environment, row.purpose, row.size, row.members, row.done, row.valid,
        short(row.reward_min), short(row.reward_max), short(row.reward_mean), short(row.solve_ratio), row.outcome,
        row.admitted, row.version, round(row.moved_at), short(row.spread), row.sampled,
    ]  # fmt: skip


# ---- detail
# One rollout and its timeline, as one cell ``rd``; `assets/widgets/timeline.mjs` draws it.

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
