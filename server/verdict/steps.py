"""The trainer's numbers of the present: of the steps after the newest clear change among the last ten.

Means of ten steps would include the previous limiter for ten steps. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import inf, log, sqrt
from statistics import median

from server.signals.window import Step
from server.verdict.model import VerdictInput
from server.verdict.thresholds import (
    BEYOND,
    EARLIER,
    HOLDS,
    INSTANTS,
    LATE_SECONDS,
    LATE_STEP,
    LEAST_BUSY,
    LEAST_LIMIT_SECONDS,
    LEAST_SECONDS,
    LEAST_SHARE,
    LIMIT,
    MOST_INSTANTS,
    MOST_SECONDS,
    NEWER,
    PLATEAU_SECONDS,
    PLATEAU_SPREAD,
    SHARE_CHANGE,
    SHARE_SPREAD,
    SIGNIFICANT,
    STOPPED,
    SYNC_STEPS,
    WINDOW_STEPS,
    WORK_CHANGE,
    WORKED,
)  # fmt: skip

# ---- instants
# Counts of requests, rollouts and sandboxes at the same instants over the last minutes.

REQUESTS = "requests:"
ROLLOUTS = "rollouts:"
SANDBOXES = "sandboxes:"
RUNNING = REQUESTS + "running"
WAITING = REQUESTS + "waiting"
STARTING = SANDBOXES + "starting"
QUEUED = SANDBOXES + "queued"
CAP = "cap"
BUBBLE = "bubble"
UNCOUNTED = ("waiting_group", "queued", "scoring")
"""States of rollouts that `in_flight_ratio` does not count."""


Instant = tuple[float, Mapping[str, float]]


def instant(seen: VerdictInput) -> dict[str, float]:
    """Returns the counts of now by series."""
    requests = {REQUESTS + row.get("state", ""): value for row, value in seen.rows("generator_requests_now")}
    cap = seen.get("in_flight_ratio")
    requests |= {CAP: cap} if cap is not None else {}
    requests |= {SANDBOXES + row.get("state", ""): value for row, value in seen.rows("sandboxes")}
    return requests | {ROLLOUTS + row.get("state", ""): value for row, value in seen.rows("in_flight_rollouts")}


def add(window: Sequence[Instant], seen: VerdictInput) -> list[Instant]:
    """Returns the instants of the window with the newest one, if the spacing has passed."""
    step = seen.get("trainer_step_seconds") or 0.0
    steps = SYNC_STEPS if seen.synchronous else WINDOW_STEPS
    span = max(LEAST_SECONDS, steps * step)
    span = max(MOST_SECONDS, span) if seen.synchronous else min(MOST_SECONDS, span)
    within = [entry for entry in window if entry[0] > seen.now - span]
    values = instant(seen)
    if not values or (within and seen.now - within[-1][0] < span / (MOST_INSTANTS if seen.synchronous else INSTANTS)):
        return within
    return [*within, (seen.now, values)]


def means(window: Sequence[Instant], since: float = -inf) -> dict[str, float]:
    """Returns the mean of each series over the instants from ``since`` on, at least the newest.

    A state that is missing from an instant counts as 0 if others of its kind are reported. Instants with other rollout
    states come from another source and are left out. Zero sandboxes before the first sandbox are left out too, because
    history is judged before the provider is read.
    """
    within = judged(window, since)
    first_box = first_sandboxes(window)
    names = _rollout_states(within[-1][1]) if within else frozenset()
    totals: dict[str, float] = {}
    counts: dict[str, int] = {}
    for ts, values in within:
        same = _rollout_states(values) == names
        kinds = {_kind(name) for name in values} - (set() if same else {ROLLOUTS.rstrip(":"), CAP})
        if ts < first_box:
            kinds.discard(SANDBOXES.rstrip(":"))
        for name, value in values.items():
            if _kind(name) in kinds:
                totals[name] = totals.get(name, 0.0) + value
        for kind in kinds:
            counts[kind] = counts.get(kind, 0) + 1
    means_ = {name: total / counts[_kind(name)] for name, total in totals.items()}
    return means_ | _bubble([values.get(REQUESTS + "running", 0.0) for _, values in within])


def judged(window: Sequence[Instant], since: float) -> list[Instant]:
    """Returns the instants from ``since`` on, at least the newest."""
    return [entry for entry in window if entry[0] >= since] or list(window[-1:])


def first_sandboxes(window: Sequence[Instant]) -> float:
    """Returns the time of the first instant with a sandbox; infinite without any."""
    times = (
        ts
        for ts, values in window
        if any(value > 0 and _kind(name) + ":" == SANDBOXES for name, value in values.items())
    )
    return next(times, inf)


def _rollout_states(values: Mapping[str, float]) -> frozenset[str]:
    return frozenset(name for name in values if name.startswith(ROLLOUTS))


def _kind(name: str) -> str:
    return name.partition(":")[0]


def _bubble(running: Sequence[float]) -> dict[str, float]:
    """Returns how far below their peak the running requests were on average while any ran; needs several instants."""
    busy = [count for count in running if count > 0]
    return {BUBBLE: 1.0 - sum(busy) / len(busy) / max(busy)} if len(busy) >= LEAST_BUSY else {}


def bubble(seen: VerdictInput) -> float | None:
    """Returns the idle share of the engines while they generate, over whole steps if these exceed the window."""
    longer = (seen.get("trainer_step_seconds") or 0.0) > MOST_SECONDS
    value = seen.recent.get(BUBBLE) if longer and seen.synchronous else None
    return value if value is not None else seen.get("tail_bubble_ratio")


def requests(seen: VerdictInput, state: str) -> float | None:
    """Returns the requests in a state: the mean of the last minutes, else of the signal."""
    value = seen.recent.get(REQUESTS + state)
    return value if value is not None else seen.total("generator_requests", state=state)


def cap(seen: VerdictInput) -> float | None:
    """Returns the used share of the in-flight limit: the mean of the last minutes, else of now."""
    value = seen.recent.get(CAP)
    return value if value is not None else seen.get("in_flight_ratio")


def limit(seen: VerdictInput) -> float | None:
    """Returns the limit of rollouts in flight: their number by the used share, as `in_flight_ratio` counts them.

    Else the limit that the run's configuration states, else the number that does not move (`flat_in_flight`).
    """
    share = seen.get("in_flight_ratio")
    counts = [value for row, value in seen.rows("in_flight_rollouts") if row.get("state") not in UNCOUNTED]
    if counts and share:
        return sum(counts) / share
    return seen.fact("max_in_flight") or flat_in_flight(seen.instants, seen.now)


def flat_in_flight(window: Sequence[Instant], now: float) -> float | None:
    """Returns the rollouts in flight, or the requests, if their number did not move for a while; else None."""
    since = now - PLATEAU_SECONDS
    if not window or window[0][0] > since:
        return None
    recent = [values for ts, values in window if ts >= since]
    for names in (ROLLOUTS, REQUESTS):
        totals = [
            sum(value for name, value in values.items()
                if name.startswith(names) and name.removeprefix(names) not in ("waiting_group", "queued"))
            for values in recent
        ]  # fmt: skip
        if len(totals) >= EARLIER and min(totals) > 0:
            return max(totals) if max(totals) - min(totals) <= PLATEAU_SPREAD * max(totals) else None
    return None


def sandboxes(seen: VerdictInput) -> dict[str, float]:
    """Returns the run's sandboxes by state: means of the last minutes, else of now."""
    counts = dict(_named(seen.recent.items(), SANDBOXES))
    return counts or {row.get("state", ""): value for row, value in seen.rows("sandboxes")}


def census(seen: VerdictInput) -> dict[str, float]:
    """Returns the rollouts by state: means of the last minutes, else of now."""
    counts = dict(_named(seen.recent.items(), ROLLOUTS))
    return counts or {row.get("state", ""): value for row, value in seen.rows("in_flight_rollouts")}


def _named(items: Iterable[tuple[str, float]], prefix: str) -> Iterable[tuple[str, float]]:
    return ((name.removeprefix(prefix), value) for name, value in items if name.startswith(prefix))


# ---- regime
# Selects the last steps that belong to the present, so that a change shows before it fills ten steps.

STEP, WAIT = ("trainer_step_seconds", ()), ("trainer_wait_seconds", ())
# Phases that occur only in some steps; they do not mark a change.
NOW_AND_THEN = (("trainer_checkpoint_seconds", ()), ("trainer_eval_seconds", ()))


@dataclass(frozen=True, slots=True)
class Line:
    """Limits of a change: the least ``spread`` assumed of a series, and the least ``change`` that matters."""

    spread: float
    change: float


# Shares of a step jitter by a few hundredths in the calmest run; a change that matters is a fifth of the step.
SHARES = Line(SHARE_SPREAD, SHARE_CHANGE)
# The logarithm of the trainer's own work jitters as much; a quarter more work is a change.
WORK = Line(SHARE_SPREAD, log(WORK_CHANGE))


def wait_shares(steps: Sequence[Step]) -> list[float]:
    """Returns the wait share of each step that reports its time and its wait."""
    complete = [step for step in steps if STEP in step.values and WAIT in step.values]
    return [step.values[WAIT] / step.values[STEP] for step in complete if step.values[STEP] > 0]


def work(step: Step) -> float:
    """Returns the seconds of a step without its wait and without phases that occur only in some steps."""
    values = step.values
    return values[STEP] - values[WAIT] - sum(values.get(key, 0.0) for key in NOW_AND_THEN)


def of_work(steps: Sequence[Step], more: bool = False) -> int:
    """Returns how many of the newest steps have the same work; all if a step does not report it.

    ``more``: the open step has the same work as the newest. Work varies less than waits, which come in bursts.
    """
    works = [work(step) if STEP in step.values and WAIT in step.values else 0.0 for step in steps]
    if min(works, default=0.0) <= 0.0:
        return len(steps)
    logs = [log(seconds) for seconds in works]
    start = changed([*logs, logs[-1]], WORK) if more else len(logs)
    return 1 if more and start == NEWER else changed(logs, WORK)


def changed(values: Sequence[float], line: Line, least: int = NEWER) -> int:
    """Returns how many of the newest values belong together: all, or at least ``least`` after the newest change."""
    cuts = range(least, len(values) - EARLIER + 1)
    return next((newer for newer in cuts if _differ(values[:-newer], values[-newer:], line)), len(values))


def present_start(shares: Sequence[float], least: int = NEWER) -> int:
    """As `changed`, for shares; a first step that waited while the pipeline filled is left out."""
    start = changed(shares, SHARES, least)
    return start - _filling(shares) if start == len(shares) else start


def _filling(shares: Sequence[float]) -> bool:
    """Returns whether the first step of the run is included and waited clearly longer than any other."""
    young = EARLIER < len(shares) < WINDOW_STEPS
    return young and shares[0] >= max(shares[1:]) + SHARES.change


def _differ(before: Sequence[float], after: Sequence[float], line: Line) -> bool:
    change = abs(_mean_of(after) - _mean_of(before))
    if change < line.change:
        return False
    spread = max(line.spread, sqrt((_squares(before) + _squares(after)) / max(1, len(before) + len(after) - 2)))
    return change > SIGNIFICANT * spread * sqrt(1 / len(before) + 1 / len(after))


def _mean_of(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _squares(values: Sequence[float]) -> float:
    mean = _mean_of(values)
    return sum((value - mean) ** 2 for value in values)


GATE = ("dispatch_gate_wait_seconds", ())
SCORING = ("reward_seconds", ())
DROPPED = ("stale_dropped_rollouts", ())
QUEUE = ("queue_samples", ())
SAMPLES = ("trainer_samples", ())
HELD = (("backpressure_seconds", ()), GATE)
OVERHEADS = {
    "weight_sync": ("trainer_weight_sync_seconds", ()),
    "checkpoint": ("trainer_checkpoint_seconds", ()),
    "eval": ("trainer_eval_seconds", ()),
    "other": ("trainer_other_seconds", ()),
}


@dataclass(frozen=True, slots=True)
class Present:
    """The trainer's own numbers, as in `server.verdict.throughput`.

    Attributes:
        gated: share of the time in which steps waited and were held, by the smaller of both; None: not reported.
        since: the numbers are newer than the signals' means.
        first: (incarnation, number) of the first step that belongs to the present as a whole; None: none yet.
        begun: when the first of these steps began, epoch seconds; None: no step is reported.
        scoring: share of the time of these steps in which one scorer is busy; None: not reported.
        stopped: the run stood still in one of the last three steps.
        batches, stale: in the queue, and share of what arrived that was dropped, of these steps; None: not reported.
        same_steps: the arrivals are counted over the steps themselves, not over the last minutes.
    """

    wait: float | None
    capacity: float | None
    trained: float | None
    arrivals: float | None
    hold_ratio: float | None
    overheads: Mapping[str, float]
    step: float | None
    steps: int
    gated: float | None = None
    since: bool = False
    first: tuple[int, int] | None = None
    begun: float | None = None
    scoring: float | None = None
    same_steps: bool = False
    stopped: bool = False
    batches: float | None = None
    stale: float | None = None


def present(seen: VerdictInput) -> Present:
    """Returns the numbers of the present steps, else the signals' means of the last ten."""
    means = _of_signals(seen)
    rows = [row for row in seen.steps if row.values.get(STEP, 0.0) > 0]
    means = replace(means, begun=_begun(rows), same_steps=bool(rows) and all(QUEUE in row.values for row in rows))
    if means.wait is None:
        return replace(means, gated=_gated(means, rows))
    last = rows[-EARLIER:]
    rows, stopped = _without_stops(rows)
    means = replace(means, stopped=any(row not in rows for row in last))
    every = len(rows)
    rows = _same_work(seen, means, rows)
    newest = min((present_start(shares) for shares in _shares(seen, rows)), default=len(rows))
    if _is_burst(rows, newest):
        newest = len(rows)
    first, whole = _first_whole(rows[-newest:]) if 0 < newest < every else None, newest == len(rows) < every
    newest = min(newest, sum(_is_since(row, seen.first) for row in rows))
    opened = _with_open(seen, means, rows, newest)
    if opened is not None:
        return replace(opened, first=first)
    if not 0 < newest < every and not stopped:
        return replace(means, gated=_gated(means, rows))
    facts = _of_rows(seen, means, rows[-newest:], rows[-newest:])
    if newest < every:
        facts = replace(facts, **_counted(seen, rows[-newest:], rows[:-newest]))  # type: ignore[arg-type]
    facts = replace(facts, gated=_gated(means, rows[-newest:]), first=first, since=newest < every)
    return _supplied(facts, means) if whole else facts


def _counted(seen: VerdictInput, rows: Sequence[Step], before: Sequence[Step]) -> dict[str, float]:
    """Returns arrivals, drops and queue of these steps alone, if every step reports its queue and samples.

    ``before``: the steps before them. Arrivals are trained and dropped samples and the growth of the queue since the
    step before the first.
    """
    if not rows or any(QUEUE not in row.values or SAMPLES not in row.values for row in rows):
        return {}
    samples = sum(row.values[SAMPLES] for row in rows)
    dropped = sum(row.values.get(DROPPED, 0.0) for row in rows)
    means = {"batches": sum(row.values[QUEUE] for row in rows) / samples}
    if any(DROPPED in row.values for row in (*before, *rows)):
        means["stale"] = dropped / (dropped + samples)
    if before and QUEUE in before[-1].values:
        seconds = rows[-1].ts - before[-1].ts
        means["arrivals"] = max(0.0, samples + dropped + rows[-1].values[QUEUE] - before[-1].values[QUEUE]) / seconds
    return means


def _begun(rows: Sequence[Step]) -> float | None:
    return rows[0].ts - rows[0].values[STEP] if rows else None


def _without_stops(rows: list[Step]) -> tuple[list[Step], bool]:
    """Returns the steps without those in which the run stood still, and whether there were any."""
    if len(rows) <= EARLIER:
        return rows, False
    limit = max(STOPPED * median(row.values[STEP] for row in rows), LATE_SECONDS)
    kept_rows = [row for row in rows if row.values[STEP] - _now_and_then(row) < limit]
    return kept_rows, len(kept_rows) < len(rows)


def _now_and_then(row: Step) -> float:
    return sum([row.values.get(key, 0.0) for key in NOW_AND_THEN])


def _is_burst(rows: Sequence[Step], newest: int) -> bool:
    """Returns whether the newest steps together are shorter than an earlier step, as in a run that waits in bursts."""
    if not 0 < newest < len(rows):
        return False
    return sum(row.values[STEP] for row in rows[-newest:]) < max(row.values[STEP] for row in rows[:-newest])


def _with_open(seen: VerdictInput, means: Present, rows: Sequence[Step], newest: int) -> Present | None:
    """Returns the numbers with the open step and similar steps; None if ``newest`` steps suffice without it."""
    opened = open_step(seen, means, rows)
    waits = wait_shares([*rows, opened.step]) if opened is not None else []
    if opened is None or len(waits) <= len(rows):
        return None
    cut = present_start(waits, 1 if opened.alone else NEWER)
    if cut >= min(len(waits), newest + 1):
        return None
    late, before = rows[len(rows) - (cut - 1) :], rows[: len(rows) - (cut - 1)]
    facts = replace(_of_rows(seen, means, [*late, opened.step], late), gated=_gated(means, late))
    return replace(facts, **_counted(seen, late, before))  # type: ignore[arg-type]


def _is_since(row: Step, first: tuple[int, int] | None) -> bool:
    return first is None or row.incarnation != first[0] or row.number >= first[1]


def _first_whole(rows: Sequence[Step]) -> tuple[int, int] | None:
    """Returns the first step that belongs to the present as a whole, once enough steps do."""
    return (rows[1].incarnation, rows[1].number) if len(rows) > EARLIER else None


def _same_work(seen: VerdictInput, means: Present, rows: list[Step]) -> list[Step]:
    """Returns the steps since the trainer's own work last changed."""
    newest = of_work(rows, _outlasts(seen, means, rows))
    if not 0 < newest < len(rows) or _is_burst(rows, newest):
        return rows
    before, first = rows[:-newest], rows[-newest]
    usual = sum(work(row) for row in before) / len(before)
    # The extra work of the first step shortened its wait, because production did not change.
    less = min(first.values[WAIT], max(0.0, work(first) - usual))
    values = {**first.values, STEP: first.values[STEP] - less, WAIT: first.values[WAIT] - less}
    return [replace(first, values=values), *rows[len(rows) - newest + 1 :]]


def _outlasts(seen: VerdictInput, means: Present, rows: Sequence[Step]) -> bool:
    """Returns whether the open step has its batch and has worked longer than all but the newest step."""
    queue, batch = seen.get("queue_samples_now"), _batch(seen)
    if queue is None or not batch or queue < batch or any(WAIT not in row.values for row in rows) or len(rows) < 2:
        return False
    busy = [row.values[STEP] - row.values[WAIT] for row in rows]
    longest = max(busy[:-1])
    # It may have waited first, as long as any step, minus the extra work of the newest.
    waited = max(0.0, max(row.values[WAIT] for row in rows) - max(0.0, busy[-1] - longest))
    return seen.now - rows[-1].ts - waited >= WORK_CHANGE * longest


def _supplied(facts: Present, means: Present) -> Present:
    """Keeps the arrivals of before a change of work, because work that grew does not change production."""
    if facts.arrivals is None or means.arrivals is None:
        return facts
    before, now = _potential(means, facts.trained), _potential(facts, facts.trained)
    return replace(facts, arrivals=means.arrivals, hold_ratio=means.hold_ratio) if before > now else facts


def _potential(facts: Present, trained: float | None) -> float:
    return max(facts.arrivals or 0.0, trained or 0.0) / max(LEAST_SHARE, 1.0 - (facts.hold_ratio or 0.0))


def _batch(seen: VerdictInput) -> float | None:
    """Returns the samples of a batch: as configured, else as trained in a usual step."""
    trained, step = seen.get("trainer_samples_per_second"), seen.get("trainer_step_seconds")
    return seen.fact("batch_samples") or (trained * step if trained and step else None)


@dataclass(frozen=True, slots=True)
class Open:
    """The open step so far. ``alone``: it shows a change without a second step."""

    step: Step
    alone: bool


def open_step(seen: VerdictInput, means: Present, rows: Sequence[Step]) -> Open | None:
    """Estimates the open step, because its row exists only at its end.

    With a batch in the queue the trainer no longer waits. Without a batch it has waited for the time that its work does
    not take: if its work took longer, the queue would hold a batch once a whole step is over.
    """
    queue = seen.get("queue_samples_now")
    batch = _batch(seen)
    if queue is None or not batch or not rows or WAIT not in rows[-1].values:
        return None
    open_for, last = seen.now - rows[-1].ts, rows[-1].values
    busy = last[STEP] - last[WAIT]
    if queue >= batch:
        return Open(_open(rows[-1], open_for, 0.0), False) if open_for >= WORKED * busy else None
    # A gate holds production however long the trainer works. A full queue does so too, but holds a batch.
    if last.get(GATE, 0.0) >= HOLDS * last[STEP] or open_for < WORK_CHANGE * busy:
        return None
    longest = max(row.values[STEP] for row in rows)
    return Open(_open(rows[-1], open_for, open_for - busy), open_for >= busy + longest)


@dataclass(frozen=True, slots=True)
class Late:
    """The open step and ended ones, in seconds. ``usual``: median from row to row; ``longest``: of the last ten.

    Attributes:
        after: number of the newest ended step; None if none is reported.
        batches: in the queue while the step is open, if the queue is reported live; None: not reported.
        had: batches in the queue when the step began, from the row of the newest step; None: not reported.
        saves: some of the last steps contain a checkpoint or an evaluation.
    """

    after: int | None
    seconds: float
    usual: float
    longest: float
    batches: float | None = None
    had: float | None = None
    saves: bool = False

    @property
    def times(self) -> float:
        return self.seconds / self.usual

    @property
    def late(self) -> bool:
        """Whether the step is too long for a step that merely took longer."""
        return self.seconds >= max(LATE_STEP * self.usual, BEYOND * self.longest, LATE_SECONDS)

    @property
    def hungry(self) -> bool:
        """Whether the step has had no batch for longer than a usual and the longest step together."""
        long = self.seconds >= max(self.usual + self.longest, LATE_SECONDS)
        return long and self.batches is not None and self.batches < 1.0

    @property
    def fed(self) -> bool:
        """Whether the step is late although its batch is in the queue, or was when the step began."""
        batches = self.batches if self.batches is not None else self.had
        return self.late and batches is not None and batches >= 1.0


def open_since(seen: VerdictInput) -> Late | None:
    """Returns the open step by `trainer_stall_ratio`, which uses the times of reading and not the trainer's clock."""
    stall, rows = seen.get("trainer_stall_ratio"), [row for row in seen.steps if row.values.get(STEP, 0.0) > 0]
    step = seen.get("trainer_step_seconds")
    took = list(_row_to_row(rows)) or ([step] if step else [])
    if stall is None or not took:
        return None
    usual = median(took)
    seconds = stall * max(LEAST_LIMIT_SECONDS, LIMIT * usual)
    # A step in which the run stood still does not show how long a step may take.
    ended = _without_stops(rows)[0]
    longest = max([*_row_to_row(ended)] or [usual]) if len(ended) < len(rows) else max(took)
    late = Late(rows[-1].number if rows else None, seconds, usual, longest)
    return replace(late, batches=_batches_live(seen, rows, seconds - usual), had=_batches_then(seen, rows),
                   saves=any(_now_and_then(row) > 0 for row in rows))  # fmt: skip


def _row_to_row(rows: Sequence[Step]) -> Iterator[float]:
    """Yields the seconds of each step; a row may cover several steps."""
    for before, row in pairwise(rows):
        yield max(row.values[STEP] * max(1, row.number - before.number), row.ts - before.ts)


def _batches_live(seen: VerdictInput, rows: Sequence[Step], since: float) -> float | None:
    """Returns the batches in the queue if it is reported between the steps' rows, at most ``since`` seconds ago."""
    queue, age, batch = seen.get("queue_samples_now"), seen.age("queue_samples_now"), _batch(seen)
    if queue is None or age is None or not batch or age > max(0.0, since):
        return None
    return None if rows and rows[-1].values.get(QUEUE) == queue else queue / batch


def _batches_then(seen: VerdictInput, rows: Sequence[Step]) -> float | None:
    """Returns the batches in the queue when the newest step ended."""
    queue = rows[-1].values.get(QUEUE) if rows else None
    queue = seen.get("queue_samples_now") if queue is None else queue
    batch = _batch(seen)
    return queue / batch if queue is not None and batch else None


def _open(last: Step, seconds: float, wait: float) -> Step:
    return Step(last.axis, last.incarnation, last.number + 1, last.ts + seconds, {STEP: seconds, WAIT: wait})


def _gated(means: Present, rows: Sequence[Step]) -> float | None:
    """Returns the share of the time with wait and hold in the same steps. In different steps they are no gate."""
    if means.hold_ratio is None or not rows:
        return means.hold_ratio
    both = (min(row.values.get(WAIT, 0.0), max(row.values.get(key, 0.0) for key in HELD)) for row in rows)
    return sum(both) / sum(row.values[STEP] for row in rows)


def _of_signals(seen: VerdictInput) -> Present:
    return Present(
        wait=seen.get("trainer_wait_ratio"),
        capacity=seen.get("capacity_samples_per_second"),
        trained=seen.get("trainer_samples_per_second"),
        arrivals=seen.get("queue_arrivals_samples_per_second"),
        hold_ratio=max((value for _, value in seen.rows("generation_held_ratio")), default=None),
        overheads={row["phase"]: value for row, value in seen.rows("trainer_overhead_seconds") if "phase" in row},
        step=seen.get("trainer_step_seconds"),
        steps=len(wait_shares(seen.steps)),
    )


def _shares(seen: VerdictInput, rows: Sequence[Step]) -> list[list[float]]:
    """Returns shares of each step: wait, weight updates and a busy scorer, as far as the steps report them.

    Holds are left out: a queue that runs full and empty again is held in spells without a change of the run.
    """
    waits = [[row.values[WAIT] / row.values[STEP] for row in rows]] if all(WAIT in row.values for row in rows) else []
    others = [key for key in (OVERHEADS["weight_sync"],) if any(key in row.values for row in rows)]
    shares = [[min(1.0, row.values.get(key, 0.0) / row.values[STEP]) for row in rows] for key in others]
    scoring = [] if seen.synchronous else _scoring(seen, rows)
    return [*waits, *shares, *([scoring] if scoring else [])]


def _scoring(seen: VerdictInput, rows: Sequence[Step]) -> list[float]:
    """Returns the busy share of one scorer in each step; a step without a scored group repeats the previous one."""
    size = seen.fact("group_size")
    shares: list[float] = []
    for row in rows:
        seconds, groups = row.values.get(SCORING), _groups(row, size)
        if seconds is not None and groups is not None:
            shares.append(min(1.0, seconds * groups / row.values[STEP]))
        elif shares:
            shares.append(shares[-1])
    return shares if len(shares) == len(rows) else []


def _groups(row: Step, size: float | None) -> float | None:
    """Returns the groups scored in a step: trained and dropped ones."""
    dropped = row.values.get(DROPPED, 0.0) / size if size else 0.0
    samples = row.values.get(SAMPLES)
    if samples is not None and size:
        return samples / size + dropped
    groups = row.values.get(("trainer_groups", ()))
    return groups + dropped if groups is not None else None


def _of_rows(seen: VerdictInput, means: Present, rows: Sequence[Step], ended: Sequence[Step]) -> Present:
    """Computes the numbers of these steps. ``ended``: the steps with a complete row."""
    total = sum(row.values[STEP] for row in rows)
    step = total / len(rows)
    wait = sum(row.values.get(WAIT, 0.0) for row in rows) / total
    # Samples per step do not depend on waits, so the rates scale with the time of the step.
    trained = means.trained * means.step / step if means.trained is not None and means.step else means.trained
    arrivals = means.arrivals
    if arrivals is not None and trained is not None and means.trained is not None:
        arrivals = max(0.0, arrivals + trained - means.trained)
    whole = sum(row.values[STEP] for row in ended)
    hold_ratio = (
        [sum(row.values.get(key, 0.0) for row in ended) / whole for key in HELD] if whole else [means.hold_ratio or 0.0]
    )
    return Present(
        wait=wait,
        capacity=trained / (1 - wait) if trained is not None and wait < 1 else means.capacity,
        trained=trained,
        arrivals=arrivals,
        hold_ratio=min(1.0, max(hold_ratio)) if means.hold_ratio is not None else None,
        overheads={name: _mean(ended, name) for name in means.overheads if name in OVERHEADS}
        if ended
        else means.overheads,
        step=step,
        steps=len(rows),
        since=True,
        begun=_begun(rows),
        scoring=_busy(seen, ended),
        same_steps=means.same_steps,
        stopped=means.stopped,
    )


def _busy(seen: VerdictInput, rows: Sequence[Step]) -> float | None:
    """Returns the share of the time of these steps in which one scorer is busy."""
    shares = [] if seen.synchronous else _scoring(seen, rows)
    total = sum(row.values[STEP] for row in rows)
    return sum(share * row.values[STEP] for share, row in zip(shares, rows, strict=True)) / total if shares else None


def _mean(rows: Sequence[Step], name: str) -> float:
    """Returns seconds per step; `other` does not include evaluations inside the step."""
    mean = sum(row.values.get(OVERHEADS[name], 0.0) for row in rows) / len(rows)
    return max(0.0, mean - _mean(rows, "eval")) if name == "other" else mean
