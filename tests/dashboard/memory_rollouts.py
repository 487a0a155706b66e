"""Rollouts of a `Reader` in memory: rows as a test puts them; pages, sums and distributions follow from those."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import floor, log2
from typing import Any

from msgspec import structs

from collectors.model import Span, SpanKind
from server.query.rollouts import discards
from server.query.types import (
    Cells,
    CensusState,
    EventInfo,
    Funnel,
    FunnelBar,
    RolloutDetail,
    RolloutFilter,
    RolloutPage,
    Sort,
    StepAt,
)
from server.rollouts.merge import TIMES
from server.rollouts.model import RolloutGroupRow, RolloutRow
from server.store.types import RolloutSum

CENSUS = ("waiting_slot", "booting", "generating", "in_tool", "scoring", "waiting_group", "queued", "gated")
_COLUMNS = {"moved": "moved_at"}


@dataclass
class _Kept:
    rows: dict[tuple[str, int], RolloutRow] = field(default_factory=dict)
    groups: dict[tuple[str, int], RolloutGroupRow] = field(default_factory=dict)
    details: dict[tuple[str, int], RolloutDetail] = field(default_factory=dict)
    events: list[EventInfo] = field(default_factory=list)
    steps: list[StepAt] = field(default_factory=list)
    # Amounts that rows do not tell: exit -> (GPU-seconds, dollars).
    costs: dict[str, tuple[float | None, float | None]] = field(default_factory=dict)
    extra: list[FunnelBar] = field(default_factory=list)
    why: str = ""


class MemoryRollouts:
    """The part of `MemoryReader` that tells of rollouts."""

    clock: float
    calls: list[str]

    def __init__(self) -> None:
        self._records: dict[str, _Kept] = {}

    def _run(self, name: str) -> Any:
        raise NotImplementedError

    def records(self, run: str) -> _Kept:
        """What a test may change by hand."""
        return self._records.setdefault(run, _Kept())

    # A new container each time: the app may be going through the old one on a thread of its own.

    def put_rollouts(self, run: str, *rows: RolloutRow) -> None:
        kept = self.records(run)
        kept.rows = kept.rows | {(row.rollout_id, row.life): row for row in rows}

    def put_groups(self, run: str, *groups: RolloutGroupRow) -> None:
        kept = self.records(run)
        kept.groups = kept.groups | {(group.group_id, group.life): group for group in groups}

    def put_detail(self, run: str, detail: RolloutDetail) -> None:
        self.put_rollouts(run, detail.rollout)
        kept = self.records(run)
        kept.details = kept.details | {(detail.rollout.rollout_id, detail.rollout.life): detail}

    def put_events(self, run: str, *events: EventInfo) -> None:
        kept = self.records(run)
        kept.events = sorted([*kept.events, *events], key=lambda event: event.ts)

    # The protocol.

    def rollout_page(
        self, run: str, wanted: RolloutFilter = RolloutFilter(), *, sort: Sort = "seconds", descending: bool = True,  # noqa: B008
        limit: int = 100, after: str = "",
    ) -> RolloutPage:  # fmt: skip
        self.calls.append(f"rollouts {run} {sort} {after}")
        self._run(run)
        name = _COLUMNS.get(sort, sort)
        found = [row for row in self.records(run).rows.values() if _fits(row, wanted)]
        # What has no value comes last, whichever way.
        known = sorted(
            (row for row in found if getattr(row, name) is not None),
            key=lambda row: (getattr(row, name), row.rollout_id, row.life),
            reverse=descending,
        )
        rows = known + [row for row in found if getattr(row, name) is None]
        names = [f"{row.life}:{row.rollout_id}" for row in rows]
        # As the store's key is refused by another order.
        begin = names.index(after) + 1 if after else 0
        page = rows[begin : begin + limit]
        more = begin + limit < len(rows)
        return RolloutPage(tuple(page), f"{page[-1].life}:{page[-1].rollout_id}" if more else None)

    def rollout(self, run: str, rollout_id: str, life: int | None = None) -> RolloutDetail | None:
        self._run(run)
        kept = self.records(run)
        lives = [at for name, at in kept.rows if name == rollout_id and life in (None, at)]
        if not lives:
            return None
        row = kept.rows[rollout_id, max(lives)]
        siblings = tuple(r for r in kept.rows.values() if r.group_id == row.group_id and r.rollout_id != rollout_id)
        known = kept.details.get((rollout_id, max(lives)))
        if known is not None:
            return structs.replace(known, siblings=known.siblings or siblings)
        return RolloutDetail(row, _spans(row), False, siblings)

    def rollout_traces(self, run: str, start: float, end: float, limit: int = 5000) -> list[RolloutDetail]:
        rows = [row for row in self.records(run).rows.values() if start <= row.moved_at < end]
        newest = sorted(rows, key=lambda row: row.moved_at)[-limit:]
        found = (self.rollout(run, row.rollout_id, row.life) for row in newest)
        return [one for one in found if one is not None]

    def rollout_groups(
        self, run: str, outcomes: Sequence[str] = (), *, environment: str = "", limit: int = 100, after: str = ""
    ) -> tuple[list[RolloutGroupRow], str]:
        self._run(run)
        found = [g for g in self.records(run).groups.values()
                 if (not outcomes or g.outcome in outcomes) and environment in ("", g.environment)]  # fmt: skip
        found.sort(key=lambda g: (g.moved_at, g.group_id), reverse=True)
        begin = next((i + 1 for i, g in enumerate(found) if g.group_id == after), 0)
        page = found[begin : begin + limit]
        return page, page[-1].group_id if begin + limit < len(found) else ""

    def rollout_funnel(self, run: str, start: float, end: float, *, purpose: str = "train") -> Funnel:
        self._run(run)
        kept = self.records(run)
        mine = [row for row in kept.rows.values() if row.purpose == purpose]
        bars = []
        for name in sorted({row.state for row in mine if row.state not in CENSUS}):
            rows = [row for row in mine if row.state == name and start <= row.moved_at < end]
            gpu, usd = kept.costs.get(name, (None, None))
            if rows:
                bars.append(FunnelBar(name, len(rows), sum(row.response_tokens or 0 for row in rows), gpu, usd))
        live = sum(row.state in CENSUS for row in mine)
        lost = [bar.usd for bar in (*bars, *kept.extra) if bar.exit != "trained" and bar.usd is not None]
        sums = [RolloutSum(0, 0, row.state, row.environment, purpose, 1, 0, row.response_tokens or 0, 0, 0.0,
                           int(row.response_tokens is not None))
                for row in mine if row.state not in CENSUS and start <= row.moved_at < end]  # fmt: skip
        return Funnel(start, end, (*bars, *kept.extra), live, kept.why, sum(lost) if lost else None,
                      discards(sums, (purpose,)))  # fmt: skip

    def rollout_census(self, run: str) -> list[CensusState]:
        self._run(run)
        rows = self.records(run).rows.values()
        found = []
        for state in CENSUS:
            begun = [row.moved_at for row in rows if row.state == state]
            found.append(CensusState(state, len(begun), self.clock - min(begun) if begun else None))
        return found

    def rollout_cells(self, run: str, kind: str, start: float, end: float, buckets: int = 60) -> Cells:
        self.calls.append(f"cells {run} {kind}")
        self._run(run)
        kept, width = self.records(run), (end - start) / buckets
        columns: dict[int, Counter[int]] = {}
        for at, place in _solved(kept.groups.values()) if kind == "solve_ratio" else _bins(kept.rows.values(), kind):
            if start <= at < end:
                columns.setdefault(floor((at - start) / width), Counter())[place] += 1
        return [(start + number * width, dict(columns[number])) for number in sorted(columns)]

    def rollout_environments(self, run: str) -> list[str]:
        self._run(run)
        return sorted({row.environment for row in self.records(run).rows.values() if row.environment})

    def events(
        self, run: str, start: float, end: float, kinds: Sequence[str] = (), limit: int = 1000
    ) -> list[EventInfo]:
        self._run(run)
        found = self.records(run).events
        return [e for e in found if start <= e.ts < end and (not kinds or e.kind in kinds)][-limit:]

    def step_times(self, run: str, start: float, end: float, most: int = 1000) -> list[StepAt]:
        self.calls.append(f"steps {run}")
        self._run(run)
        told = sorted((one for one in self.records(run).steps if one.ts <= end), key=lambda one: (one.ts, one.life))
        found = [one for one in told if one.ts <= start][-1:] + [one for one in told if one.ts > start]
        if len(found) <= most:
            return found
        width = (end - start) / (most // 2)
        instants = (start + i * width for i in range(most // 2 + 1))
        newest = ([one for one in told if one.ts <= at][-1:] for at in instants)
        return sorted({one for some in newest for one in some}, key=lambda one: one.ts)


def _fits(row: RolloutRow, wanted: RolloutFilter) -> bool:
    named = row.rollout_id.startswith(wanted.find) or row.group_id.startswith(wanted.find)
    return (
        (not wanted.states or row.state in wanted.states)
        and wanted.environment in ("", row.environment)
        and wanted.purpose in ("", row.purpose)
        and wanted.group in ("", row.group_id)
        and named
        and wanted.mixed in (None, row.mixed)
        and (wanted.start is None or row.moved_at >= wanted.start)
        and (wanted.end is None or row.moved_at < wanted.end)
    )


def _bins(rows: Any, kind: str) -> list[tuple[float, int]]:
    found = []
    for row in rows:
        value = getattr(row, "turn_count" if kind == "turns" else kind)
        if value is None or row.state in CENSUS or (kind == "staleness" and row.consumed is None):
            continue
        powers = kind in ("response_tokens", "seconds")
        found.append((row.moved_at, floor(2 * log2(value)) if powers and value > 0 else int(value)))
    return found


def _solved(groups: Any) -> list[tuple[float, int]]:
    done = [g for g in groups if g.solve_ratio is not None and g.completed_at is not None]
    return [(g.completed_at, min(9, floor(10 * g.solve_ratio + 1e-9))) for g in done]


def _spans(row: RolloutRow) -> tuple[Span, ...]:
    """Of the header's times, as the store makes them where no span was told."""
    at = {name: value for name in (*TIMES, "consumed_at") if (value := getattr(row, name)) is not None}
    steps: tuple[tuple[SpanKind, str, str, int | None], ...] = (
        ("queued", "dispatched_at", "started_at", None),
        ("generate", "started_at", "finished_at", row.version_start),
        ("scoring", "finished_at", "scored_at", None),
        ("waiting_group", "scored_at", "group_complete_at", None),
        ("in_queue", "group_complete_at", "consumed_at", None),
    )
    return tuple(Span(kind, at[a], at.get(b), version) for kind, a, b, version in steps if a in at)
