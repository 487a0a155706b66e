"""What a run's book of rollouts held, read back from the store: a restart changes no number."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from server.derive.deriver import Deriver
from server.ingest.rollouts.feed import ALWAYS, PUBLISHED, versions
from server.ingest.rollouts.totals import CLOSED, LEFT, TIERS, leaves
from server.ingest.updates import RolloutArrival
from server.rollouts import state as rollouts_state
from server.rollouts.groups import OUTCOMES
from server.rollouts.staleness import KEPT_VERSIONS as PUBLICATIONS
from server.rollouts.window import KEPT_VERSIONS, WINDOW_SECONDS, WINDOW_VERSIONS
from server.store import Store
from server.store.types import RolloutGroupRow, RolloutRow

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
    for row in rows:
        group = groups.get((row.record.group_id, row.life))
        ts = _arrives(row, group)
        late = group is not None and group.completed_at is not None and group.completed_at > watermark
        if ts <= watermark:
            deriver.rollout(RolloutArrival(ts / 1000, row, None, group), counted=True)
            continue
        closes = late and group is not None and (group.group_id, group.life) not in unseen
        unseen |= {(group.group_id, group.life)} if closes and group is not None else set()
        pending.append(RolloutArrival(ts / 1000, row, None, group, closes))
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
    versions = {(row.life, use.version) for row in used for use in row.record.consumptions}
    times = [row.consumed_at for row in used if row.consumed_at is not None]
    # Before the first window is full it reaches back to the run's beginning.
    early = used and len(versions) <= WINDOW_VERSIONS
    since = 0 if early else min([watermark - round(WINDOW_SECONDS * 1000), *times])
    found = [*used, *store.rollouts.recent(run, since), *store.rollouts.live(run)]
    unique = {(row.record.rollout_id, row.life): row for row in found}
    return sorted(unique.values(), key=lambda row: (row.moved_at, row.record.rollout_id))


def _groups(store: Store, run: str, rows: Iterable[RolloutRow]) -> dict[tuple[str, int], RolloutGroupRow]:
    keys = {(row.record.group_id, row.life) for row in rows if row.record.group_id}
    return {(group.group_id, group.life): group for group in store.rollouts.groups(run, keys)} if keys else {}


def _arrives(row: RolloutRow, group: RolloutGroupRow | None) -> int:
    """When what it says was known, as `server.ingest.rollouts.fold` dates it."""
    return max(row.moved_at, group.completed_at or 0) if group is not None else row.moved_at


def _count(store: Store, run: str, deriver: Deriver, pending: Iterable[RolloutArrival]) -> deque[RolloutArrival]:
    """The counters go on from where they were; what was committed and never counted counts when it arrives.

    A rollout may come back as just arrived that had been counted by what was known of it before: then it counts no
    more. And what left with another exit than it has now counts at once: nothing tells its time any longer.
    """
    due = {what: _due(store, run, deriver, what, *kind) for what, kind in _COUNTED.items()}
    told: deque[RolloutArrival] = deque()
    # The newest first: what is already counted is older.
    for arrival in reversed(list(pending)):
        counts = leaves(arrival.row) and _take(due["rollout_left"], arrival.row.state)
        closes = arrival.closed and arrival.group is not None and _take(due["group_closed"], arrival.group.outcome)
        told.appendleft(replace(arrival, before=None if counts else arrival.row, closed=closes))
    for what, left in due.items():
        for label, n in left.items():
            if n > 0:
                deriver.counting.happened(what, label, n)
    return told


_COUNTED: Mapping[str, tuple[str, Sequence[str]]] = {
    "rollout_left": (LEFT, rollouts_state.EXITS), "group_closed": (CLOSED, OUTCOMES),
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
