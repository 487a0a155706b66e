"""Rollout records for the Rollouts page: read (cached for all browsers), as rows of its tables, and one in detail."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeVar

from msgspec import structs

from dashboard.charts.time_columns import Grid, grid
from dashboard.pages.rollouts.filters import CENSUS, RolloutQuery
from dashboard.shell.page import Json, Scope
from dashboard.widgets.status import View, joined
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
    found = _table("rollout_rows", page.rollouts, page.after or "", rollout) | _table(
        "group_rows", groups, next_groups, group
    )
    query = records.query
    if query.after:
        more = records.page(query.after)
        rows = [rollout(row) for row in more.rollouts]
        found["rollout_rows.more"] = {"after": query.after, "rows": rows, "next": more.after or ""}
    if query.more_groups:
        page_of, after = records.groups(query.more_groups)
        found["group_rows.more"] = {"after": query.more_groups, "rows": [group(row) for row in page_of], "next": after}
    few = "" if page.complete else MANY
    return found | {
        "rollout_rows.n": joined(_scope(records), few),
        "rollout_rows.timed": int(records.timed().start is not None),
    }


def _scope(records: RolloutRecords) -> str:
    """The time range of the rows."""
    query = records.query
    if query.filter.find or query.filter.group:
        return "any time"
    return "in flight, any time" if query.in_flight_only else "active in the time shown"


def _table(prefix: str, rows: Sequence[Row], after: str, draw: Callable[[Row], Json]) -> View:
    """``PREFIX.order``: handles; ``PREFIX.r.HANDLE``: the row; ``PREFIX.after``: where the next page begins."""
    drawn = {_handle(cells): cells for cells in map(draw, rows)}
    found: View = {f"{prefix}.r.{handle}": cells for handle, cells in drawn.items()}
    return found | {f"{prefix}.order": list(drawn), f"{prefix}.after": after}


def _handle(cells: Json) -> str:
    """Hashes an ID, which may have hundreds of characters; the order lists fifty."""
    named = f"{cells['life']}:{cells.get('rollout_id') or cells['group_id']}"
    return blake2b(named.encode(errors="surrogatepass"), digest_size=5).hexdigest()


_COLUMNS = (
    "rollout_id", "life", "group_id", "environment", "purpose", "agent", "engine", "state", "prompt_tokens",
    "response_tokens", "turn_count", "tool_calls", "version_start", "version_finish", "consumed", "staleness",
    "in_flight", "in_group", "in_queue", "mixed", "truncated", "error", "unknown", "sampled",
)  # fmt: skip
_GROUP_COLUMNS = (
    "group_id", "life", "environment", "purpose", "size", "members", "done", "valid", "outcome", "admitted", "version",
    "sampled",
)  # fmt: skip


def rollout(row: RolloutRow) -> Json:
    """Fields of the record that the table shows; ``since``: of a rollout in flight, when it started."""
    numbers = {name: short(getattr(row, name)) for name in ("seconds", "reward", "advantage")}
    since = started(row) if row.state in CENSUS else None
    return {name: getattr(row, name) for name in _COLUMNS} | numbers | {"moved_at": round(row.moved_at), "since": since}


def started(row: RolloutRow) -> int | None:
    """When it started, epoch seconds; the browser counts the duration of a rollout in flight."""
    return next((round(at) for name in _STARTS if (at := getattr(row, name)) is not None), None)


def short(value: float | None) -> float | None:
    """Rounds to five significant digits, as a column shows."""
    return None if value is None else float(f"{value:.5g}")


def group(row: RolloutGroupRow) -> Json:
    """Fields of the group that the table shows."""
    names = ("reward_min", "reward_max", "reward_mean", "solve_ratio", "spread")
    numbers = {name: short(getattr(row, name)) for name in names}
    return {name: getattr(row, name) for name in _GROUP_COLUMNS} | numbers | {"moved_at": round(row.moved_at)}


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
    """Empty while no rollout is open. ``rollout_detail.none``: the requested ID if it does not exist."""
    query = records.query
    if not query.rollout:
        return {}
    found = records.open()
    if found is None:
        return {"rollout_detail.none": query.rollout}
    return {"rollout_detail": _whole(found) | _updates(records, found, now)}


_DETAILS = ("environment_bound", "old_state_turns", "judged_turns", "loss_tokens", "detailed")


def _whole(found: RolloutDetail) -> Json:
    row = found.rollout
    details = {name: short(getattr(row, name)) for name in ("token_staleness", "environment_staleness")}
    return {
        "row": rollout(row) | details | {name: getattr(row, name) for name in _DETAILS},
        "times": {name: round(at, 3) for name in _TIMES if (at := getattr(row, name)) is not None},
        "versions": [list(pair) for pair in row.token_versions],
        "used": [{"version": use.version, "at": use.at, "life": use.incarnation} for use in row.consumptions],
        "spans": [{"kind": one.kind, "start": round(one.start, 3), "end": _rounded(one.end), "version": one.version,
                   "detail": one.detail} for one in found.spans[:SPANS]],
        "told": found.spans_told,
        "turns": _turns(row.turns),
        "turn_count": len(row.turns),
        "siblings": [_sibling(one) for one in found.siblings[:SIBLINGS]],
        "sibling_count": len(found.siblings),
        "boxes": _boxes(found),
    }  # fmt: skip


def _boxes(found: RolloutDetail) -> list[Json]:
    """Sandboxes that no provider reports have only their ID."""
    reported = {box.id: box for box in found.sandboxes}
    named = dict.fromkeys([*found.rollout.sandbox_ids, *(turn.sandbox_id for turn in found.rollout.turns), *reported])
    silent = {"provider": "", "state": "provider not collected"}
    return [
        {"id": name} | ({"provider": box.provider, "state": box.state} if (box := reported.get(name)) else silent)
        for name in named
        if name
    ]


def _rounded(at: float | None) -> float | None:
    return None if at is None else round(at, 3)


_TURN = ("version", "tool_calls", "mutated", "reset", "sandbox_id")


def _turns(turns: Sequence[Turn]) -> list[Json]:
    """With the age of the sandbox's state, and of its latest change, in versions."""
    judged = ages(turns)
    return [
        {name: getattr(turn, name) for name in _TURN} | dict(zip(("age", "latest"), judged[i], strict=True))
        for i, turn in enumerate(turns[:TURNS])
    ]


def _sibling(row: RolloutRow) -> Json:
    names = ("rollout_id", "life", "state", "finished_at", "version_start", "response_tokens")
    start = row.dispatched_at if row.started_at is None else row.started_at
    return {name: getattr(row, name) for name in names} | {"start": start, "reward": short(row.reward)}


def _updates(records: RolloutRecords, found: RolloutDetail, now: float) -> Json:
    """Weight updates during the rollout."""
    moments = [at for span in found.spans for at in (span.start, span.end if span.end is not None else now)]
    moments += [at for name in _TIMES if (at := getattr(found.rollout, name)) is not None]
    if not moments:
        return {"updates": []}
    reader, run = records.scope.reader, records.scope.run
    events = reader.runs.events(run, min(moments), max(moments) + 1, ("weights_published",), UPDATES)
    return {"updates": [{"ts": round(event.ts, 3), "version": event.version} for event in events]}
