"""What the windows of a run held, read back from the store: a restart changes no number.

Values that nobody can mean are left out: a store of before they were refused may hold some.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from msgspec import structs

from collectors.model import Histogram
from server.derive.deriver import STARTED, Deriver
from server.ingest.arrivals import RolloutArrival
from server.ingest.readings import SampleArrival, StepArrival, implausible_reason
from server.ingest.rollouts import ALWAYS, CLOSED, LEFT, PUBLISHED, TIERS, leaves, versions
from server.rollouts import model as rollouts_model
from server.rollouts.groups import OUTCOMES
from server.rollouts.model import RolloutGroupRow, RolloutRow
from server.rollouts.staleness import KEPT_VERSIONS as PUBLICATIONS
from server.rollouts.window import KEPT_VERSIONS, WINDOW_SECONDS, WINDOW_VERSIONS
from server.signals.observed_histograms import REMEMBERED_SECONDS, WINDOWED
from server.signals.window import KEPT_STEPS
from server.store import Store
from server.store.types import StepRow


def samples(store: Store, run: str, deriver: Deriver, since: int) -> list[SampleArrival]:
    """Every sample of a tick signal from ``since`` (ms) on, in the order of time."""
    found: list[SampleArrival] = [
        (ts / 1000, key.target, key.metric, key.labels, value)
        for _, key, points in store.samples.window(run, sorted(deriver.tick_metrics), since)
        for ts, value in points
        if key.target
        and not implausible_reason(key.metric, value)  # without a target: a signal of ours of a metric's name
    ]
    # As on a page, the start of a process comes before what it counted.
    return sorted(found, key=lambda sample: (sample[0], sample[2] != STARTED))


def histograms(store: Store, run: str, deriver: Deriver, since: int) -> None:
    """Minutes from ``since`` (ms) on, and the readings that the next ones are held against.

    A process that died had committed more than it derived, by a tick at most: the minutes hold that already.
    """
    minutes, last = store.histograms.windows(run, sorted(WINDOWED), since // 60_000 * 60_000)
    for key, total in last:
        if key.target and total.ts / 1000 >= since / 1000 - REMEMBERED_SECONDS:
            item = Histogram(key.metric, total.edges, total.counts, total.total, key.labels)
            deriver.sample(total.ts / 1000, key.target, key.metric, key.labels, item)
    for key, minute, delta in minutes:
        pool = deriver.histograms.pool(key.target, key.metric, key.labels, delta.edges)
        pool.add(minute // 60_000, [*accumulate(delta.counts), delta.total])


def steps(store: Store, run: str, done: Mapping[str, tuple[int, int]]) -> tuple[list[StepArrival], list[StepArrival]]:
    """(those of the window that were answered already, those that were not) of a run."""
    arrived: list[StepArrival] = []
    fresh: list[StepArrival] = []
    newest = store.runs.incarnation(run)
    for life in range(newest, -1, -1):
        rows = _steps_back_to(store, run, life, done)
        new = [row for row in rows if _is_new(row, done)]
        arrived += _words(row for row in rows if life == newest and not _is_new(row, done))
        fresh += _words(new)
        if len(new) < len(rows):
            break
    return arrived, fresh


def _steps_back_to(store: Store, run: str, life: int, done: Mapping[str, tuple[int, int]]) -> list[StepRow]:
    """Every step of a life not yet done and, per axis, at least a window of those before it."""
    count = KEPT_STEPS
    while True:
        rows = store.steps.newest(run, last=count, incarnation=life)
        by_axis = {axis: [row for row in rows if row.axis == axis] for axis in {row.axis for row in rows}}
        if all(len(of) < count or (life, of[0].step) <= done.get(axis, (-1, -1)) for axis, of in by_axis.items()):
            return rows
        count *= 8


def _is_new(row: StepRow, done: Mapping[str, tuple[int, int]]) -> bool:
    return (row.incarnation, row.step) > done.get(row.axis, (-1, -1))


def _words(rows: Iterable[StepRow]) -> Iterator[StepArrival]:
    """Stored steps as they arrived: each target's word by itself."""
    for row in rows:
        for target, told in row.told.items():
            values = {key: value for key, value in told.items() if not implausible_reason(key[0], value)}
            yield StepArrival(row.axis, row.incarnation, row.step, row.ts / 1000, target, values)


# ---- rollout recovery
# What a run's book of rollouts held, read back from the store: a restart changes no number.

Pending = tuple[deque[RolloutArrival], deque[tuple[float, int]]]


def fill(store: Store, run: str, deriver: Deriver, watermark: int) -> Pending:
    """Fill the book as of the watermark (epoch ms); what was committed of later times comes back as just arrived.

    Counters go on from what they were, and come to what the store has added up: they never fall.
    """
    published = _published(store, run, deriver, watermark)
    rows = _rows(store, run, watermark)
    groups = _groups(store, run, rows)
    pending: deque[RolloutArrival] = deque()
    unseen: set[tuple[str, int]] = set()
    known = watermark / 1000
    for row in rows:
        group = groups.get((row.group_id, row.life))
        ts = _arrives(row, group)
        late = group is not None and group.completed_at is not None and group.completed_at > known
        if ts <= known:
            deriver.rollout(RolloutArrival(ts, row, None, group), counted=True)
            continue
        closes = late and group is not None and (group.group_id, group.life) not in unseen
        unseen |= {(group.group_id, group.life)} if closes and group is not None else set()
        pending.append(RolloutArrival(ts, row, None, group, closes))
    return _count(store, run, deriver, pending), published


def _published(store: Store, run: str, deriver: Deriver, watermark: int) -> deque[tuple[float, int]]:
    events = [event for _, event in store.runs.events(run, 0, ALWAYS, [PUBLISHED], PUBLICATIONS)]
    later: deque[tuple[float, int]] = deque()
    for ts, version in versions(events, 0.0):
        if ts * 1000 <= watermark:
            deriver.rollouts.publish(version, ts)
        else:
            later.append((ts, version))
    return later


def _rows(store: Store, run: str, watermark: int) -> list[RolloutRow]:
    """The window's, those in flight, and those of later times, each once, in the order of time."""
    used = store.rollouts.versions(run, KEPT_VERSIONS)
    versions = {(row.life, use.version) for row in used for use in row.consumptions}
    times = [row.consumed_at for row in used if row.consumed_at is not None]
    # Before the first window is full it reaches back to the run's beginning.
    early = used and len(versions) <= WINDOW_VERSIONS
    since = 0 if early else min([watermark - round(WINDOW_SECONDS * 1000), *(round(at * 1000) for at in times)])
    found = [*used, *store.rollouts.recent(run, since), *store.rollouts.live(run)]
    unique = {(row.rollout_id, row.life): row for row in found}
    return sorted(unique.values(), key=lambda row: (row.moved_at, row.rollout_id))


def _groups(store: Store, run: str, rows: Iterable[RolloutRow]) -> dict[tuple[str, int], RolloutGroupRow]:
    keys = {(row.group_id, row.life) for row in rows if row.group_id}
    return {(group.group_id, group.life): group for group in store.rollouts.groups(run, keys)} if keys else {}


def _arrives(row: RolloutRow, group: RolloutGroupRow | None) -> float:
    """When what it says was known, as `server.ingest.rollouts` dates it."""
    return max(row.moved_at, group.completed_at or 0.0) if group is not None else row.moved_at


def _count(store: Store, run: str, deriver: Deriver, pending: Iterable[RolloutArrival]) -> deque[RolloutArrival]:
    """The counters go on from where they were; what was committed and never counted counts when it arrives.

    A rollout may come back as just arrived that had been counted by what was known of it before: then it counts no
    more. And what left with another exit than it has now counts at once: nothing tells its time any longer.
    """
    due = {what: _due(store, run, deriver, what, *kind) for what, kind in _COUNTED.items()}
    arrivals: deque[RolloutArrival] = deque()
    # The newest first: what is already counted is older.
    for arrival in reversed(list(pending)):
        counts = leaves(arrival.row) and _take(due["rollout_left"], arrival.row.state)
        closes = arrival.closed and arrival.group is not None and _take(due["group_closed"], arrival.group.outcome)
        arrivals.appendleft(structs.replace(arrival, before=None if counts else arrival.row, closed=closes))
    for what, left in due.items():
        for label, n in left.items():
            if n > 0:
                deriver.counting.happened(what, label, n)
    return arrivals


_COUNTED: Mapping[str, tuple[str, Sequence[str]]] = {
    "rollout_left": (LEFT, rollouts_model.EXITS), "group_closed": (CLOSED, OUTCOMES),
}  # fmt: skip


def _due(store: Store, run: str, deriver: Deriver, what: str, kind: str, labels: Sequence[str]) -> dict[str, float]:
    """How often it happened by label, as committed, and is not counted yet."""
    happened = {labels[place]: n for _, place, n in store.rollouts.bins(run, kind, 0, 1, TIERS[1])}
    return {label: n - deriver.counting.happened_yet(what, label) for label, n in happened.items()}


def _take(due: dict[str, float], label: str) -> bool:
    if due.get(label, 0.0) < 1.0:
        return False
    due[label] -= 1.0
    return True
