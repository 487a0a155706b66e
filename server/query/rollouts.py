"""Reads rollouts: pages, one rollout with its timeline, groups, the funnel, the census, distributions."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from msgspec import structs

from collectors.model import Exit, Purpose, Rollout, Sandbox, Span, SpanKind
from collectors.model import Turn as Turn
from server.lib.clock import Clock
from server.query.run_state import stored_run
from server.query.types import (
    Cells,
    CensusState,
    Discards,
    Funnel,
    FunnelBar,
    RolloutDetail,
    RolloutFilter,
    RolloutPage,
    Sort,
)
from server.rollouts.model import CENSUS, ENDED, FAILED, RolloutGroupRow, RolloutRow
from server.signals.gpus import NO_PRICE, Fleet, fleet
from server.store import Store
from server.store.rollout_pages import BadKey
from server.store.rollouts import DEFAULT, HOUR, MINUTE, OTHER, Find, order_of
from server.store.samples import fit_width
from server.store.types import PointState, RolloutSum, RunRow, SandboxRow, SeriesKey

# ---- funnel
# The funnel of a window, from what was added up by exit.

UNRECORDED = "unrecorded"
_EXITS: tuple[str, ...] = get_args(Exit)
_NO_RECORDS = (
    "no rollout is recorded in this window: push records, or read a run directory with them (docs/how-to/rollouts.md)"
)
_NO_ENGINES = "the tokens of aborted rollouts are unknown: attach the engines, which count tokens"
_NO_TOKENS = "no record reports response_tokens"
_NO_GPUS = "GPU-seconds are unknown: set [run.NAME.cost] generator_gpus"
_SHARED = "GPU-seconds are unknown: trainer and generator share their GPUs, and how long each used them is not reported"


@dataclass(frozen=True, slots=True)
class Tokens:
    """What the engines generated within the window (None: not known), and how long it was, in seconds."""

    generated: float | None
    seconds: float


def funnel(
    sums: Sequence[RolloutSum], window: tuple[float, float], purposes: Collection[str], in_flight: int, tokens: Tokens,
    gpus_of: Fleet,
) -> Funnel:  # fmt: skip
    """Bars in the order of the exits, `UNRECORDED` last. ``purposes``: of the bars; all share the engines' time."""
    gpus, price = None if gpus_of.shared else gpus_of.generator.gpus, gpus_of.generator.usd_per_gpu_hour
    recorded, partly = sum(row.response_tokens for row in sums), any(row.told < row.rollouts for row in sums)
    # Without the engines' token counters the total lacks unreported tokens, so that shares would be too large.
    is_complete = tokens.generated is not None and tokens.generated >= recorded
    whole = max(recorded, tokens.generated or 0.0) if is_complete or not partly else 0.0

    def bar(name: str, rollouts: int, with_tokens: int, count: int | None, derived: bool = False) -> FunnelBar:
        seconds = None if gpus is None or count is None or not whole else count / whole * gpus * tokens.seconds
        usd = None if seconds is None or price is None else seconds / 3600 * price
        least: Literal["", "lower"] = "lower" if with_tokens < rollouts and count is not None else ""
        return FunnelBar(
            name, rollouts, count, seconds, usd, derived, with_tokens, "upper" if derived and partly else least
        )

    bars = []
    for name in (*_EXITS, *sorted({row.exit for row in sums} - set(_EXITS))) if sums else ():
        rows = [row for row in sums if row.exit == name and row.purpose in purposes]
        rollouts, with_tokens = sum(row.rollouts for row in rows), sum(row.told for row in rows)
        # Unreported tokens are unknown, not zero.
        count = sum(row.response_tokens for row in rows) if with_tokens or not rollouts else None
        bars.append(bar(name, rollouts, with_tokens, count))
    if tokens.generated is not None:
        bars.append(bar(UNRECORDED, 0, 0, round(max(0.0, tokens.generated - recorded)), derived=True))
    why = _lacking(sums, tokens, gpus_of, shares=bool(whole) or not partly)
    return Funnel(*window, tuple(bars), in_flight, why, _wasted(bars), discards(sums, purposes))


def discards(sums: Sequence[RolloutSum], purposes: Collection[str]) -> tuple[Discards, ...]:
    """What was trained on and what was not: of all environments, then of each by name. A use must be reported."""
    rows = [row for row in sums if row.purpose in purposes and row.exit != ENDED]
    if not any(row.exit == "trained" for row in rows):
        return ()
    by_name = {name: [row for row in rows if row.environment == name] for name in sorted({r.environment for r in rows})}
    return (_discards("", rows), *(_discards(name, found) for name, found in by_name.items()))


def _discards(environment: str, rows: Sequence[RolloutSum]) -> Discards:
    trained = [row for row in rows if row.exit == "trained"]
    left = [row for row in rows if row.exit != "trained"]
    (used, used_measured, used_mean), (lost, lost_measured, lost_mean) = map(_mean_tokens, (trained, left))
    cut = sum(row.rollouts for row in left if row.exit in ("aborted_oversample", *FAILED))
    return Discards(environment, used, lost, used_measured, lost_measured, used_mean, lost_mean, cut)


def _mean_tokens(rows: Sequence[RolloutSum]) -> tuple[int, int, float | None]:
    told = sum(row.told for row in rows)
    mean = sum(row.response_tokens for row in rows) / told if told else None
    return sum(row.rollouts for row in rows), told, mean


def _wasted(bars: Sequence[FunnelBar]) -> float | None:
    costs = [bar.usd for bar in bars if bar.exit != "trained" and bar.usd is not None]
    return sum(costs) if costs else None


def _lacking(sums: Sequence[RolloutSum], tokens: Tokens, gpus_of: Fleet, *, shares: bool) -> str:
    rollouts, with_tokens = sum(row.rollouts for row in sums), sum(row.told for row in sums)
    partly = f"{with_tokens:,} of {rollouts:,} rollouts report response_tokens: amounts cover only those"
    reasons = (
        (not sums, _NO_RECORDS),
        (bool(sums) and not with_tokens, _NO_TOKENS),
        (0 < with_tokens < rollouts, partly + ("" if shares else ", and shares of GPU time are unknown")),
        (tokens.generated is None, _NO_ENGINES),
        (gpus_of.shared, _SHARED),
        (not gpus_of.shared and gpus_of.generator.gpus is None, _NO_GPUS),
        (gpus_of.generator.usd_per_gpu_hour is None, NO_PRICE),
    )
    return "; ".join(reason for lacks, reason in reasons if lacks)


# ---- timeline
# Builds a rollout's timeline from its spans, else from the times of its record.

# In flight: the span that still grows.
_OPEN: Mapping[str, SpanKind] = {
    "waiting_slot": "queued", "booting": "boot", "generating": "generate", "in_tool": "generate", "scoring": "scoring",
    "waiting_group": "waiting_group", "queued": "in_queue", "gated": "suspended",
}  # fmt: skip


def timeline(row: RolloutRow, boxes: Sequence[Sandbox]) -> tuple[Span, ...]:
    """By start, with the boots of the rollout's sandboxes if its own spans have none."""
    spans = list(row.spans) or list(_derived_spans(row))
    if not any(span.kind == "boot" for span in spans):
        spans += _boots(boxes)
    return tuple(sorted(spans, key=lambda span: (span.start, span.kind)))


def _boots(boxes: Sequence[Sandbox]) -> Iterator[Span]:
    for box in boxes:
        if box.requested_at is None:
            continue
        end = box.ready_at if box.ready_at is not None else box.ended_at
        if end is None or end >= box.requested_at:
            yield Span("boot", box.requested_at, end, None, box.id)


def _derived_spans(row: RolloutRow) -> Iterator[Span]:
    open_kind = _OPEN.get(row.state, "")
    used = [use.at for use in row.consumptions if use.at is not None]
    after_score = _last(row.scored_at, row.finished_at)
    phases: tuple[tuple[SpanKind, float | None, float | None], ...] = (
        ("queued", row.dispatched_at, row.started_at),
        ("generate", _begun(row), row.finished_at),
        ("scoring", row.finished_at, row.scored_at),
        ("waiting_group", after_score, row.group_complete_at),
        ("in_queue", _last(row.group_complete_at, after_score), min(used, default=None)),
    )
    for kind, start, end in phases:
        if start is None or (end is None and kind != open_kind) or (end is not None and end < start):
            continue
        if kind == "generate":
            yield from _generated(row, start, end)
        elif end is None or end > start:
            yield Span(kind, start, end)


def _last(*times: float | None) -> float | None:
    """The first time that is reported; the times are given latest first."""
    return next((at for at in times if at is not None), None)


def _begun(record: Rollout) -> float | None:
    return _last(record.started_at, record.first_token_at)


def _generated(record: Rollout, start: float, end: float | None) -> Iterator[Span]:
    """Prefill to the first token; then one span per policy version, as wide as its share of the tokens."""
    first = record.first_token_at
    if first is not None and start < first and (end is None or first <= end):
        yield Span("prefill", start, first, record.version_start)
        start = first
    pairs = [(version, tokens) for version, tokens in record.token_versions if tokens > 0]
    total = sum(tokens for _, tokens in pairs)
    if end is None or not total:
        version = record.version_start if record.version_start == record.version_finish or end is None else None
        yield Span("generate", start, end, version)
        return
    done = 0
    for version, tokens in pairs:
        begin = start + (end - start) * done / total
        done += tokens
        yield Span("generate", begin, start + (end - start) * done / total, version, f"{tokens} tokens")


SIBLINGS = 256
# What all engines generate, as the tick derived it: minutes of it are stored added up, for any length of time.
_RATE = SeriesKey("", "generator_tokens_per_second")
_RATE_BUCKETS = 600


class RolloutReader:
    """Reads rollouts. Thread-safe."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock

    def page(
        self, run: str, row_filter: RolloutFilter = RolloutFilter(), *, sort: Sort = "seconds", descending: bool = True,  # noqa: B008
        limit: int = 100, after: str = "",
    ) -> RolloutPage:  # fmt: skip
        """A page of rollouts; by default the slowest first. ``after``: `RolloutPage.after` of the previous page.

        Raises `ValueError` for an ``after`` of another order; so does `groups`.
        """
        find = Find(
            row_filter.states, row_filter.environment, row_filter.purpose, row_filter.group,
            row_filter.find, row_filter.mixed,
            _ms(row_filter.start), _ms(row_filter.end),
        )  # fmt: skip
        try:
            rows, rest, complete = self._store.rollouts.page(run, find, order_of(sort, descending), after, limit)
        except BadKey:
            stored_run(self._store, run)
            raise
        # A page with rows proves that the run exists: checking first would add a fifth of the time.
        if not rows:
            stored_run(self._store, run)
        return RolloutPage(tuple(rows), rest or None, complete)

    def get(self, run: str, rollout_id: str, incarnation: int | None = None) -> RolloutDetail | None:
        """One rollout with its timeline (``incarnation`` None: the newest); None if it is unknown."""
        run = stored_run(self._store, run).name
        rows = [row for row in self._store.rollouts.get(run, [rollout_id]) if incarnation in (None, row.life)]
        if not rows:
            return None
        row, siblings = rows[-1], []
        if row.group_id:
            members = self._store.rollouts.members(run, [(row.group_id, row.life)])
            others = sorted((sibling for sibling in members if sibling.rollout_id != row.rollout_id), key=_identity)
            siblings = others[:SIBLINGS]
        return _detail(row, siblings, self._store.sandboxes.by_id(run, _boxes([row])))

    def traces(self, run: str, start: float, end: float, limit: int = 5000) -> list[RolloutDetail]:
        """Rollouts that changed state within [start, end) with their timelines, oldest first; at most the newest
        ``limit``.
        """
        run = stored_run(self._store, run).name
        rows = self._store.rollouts.within(run, _ms(start) or 0, _ms(end) or 0, limit)
        boxes = self._store.sandboxes.by_id(run, _boxes(rows))
        return [_detail(row, (), boxes) for row in rows]

    def groups(
        self, run: str, outcomes: Sequence[str] = (), *, environment: str = "", limit: int = 100, after: str = ""
    ) -> tuple[list[RolloutGroupRow], str]:
        """Groups, the last changed first, and where the next page begins ("": this is the last page)."""
        run = stored_run(self._store, run).name
        rows, rest = self._store.rollouts.group_page(run, outcomes, environment, after, limit)
        return [_group(row) for row in rows], rest

    def census(self, run: str) -> list[CensusState]:
        """Training rollouts in flight by state, in the order a rollout goes through them.

        Counts are of the records of the newest incarnation, else of the signal; 0 only if that is 0. A state that no
        source reports is left out: records that arrive when a rollout has ended report none of those in flight.
        """
        row, now = stored_run(self._store, run), self._clock.now()
        counts: dict[str, tuple[int, int]] = {}
        for state, purpose, count, since in self._store.rollouts.census(run, self._store.rollouts.newest_life(run)):
            if purpose not in ("", DEFAULT):
                continue
            before = counts.get(state, (0, since))
            counts[state] = (before[0] + count, min(before[1], since))
        counted = self._counted(row)
        order = [*CENSUS, *sorted(counts.keys() - set(CENSUS))]
        states = []
        for state in order:
            if state in counts:
                count, since = counts[state]
                states.append(CensusState(state, count, max(0.0, now - since / 1000)))
            elif state in counted:
                states.append(CensusState(state, round(counted[state]), None))
        return states

    def _counted(self, row: RunRow) -> dict[str, float]:
        """The newest values of `in_flight_rollouts`, by state."""
        newest = self._store.fleet.latest([row.id], ("in_flight_rollouts",)).get(row.id, ())
        points = ((dict(key.labels).get("state", ""), point) for key, point in newest)
        return {
            state: point.value for state, point in points if point.state is PointState.VALUE and point.value is not None
        }

    def funnel(self, run: str, start: float, end: float, *, purpose: str = "train") -> Funnel:
        """How rollouts left within [start, end), in rollouts, tokens, GPU-seconds and dollars."""
        row = stored_run(self._store, run)
        sums = self._store.rollouts.sums(run, round(start * 1000), round(end * 1000))
        incarnation = self._store.rollouts.newest_life(run)
        purposes = {"": ("", *get_args(Purpose)), DEFAULT: ("", DEFAULT)}.get(purpose, (purpose,))
        flying = sum(count for _, of, count, _ in self._store.rollouts.census(run, incarnation) if of in purposes)
        # The requested range may be longer than the run.
        begin = max(start, row.first_ts / 1000) if row.first_ts is not None else start
        until = min(end, self._clock.now())
        if row.lifecycle in ("finished", "crashed") and row.last_ts is not None:
            until = min(until, row.last_ts / 1000)
        begin = max(begin, self._recorded_from(run, sums))
        tokens = Tokens(self._generated(run, begin, until), max(0.0, until - begin))
        return funnel(sums, (start, end), purposes, flying, tokens, fleet(row.facts, row.mode))

    def _recorded_from(self, run: str, sums: Sequence[RolloutSum]) -> float:
        """From when on tokens have records: as long before the first one left as rollouts take on average.

        Tokens of before are nothing that was lost: nothing was recorded then.
        """
        first = self._store.rollouts.first_sum(run)
        if first is None:
            return 0.0
        rollouts = sum(row.rollouts for row in sums)
        return first / 1000 - (sum(row.seconds for row in sums) / rollouts if rollouts else 0.0)

    def _generated(self, run: str, start: float, end: float) -> float | None:
        """Tokens that the engines generated within [start, end); None if no engine reports them."""
        series = self._store.series.find(run, _RATE)
        if series is None or end <= start:
            return None
        low, high = round(start * 1000), round(end * 1000)
        width = fit_width(max(MINUTE, (high - low) // _RATE_BUCKETS))
        buckets = [bucket for bucket in self._store.samples.buckets(series, low, high, width) if bucket.n]
        if not buckets:
            return None
        overlaps = [max(0, min(bucket.ts + width, high) - max(bucket.ts, low)) / 1000 for bucket in buckets]
        return sum(bucket.total / bucket.n * seconds for bucket, seconds in zip(buckets, overlaps, strict=True))

    def cells(self, run: str, kind: str, start: float, end: float, buckets: int = 60) -> Cells:
        """A distribution over time: ``response_tokens``, ``turns``, ``staleness``, ``seconds``, ``solve_ratio``.

        Bins of tokens and seconds are powers of 2^(1/2): bin b holds values in [2^(b/2), 2^((b+1)/2)).
        Bins of staleness and turns are the numbers themselves; bins of the solve ratio are tenths.
        """
        run = stored_run(self._store, run).name
        low, high = round(start * 1000), round(end * 1000)
        width = -(-(high - low) // max(1, buckets))
        tier = HOUR if width >= HOUR else MINUTE
        width = -(-width // tier) * tier
        columns: dict[int, dict[int, int]] = {}
        for bucket, bin_, n in self._store.rollouts.bins(run, kind, low, high, width):
            columns.setdefault(bucket, {})[bin_] = n
        return [(at / 1000, columns[at]) for at in sorted(columns)]

    def environments(self, run: str) -> list[str]:
        """Environments named by rollouts, by name; at most 100."""
        run = stored_run(self._store, run).name
        return [name for name in self._store.rollouts.environments(run) if name != OTHER]


def _identity(row: RolloutRow) -> str:
    return row.rollout_id


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def _boxes(rows: Iterable[RolloutRow]) -> list[str]:
    return sorted({name for row in rows for name in row.sandbox_ids})


def _detail(row: RolloutRow, siblings: Sequence[RolloutRow], boxes: Mapping[str, SandboxRow]) -> RolloutDetail:
    rollout_boxes = [boxes[name] for name in row.sandbox_ids if name in boxes]
    return RolloutDetail(row, timeline(row, rollout_boxes), bool(row.spans), tuple(siblings), tuple(rollout_boxes))


def _group(row: RolloutGroupRow) -> RolloutGroupRow:
    solved = row.solved / row.valid if row.solved is not None and row.valid else None
    return structs.replace(row, solve_ratio=solved)
