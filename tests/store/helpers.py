"""Small things the store's tests share."""

from collections.abc import Iterable
from typing import Any

from collectors.model import Rollout
from server.rollouts.model import RolloutRow
from server.store import Store
from server.store.types import Batch, Bucket, SeriesKey

T0 = 1_700_006_400_000
"""A midnight (and so the start of an hour, a slot and a minute)."""

MINUTE, SLOT, HOUR, DAY = 60_000, 600_000, 3_600_000, 86_400_000
FOREVER = 1 << 60

SCRAPED = SeriesKey("engine-0", "requests_running", (("engine", "0"),))
SIGNAL = SeriesKey("", "queue_samples")


def one(store: Store, run: str = "run", key: SeriesKey = SCRAPED) -> int:
    """The id of one series."""
    return store.series.intern(run, [key])[0]


def put(store: Store, series: int, rows: Iterable[tuple[int, float]], run: str = "run") -> None:
    """Write samples of one series."""
    store.write(Batch(run, samples=[(series, ts, v) for ts, v in rows]))


def expected(rows: Iterable[tuple[int, float | None]], width: int) -> list[Bucket]:
    """Buckets by the definition, from rows with distinct times; None is a gap point."""
    groups: dict[int, list[tuple[int, float | None]]] = {}
    for ts, v in sorted(rows, key=lambda row: row[0]):
        groups.setdefault(ts // width * width, []).append((ts, v))
    return [_bucket(ts, [v for _, v in group if v is not None]) for ts, group in groups.items()]


def _bucket(ts: int, values: list[float]) -> Bucket:
    if not values:
        return Bucket(ts, 0, None, None, 0.0, None)
    return Bucket(ts, len(values), min(values), max(values), sum(values), values[-1])


_TIMES = ("first_seen", "seen_at", "moved_at", "consumed_at")
_OWN = [name for name in RolloutRow.__struct_fields__ if name not in Rollout.__struct_fields__]


def rollout_row(target: str, record: Rollout, *own: Any, **named: Any) -> RolloutRow:
    """The row of a record, with its own fields in their order; its times are given in ms."""
    values = dict(zip(_OWN, (target, *own), strict=False)) | named
    times = {name: values[name] / 1000 for name in _TIMES if values.get(name) is not None}
    return RolloutRow.of(record, **values | times)
