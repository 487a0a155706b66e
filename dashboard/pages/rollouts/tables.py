"""Rollouts and groups as rows. The order is a cell and so is each row: a tick sends those that are new or changed."""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, TypeVar

from dashboard.pages.rollouts.filters import CENSUS
from dashboard.pages.rollouts.records import RolloutRecords
from dashboard.state.status import View, joined
from server.query import RolloutRow
from server.query.types import GroupInfo

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
    """Names first, then numbers, in the order of `assets/72-rollout-table.js` (``COLUMNS`` there)."""
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


def group(row: GroupInfo) -> list[Any]:
    """In the order of `assets/72-rollout-table.js`."""
    return [
        row.group_id, row.life, row.environment, row.purpose, row.size, row.members, row.done, row.valid,
        short(row.reward_min), short(row.reward_max), short(row.reward_mean), short(row.solve_ratio), row.outcome,
        row.admitted, row.version, round(row.moved_at), short(row.spread), row.sampled,
    ]  # fmt: skip
