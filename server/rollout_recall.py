"""What a run's book of rollouts held, read back from the store: a restart changes no number."""

from collections import Counter, deque
from collections.abc import Iterable

from server.arrivals import RolloutArrival
from server.counting import leaves
from server.derive import Deriver
from server.rollout_feed import ALWAYS, PUBLISHED, versions
from server.rollout_totals import OUTCOME, TIERS
from server.signals import _census
from server.signals._groups import OUTCOMES
from server.signals._rollouts import KEPT_VERSIONS, WINDOW_SECONDS, WINDOW_VERSIONS
from server.signals._versions import KEPT_VERSIONS as PUBLICATIONS
from server.store import Store
from server.store.types import RolloutGroupRow, RolloutRow

Pending = tuple[deque[RolloutArrival], deque[tuple[float, int]]]


def fill(store: Store, run: str, deriver: Deriver, watermark: int) -> Pending:
    """Fill the book as of the watermark (epoch ms); what was committed of later times comes back as just arrived.

    Totals are what the store has added up, less what is yet to arrive.
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
    _count(store, run, deriver, pending)
    return pending, published


def _published(store: Store, run: str, deriver: Deriver, watermark: int) -> deque[tuple[float, int]]:
    events = [event for _, event in store.events(run, 0, ALWAYS, [PUBLISHED], PUBLICATIONS)]
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
    """When what it says was known, as `server.rollout_ingest` dates it."""
    return max(row.moved_at, group.completed_at or 0) if group is not None else row.moved_at


def _count(store: Store, run: str, deriver: Deriver, pending: Iterable[RolloutArrival]) -> None:
    left = Counter[str]()
    for one in store.rollouts.sums(run, 0, ALWAYS // TIERS[1] * TIERS[1]):
        if one.purpose == "train" and one.exit in _census.EXITS:
            left[one.exit] += one.rollouts
    closed = Counter[str]()
    for _, place, n in store.rollouts.bins(run, OUTCOME, 0, ALWAYS, TIERS[1]):
        closed[OUTCOMES[place]] += n
    for arrival in pending:
        left[arrival.row.state] -= leaves(arrival.row)
        if arrival.closed and arrival.group is not None and arrival.group.purpose == "train":
            closed[arrival.group.outcome] -= not arrival.group.sampled
    for what, totals in (("rollout_left", left), ("group_closed", closed)):
        deriver.counting.reset(what)
        for label, n in totals.items():
            if n > 0:
                deriver.counting.happened(what, label, float(n))
